"""One cause is one finding: groups the records of a model on a runtime that disagree or failed.

A wrong attention disagrees at every step and spoils the outputs of the model, and the nearest known fault differs
between steps. Therefore the records of one attention are one finding, whose cause is the one that most of them name;
attentions with the same cause are one finding. Judges nothing.
"""

import math
import re
import shlex
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import PurePath

from sdpa_onnx.core.records.cause_text import named_cause
from sdpa_onnx.core.records.gate_records import Gate, GateRecord
from sdpa_onnx.core.records.records import (
    AgreementRecord,
    ConformanceRecord,
    ExportRecord,
    LocatedRecord,
    Outcome,
    Record,
    Subject,
    Verdict,
)

__all__ = ["Finding", "error_words", "group_findings"]

_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")
_FIRST_SENTENCE = re.compile(r"(.+?[.!?])(?=\s+[A-Z]|$)", re.DOTALL)
# Names of attentions or outputs in a sentence; more are counted.
_MOST_NAMES = 3


class _Kind(StrEnum):
    """Kind of error, for records that belong to no attention."""

    READING = "reading"
    OUTPUT_SHAPE = "output-shape"
    OUTPUT_NUMBERS = "output-numbers"
    STATE = "state"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause, with the records that it explains.

    Args:
        cause: The cause in plain words, a sentence without its full stop.
        outcome: DISAGREES, FAILED or TIMED_OUT.
        verdict: WRONG or SUSPICIOUS; None for a failure.
        target, runtime: Model and runtime.
        sites: Attentions or outputs with this cause; () if the finding concerns the model.
        worst: The record with the most evidence.
        records: All records that it covers.
        located: The first bad node, if one was searched for.
    """

    cause: str
    outcome: Outcome
    verdict: Verdict | None
    target: str
    runtime: str
    sites: tuple[str, ...] = ()
    worst: Record
    records: tuple[Record, ...]
    located: LocatedRecord | None = None

    @property
    def sentence(self) -> str:
        """Cause and verdict: "The scale is off by 1.8 %: wrong on ort-cpu."."""
        where = f" on {self.runtime}" if self.runtime else ""
        if self.is_unproven_output:
            return f"{self.cause}{where} (an output has no proven bound)."
        if self.verdict is None:
            return f"{self.cause}: {self.outcome.counted.value}{where}."
        return f"{self.cause}: {self.verdict.value}{where}."

    @property
    def is_unproven_output(self) -> bool:
        """Whether it is an output of a module that differs, for which the worst verdict is suspicious."""
        return self.verdict is Verdict.SUSPICIOUS and _subject(self.worst) is Subject.OUTPUT

    def repeat(self, path: str = "") -> str:
        """Return the command that runs the worst record again; "" if there is none.

        Args:
            path: The model file; "" = the target, if that is a file.
        """
        if isinstance(self.worst, ConformanceRecord):
            return self.worst.repeat
        path = path or self.target
        if PurePath(path).suffix != ".onnx":
            return ""
        words = ["sdpa-onnx", "verify", path]
        words += ["--runtime", self.runtime] if self.runtime else []
        if isinstance(self.worst, AgreementRecord):
            words += ["--seed", str(self.worst.seed)] if self.worst.seed else []
            words += [word for axis, size in self.worst.axes.items() for word in ("--size", f"{axis}={size}")]
        return shlex.join(words)


def group_findings(records: Iterable[Record]) -> list[Finding]:
    """Group everything that disagrees or failed by its cause, proven faults and large errors first.

    Records of different models (target, form, opset) or runtimes have different causes.
    """
    models: dict[Hashable, list[Record]] = {}
    for record in records:
        models.setdefault((record.target, record.form, record.opset, record.runtime), []).append(record)
    found = [finding for members in models.values() for finding in _of_model(members)]
    return sorted(found, key=_order)


def _order(finding: Finding) -> tuple[int, float]:
    severity = 0 if finding.verdict is Verdict.WRONG else 1 if finding.outcome is Outcome.DISAGREES else 2
    return severity, -_amount(finding.worst)


def _of_model(records: Sequence[Record]) -> list[Finding]:
    """The findings of one model on one runtime."""
    bad = [one for one in records if one.outcome is Outcome.DISAGREES or one.outcome.is_failure]
    located = [one for one in records if isinstance(one, LocatedRecord)]
    sites = list(dict.fromkeys(_site(one) for one in records if _is_attention(one)))
    attentions = _attention_findings([one for one in bad if _is_wrong_attention(one)], sites)
    explained = {_step(record) for finding in attentions for record in finding.records}
    followed, rest = list[Record](), dict[Hashable, list[Record]]()
    for record in bad:
        if isinstance(record, LocatedRecord) or _is_wrong_attention(record):
            continue
        if attentions and (_is_wrong_at_a_size(record) or _is_output_of(record, explained)):
            followed.append(record)
        else:
            rest.setdefault(_key(record), []).append(record)
    if followed:
        attentions[0] = replace(attentions[0], records=(*attentions[0].records, *followed))
    outputs = rest.pop((_Kind.OUTPUT_NUMBERS,), [])
    if outputs:
        attentions.append(_output_finding(outputs, [rest.pop(key) for key in [*rest] if _is_same_output(rest[key])]))
    found = [*attentions, *(_other_finding(members) for members in rest.values())]
    return _with_located(found, located)


def _is_same_output(members: Sequence[Record]) -> bool:
    """Whether the proof of the axes met a wrong output too, or the setting that makes it wrong."""
    return all(_is_wrong_at_a_size(one) or bool(getattr(one, "settings", ())) for one in members)


def _output_finding(outputs: Sequence[Record], proofs: Sequence[Sequence[Record]]) -> Finding:
    """Outputs that differ, with what the proof of the axes found of them; a setting of an attention is the cause."""
    found = _other_finding(outputs)
    same = [record for members in proofs for record in members]
    setting = next((one for one in same if getattr(one, "settings", ())), None)
    cause, verdict = (found.cause, found.verdict) if setting is None else (_cause_of(setting), _verdict(setting))
    return replace(found, cause=cause, verdict=verdict, records=(*found.records, *same))


def _is_output_of(record: Record, steps: Collection[tuple[str, str]]) -> bool:
    """Whether it judges an output of the model in one of these runs, in which an attention is wrong."""
    return _subject(record) is Subject.OUTPUT and _step(record) in steps


def _is_wrong_at_a_size(record: Record) -> bool:
    """Whether the proof of the axes met something wrong that is neither an axis nor a setting."""
    return (
        isinstance(record, ExportRecord) and not record.baked and not record.settings and not record.outcome.is_failure
    )


def _attention_findings(wrong: Sequence[Record], sites: Sequence[str]) -> list[Finding]:
    """One finding for each attention, then one for those with the same cause."""
    by_site: dict[str, list[Record]] = {}
    for record in wrong:
        by_site.setdefault(_site(record), []).append(record)
    groups: list[tuple[str, set[str], list[Record]]] = []
    for members in by_site.values():
        kind = _usual_cause(members)
        clauses = {clause for one in members if (clause := named_cause(_text(one)))}
        same = next((group for group in groups if kind and group[0] == kind and group[1] & clauses), None)
        if same is None:
            groups.append((kind, clauses, members))
        else:
            same[1].update(clauses)
            same[2].extend(members)
    return [_attention_finding(kind, members, len(sites)) for kind, _, members in groups]


def _attention_finding(kind: str, members: Sequence[Record], attentions: int) -> Finding:
    worst = _worst([one for one in members if _without_numbers(named_cause(_text(one))) == kind])
    sites = tuple(dict.fromkeys(map(_site, members)))
    where = f" in {_names(sites, 'attention')}" if attentions > 1 else ""
    clause = named_cause(_text(worst))
    if clause:
        cause = f"{clause[:1].upper()}{clause[1:]}{where}"
    elif _amount(worst):
        subject = _names(sites, "attention") if attentions > 1 else "the attention"
        cause = f"The output of {subject} is {error_words(worst)} and resembles no known fault"
    else:
        cause = f"{_first_sentence(_text(worst))}{where}"
    return _finding(cause, members, worst, sites=sites)


def _usual_cause(members: Sequence[Record]) -> str:
    """The cause that most records name, without numbers; "" if most name none."""
    return Counter(_without_numbers(named_cause(_text(one))) for one in members).most_common(1)[0][0]


def _other_finding(members: Sequence[Record]) -> Finding:
    """A finding that belongs to no single attention."""
    worst = _worst(members)
    outputs = tuple(dict.fromkeys(_site(one) for one in members if _subject(one) is Subject.OUTPUT))
    if _key(worst) == (_Kind.OUTPUT_NUMBERS,) and not outputs:  # an attention without a name
        cause = named_cause(_text(worst)) or f"The output is {error_words(worst)}"
        return _finding(cause, members, worst, sites=())
    if _key(worst) == (_Kind.OUTPUT_NUMBERS,):
        verb = "is" if len(outputs) == 1 else "are"
        is_unproven = _verdict(worst) is Verdict.SUSPICIOUS and not math.isinf(_amount(worst))
        error = error_words(worst)
        differs = error.replace("off", "differs" if verb == "is" else "differ", 1)
        cause = f"{_names(outputs, 'output')} {differs if is_unproven else f'{verb} {error}'}"
        return _finding(cause, members, worst, sites=outputs)
    return _finding(_cause_of(worst), members, worst, sites=outputs)


def _cause_of(record: Record) -> str:
    """The first sentence of the evidence. The proof of the axes of a file calls the file "it"."""
    text = _first_sentence(_text(record))
    is_proof = isinstance(record, ExportRecord) and text.startswith("It ")
    return f"The file {text[3:]}" if is_proof else text[:1].upper() + text[1:]


def _finding(cause: str, members: Sequence[Record], worst: Record, *, sites: tuple[str, ...]) -> Finding:
    verdict = _verdict(worst)
    return Finding(
        cause=cause[:1].upper() + cause[1:],
        outcome=worst.outcome,
        verdict=verdict,
        target=worst.target,
        runtime=worst.runtime,
        sites=sites,
        worst=worst,
        records=tuple(members),
    )


def _with_located(findings: Sequence[Finding], located: Sequence[LocatedRecord]) -> list[Finding]:
    """Give each search for the first bad node to the finding that it was made for."""
    found = list(findings)
    for record in located:
        place = next((n for n, finding in enumerate(found) if _started(finding, record)), None)
        if place is None:
            continue
        finding = replace(found[place], located=record, records=(*found[place].records, record))
        if record.node and not any(map(_is_attention, finding.records)):
            finding = replace(finding, cause=_bad_nodes(record), verdict=_verdict(record))
        found[place] = finding
    return found


def _started(finding: Finding, located: LocatedRecord) -> bool:
    """Whether the search was started by a record of the finding."""
    place = (located.subject, located.site, located.inputs)
    return any(
        isinstance(one, AgreementRecord) and (one.subject, one.site, one.inputs) == place for one in finding.records
    )


def _bad_nodes(located: LocatedRecord) -> str:
    if len(located.group) > 1:
        span = f"from '{located.group[0]}' to '{located.group[-1]}'"
        return f"The {len(located.group)} nodes {span} together compute a different result"
    return f"Node '{located.node}' ({located.op_type}) computes a different result"


def _key(record: Record) -> tuple[Hashable, ...]:
    """What records of one cause have in common, if no attention explains them."""
    if isinstance(record, AgreementRecord) and record.outcome is Outcome.DISAGREES:
        if record.sequence:
            return (_Kind.STATE,)
        if record.subject is Subject.READING:
            return _Kind.READING, record.site
        return (_Kind.OUTPUT_NUMBERS if _amount(record) else _Kind.OUTPUT_SHAPE,)
    return _Kind.OTHER, type(record).__name__, record.outcome.counted, _without_numbers(_text(record))


def _is_attention(record: Record) -> bool:
    return _subject(record) is Subject.ATTENTION and bool(_site(record))


def _is_wrong_attention(record: Record) -> bool:
    is_state = isinstance(record, AgreementRecord) and bool(record.sequence)
    return _is_attention(record) and record.outcome is Outcome.DISAGREES and not is_state


def _subject(record: Record) -> Subject | None:
    """The subject of a judgement of numbers; None for other records."""
    if isinstance(record, AgreementRecord) or (isinstance(record, GateRecord) and record.gate is Gate.AGREEMENT):
        return record.subject
    return None


def _site(record: Record) -> str:
    return record.site if isinstance(record, AgreementRecord | GateRecord) else ""


def _step(record: Record) -> tuple[str, str]:
    """The run of the model that a judgement belongs to."""
    return record.case, record.inputs if isinstance(record, AgreementRecord | GateRecord) else ""


def _text(record: Record) -> str:
    """The evidence of a record; never empty."""
    texts: tuple[str, ...] = (record.reason,)
    match record:
        case AgreementRecord() | ConformanceRecord() | LocatedRecord():
            texts = (record.diagnosis, record.reason)
        case GateRecord():
            texts = (record.evidence, record.reason)
        case _:
            pass
    return next((" ".join(text.split()) for text in texts if text), "No reason was recorded.")


def _verdict(record: Record) -> Verdict | None:
    if record.outcome is not Outcome.DISAGREES:
        return None
    if isinstance(record, AgreementRecord | LocatedRecord) and record.verdict is not None:
        return record.verdict
    return Verdict.SUSPICIOUS if getattr(record, "verdict", None) == Verdict.SUSPICIOUS.value else Verdict.WRONG


def _amount(record: Record) -> float:
    """Largest error over its limit; infinite for an output that is not finite, 0 if nothing was compared."""
    match record:
        case AgreementRecord(not_finite=places) if places:
            return math.inf
        case AgreementRecord() | ConformanceRecord():
            return record.max_bound_ratio or 0.0
        case GateRecord():
            return record.amount or 0.0
        case ExportRecord():
            return float(len(record.baked))
        case _:
            return 0.0


def _worst(members: Sequence[Record]) -> Record:
    """The record with the most evidence: proven before suspicious, then the largest error."""
    return max(members, key=lambda one: (_verdict(one) is Verdict.WRONG, _amount(one)))


def error_words(record: Record) -> str:
    """How large an error is: off by up to 1,152 times its proven bound."""
    amount = _amount(record)
    if math.isinf(amount):
        return "not finite where it must be"
    limit = "the allowed error" if _subject(record) is Subject.OUTPUT else "its proven bound"
    number = f"{amount:,.0f}" if 1e3 <= amount < 1e7 else f"{amount:.3g}"
    return f"off by up to {number} times {limit}"


def _names(sites: Sequence[str], noun: str) -> str:
    """Name attentions or outputs: attention 'a', attentions 'a' and 'b', 12 attentions."""
    if len(sites) == 1:
        return f"{noun} '{sites[0]}'"
    if len(sites) > _MOST_NAMES:
        return f"{len(sites)} {noun}s"
    quoted = [f"'{site}'" for site in sites]
    return f"{noun}s {', '.join(quoted[:-1])} and {quoted[-1]}"


def _first_sentence(text: str) -> str:
    found = _FIRST_SENTENCE.match(text)
    return (text if found is None else found[1]).rstrip(".!?")


def _without_numbers(text: str) -> str:
    return _NUMBER.sub("#", text)
