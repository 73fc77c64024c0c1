"""One record per group of findings, so that `--json` and lists of known findings handle them like all others."""

import shlex
from collections.abc import Sequence

from sdpa_onnx.core.attention.random_cases import draw_case
from sdpa_onnx.core.records.cause_text import looks_like
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Sizes
from sdpa_onnx.workflows.check.run_context import with_figures, with_ran
from sdpa_onnx.workflows.fuzz.case import FuzzFinding
from sdpa_onnx.workflows.fuzz.groups import FuzzGroup

__all__ = ["evidence_of", "group_record", "repeat_command"]


def group_record(group: FuzzGroup, *, runtime: str, seed: int) -> AgreementRecord:
    """The record of a group, described by its smallest finding.

    `target` is "fuzz", `reason` the title of the group, the same from run to run; `diagnosis` the evidence.

    Args:
        group: The findings.
        runtime: Name of the runtime.
        seed: Of the run.
    """
    finding = group.smallest
    case = draw_case(seed, finding.number)
    plain = AgreementRecord(
        target="fuzz",
        case=finding.case_id,
        form="attention",
        opset=case.graph.opset,
        runtime=runtime,
        outcome=Outcome.TIMED_OUT if finding.is_timeout else finding.kind.outcome,
        reason=group.title,
        warnings=tuple(_doubts(group, runtime, seed)),
        spec=case.case.spec,
        past_seq_len=case.case.past_seq_len if case.case.spec.has_past else None,
        site=finding.output,
        sizes=Sizes(
            batch_size=case.case.batch_size,
            q_seq_len=case.case.q_seq_len,
            kv_seq_len=case.case.kv_seq_len,
            head_dim=case.case.spec.head_dim,
            q_num_heads=case.case.spec.q_num_heads,
        ),
        dtype=case.case.dtype.value,
        precision=finding.precision,
        diagnosis=evidence_of(finding),
        inputs=f"case {finding.number}, {finding.words}, {finding.source}",
        spread=_spread(finding.source),
        seed=seed,
    )
    return _with_figures(plain, finding)


def evidence_of(finding: FuzzFinding) -> str:
    """The evidence with the known fault that it looks like, or the error of the runtime."""
    if finding.after:
        verdict = finding.kind.value.capitalize()
        return f"{verdict} after {_cases(finding)} in one session; right in a fresh session. {finding.message}"
    explained = finding.explanation
    if explained is None:
        return finding.message
    return f"{finding.message} {looks_like(explained.says, explained.dated)}"


def _cases(finding: FuzzFinding) -> str:
    first, last = finding.after[0], finding.after[-1]
    return f"case {first}" if first == last else f"cases {first} to {last}"


def repeat_command(runtime: str, seed: int, number: int, *, after: Sequence[int] = ()) -> str:
    """The command that runs one case again, with the cases before it that it needs."""
    start = after[0] if after else number
    words = ["sdpa-onnx", "fuzz", "--runtime", runtime, "--seed", str(seed), "--start", str(start)]
    return shlex.join([*words, "--cases", str(number - start + 1)])


def _doubts(group: FuzzGroup, runtime: str, seed: int) -> list[str]:
    """Warnings: the number of findings, the command that repeats one, and the reduced case."""
    again = repeat_command(runtime, seed, group.smallest.number, after=group.smallest.after)
    notes = [f"{group.count} of this kind. Again: {again}"]
    if group.count > 1 and group.common:
        notes.append(f"In all of them: {', '.join(sorted(group.common))}.")
    if group.reduced is not None and group.reduced.case:
        runs = len(group.reduced.before)
        after = f", after {runs} other {'run' if runs == 1 else 'runs'} of its session" if runs else ""
        notes.append(f"Smallest case: {group.reduced.case}, opset {group.reduced.model.opset}{after}.")
    return [*notes, *([group.note] if group.note else [])]


def _spread(source: str) -> float | None:
    return float(source.removeprefix("spread ")) if source.startswith("spread ") else None


def _with_figures(record: AgreementRecord, finding: FuzzFinding) -> AgreementRecord:
    agreement, ran = finding.agreement, finding.ran
    if ran is not None:
        record = with_ran(record, ran)
    return record if agreement is None else with_figures(record, agreement)
