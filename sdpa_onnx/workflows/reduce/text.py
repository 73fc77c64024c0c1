"""Format a reduced case as text for a person and as a record for a program.

Does not print or write files.
"""

from collections.abc import Iterator

import msgspec

from sdpa_onnx.core.records.records import AgreementRecord, Conformity, Outcome, Sizes
from sdpa_onnx.workflows.check.feeds import GIVEN
from sdpa_onnx.workflows.check.run_context import with_figures
from sdpa_onnx.workflows.check.session_sequence import sizes_of
from sdpa_onnx.workflows.reduce.search import NothingFails, ReducedCase

__all__ = ["ONE_LIMIT", "nothing_record", "nothing_sentence", "reduced_record", "sentences"]

# More sets of sizes than this are counted, not listed.
_SHOWN = 3
_TIME_LIMIT = " The time limit was reached: a smaller case may exist (--seconds)."
ONE_LIMIT = (
    "The limit is known only at the element with the largest error. The other elements in expected.npz have no limit."
)
_VERBS = {
    Conformity.RIGHT: "is right",
    Conformity.WRONG: "is wrong",
    Conformity.SUSPICIOUS: "is suspicious",
    Conformity.REFUSED: "refuses it",
    Conformity.CRASHED: "crashes",
}


def sentences(reduced: ReducedCase) -> Iterator[str]:
    """The failure, the smallest case, where it was found and what was reduced; one line each."""
    yield f"{reduced.runtime_version} {_VERBS[reduced.kind]}: {reduced.message}"
    if reduced.case:
        form = f"{reduced.model.facts.form} form, opset {reduced.model.opset}"
        yield f"Smallest case: {reduced.case}, {form}{reduced.fourth_output}."
    else:
        nodes = ", ".join(f"{count} {name}" for name, count in reduced.model.node_counts().items())
        yield f"Smallest part: {nodes}."
    if reduced.found_in:
        yield f"Found on {reduced.found_in}"
    if reduced.dropped:
        yield f"Reduced: {', '.join(reduced.dropped)}."
    if reduced.has_one_limit:
        yield ONE_LIMIT
    reason = f" {reduced.stopped}".rstrip() if reduced.is_finished else _TIME_LIMIT
    cases = "case" if reduced.trials == 1 else "cases"
    yield f"{reduced.trials} smaller {cases} run in {reduced.seconds:.1f} s.{reason}"


def nothing_sentence(found: NothingFails, runtime: str) -> str:
    """State that nothing fails, what was tried and what was not judged."""
    limit = "" if found.is_finished else " within the time limit (--seconds), which was too short to try everything"
    parts = [f"Nothing fails on {runtime}{limit}: {_right(found)}."]
    if found.is_read and found.unread:
        count = "1 attention" if found.unread == 1 else f"{found.unread} attentions"
        alone = f"; every node by itself is right at {_listed(found.alone)}" if found.alone else ""
        parts.append(f"{count} in the model could not be read{alone}.")
    if found.not_judged:
        parts.append(f"Not judged: {_listed(found.not_judged, 'entries')}.")
    return " ".join(parts)


def _right(found: NothingFails) -> str:
    if not found.is_read:
        where = "on the given arrays" if found.is_given else f"at {_listed(found.alone)}"
        attention = "no attention in the model could be read"
        if found.replaced:
            attention = f"no attention is judged as one, because reading it replaces nodes ({found.replaced})"
        return f"{attention}; every node by itself is right {where}"
    if found.is_given:
        return "right on the given arrays"
    whole = f"the ladder of spreads{' and the probes' if found.is_probed else ''}"
    tried = whole if found.is_finished else "the inputs that were tried"
    return f"right on {tried} at {_listed(found.tried)}"


def _listed(texts: tuple[str, ...], what: str = "sets of sizes") -> str:
    more = len(texts) - _SHOWN
    return "; ".join(texts[:_SHOWN]) + (f"; and {more} more {what}" if more > 0 else "")


def reduced_record(reduced: ReducedCase, *, target: str) -> AgreementRecord:
    """The agreement record of the smallest case."""
    agreement = reduced.agreement
    case = reduced.trial.case if reduced.case and reduced.trial is not None else None
    plain = AgreementRecord(
        target=target,
        case=reduced.case or "part",
        form=reduced.model.facts.form.value,
        opset=reduced.model.opset,
        runtime=reduced.runtime,
        outcome=Outcome.DISAGREES if reduced.kind.disagrees else Outcome.FAILED,
        reason=reduced.message,
        warnings=() if reduced.is_finished else ("The time limit was reached before the reduction finished.",),
        spec=None if case is None else case.spec,
        past_seq_len=case.past_seq_len if case is not None and case.spec.has_past else None,
        site=reduced.failure.output,
        sizes=_sizes(reduced),
        dtype="" if reduced.trial is None else reduced.trial.case.dtype.value,
        precision=reduced.precision,
        inputs="reduced",
        sequence=tuple(sizes_of(reduced.model, feeds) for feeds in (*reduced.before, reduced.feeds))
        if reduced.before
        else (),
        seed=0 if reduced.trial is None else reduced.trial.seed,
    )
    if agreement is None:
        return plain
    return msgspec.structs.replace(with_figures(plain, agreement), diagnosis=reduced.message)


def nothing_record(found: NothingFails, *, target: str, runtime: str) -> AgreementRecord:
    """The record of a model in which nothing fails: right, with the last sizes that were tried."""
    inputs = "ladder and probes" if found.is_read else "every node alone"
    sentence = nothing_sentence(found, runtime)
    is_complete = found.is_read and found.is_finished and not found.unread and not found.not_judged
    return AgreementRecord(
        target=target,
        case=found.tried[-1],
        runtime=runtime,
        inputs=GIVEN if found.is_given else inputs,
        warnings=() if is_complete else (sentence,),
    )


def _sizes(reduced: ReducedCase) -> Sizes:
    if reduced.trial is None:
        return Sizes()
    case = reduced.trial.case
    return Sizes(
        batch_size=case.batch_size,
        q_seq_len=case.q_seq_len,
        kv_seq_len=case.kv_seq_len,
        head_dim=case.spec.head_dim,
        q_num_heads=case.spec.q_num_heads,
    )
