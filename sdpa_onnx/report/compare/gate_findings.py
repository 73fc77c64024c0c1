"""The failing rows of a comparison as findings: one cause is one sentence that says what got worse and by how much.

Decides no gate.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from sdpa_onnx.core.compare.gate_row import percent as exact_percent
from sdpa_onnx.core.compare.gate_row import verdict_in_words
from sdpa_onnx.core.records.cause_text import named_cause
from sdpa_onnx.core.records.findings import Finding, error_words, group_findings
from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.core.records.records import Subject
from sdpa_onnx.report.text.labels import join_words, plain, site_in_words
from sdpa_onnx.report.text.number_text import count, percent

__all__ = ["GateFinding", "gate_findings"]

_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")
_SENTENCE_LIMIT = 200
# How the evidence of core/compare/gate_agreement.py begins, in records of earlier versions too, and the figures of
# workflows/check/output_check.py, which say less than how many times the allowed error it is.
_BEGINNING = re.compile(r"^[\w-]+, (?:[\w-]+ before|before [\w-]+)(?:: |\.|$)", re.IGNORECASE)
_FIGURES = "The largest error is "
# What a row of HEAD is, from bad to worst.
_BAD = ("crashed", "no-answer", "failed", "disagrees", "suspicious", "wrong")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFinding:
    """One cause, with the rows that fail because of it.

    Args:
        sentence: What got worse and by how much, with a full stop.
        rows: The failing rows, the worst first.
    """

    sentence: str
    rows: tuple[GateRecord, ...]


def gate_findings(rows: Sequence[GateRecord]) -> list[GateFinding]:
    """Group failing rows by their cause, in the order of the gates.

    Args:
        rows: Rows that fail.
    """
    return [finding for gate in Gate for finding in _of_gate(gate, [row for row in rows if row.gate is gate])]


def _of_gate(gate: Gate, rows: Sequence[GateRecord]) -> list[GateFinding]:
    proven = [row for row in rows if row.word is GateVerdict.REGRESSION]
    undecided = _gathered((row for row in rows if row.word is not GateVerdict.REGRESSION), _template)
    match gate:
        case Gate.AGREEMENT:
            found = _agreement(proven)
        case Gate.TIME:
            timed = _gathered((row for row in proven if row.ratio is not None), _label)
            untimed = _gathered((row for row in proven if row.ratio is None), _template)
            found = [*map(_time, timed), *map(_plain, untimed)]
        case Gate.MEMORY:
            found = [_memory(members) for members in _gathered(proven, _label)]
        case Gate.GRAPH:
            found = [_plain(members) for members in _gathered(proven, _template)]
        case _:
            assert_never(gate)
    return [*found, *(_plain(members) for members in undecided)]


def _gathered(rows: Iterable[GateRecord], key: Callable[[GateRecord], str]) -> list[list[GateRecord]]:
    found: dict[str, list[GateRecord]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return list(found.values())


def _agreement(rows: Sequence[GateRecord]) -> list[GateFinding]:
    """Findings of several models or runtimes are one if they name the same known fault."""
    merged: dict[Hashable, list[Finding]] = {}
    for number, finding in enumerate(group_findings(rows)):
        is_named = any(named_cause(row.evidence) for row in finding.records if isinstance(row, GateRecord))
        merged.setdefault(_NUMBER.sub("#", finding.cause) if is_named else number, []).append(finding)
    return [_agreement_finding(found) for found in merged.values()]


def _agreement_finding(found: Sequence[Finding]) -> GateFinding:
    members = [row for one in found for row in one.records if isinstance(row, GateRecord)]
    rows = sorted(members, key=lambda row: (-_badness(row), -(row.amount or 0.0)))
    first = rows[0]
    is_known = any(row.amount or named_cause(row.evidence) for row in rows)
    cause = found[0].cause if is_known else first.evidence.split(". ")[0].rstrip(".")
    cause = _BEGINNING.sub("", cause) or "An output changed"
    verdict = f": {verdict_in_words(first.head, first.subject)}"
    if _FIGURES in cause and first.amount and first.subject is Subject.OUTPUT:
        cause, verdict = f"{site_in_words(first)} {error_words(first).replace('off', 'differs', 1)}", ""
    runtimes = join_words(sorted({row.runtime for row in rows if row.runtime}))
    on = f" on {runtimes}" if runtimes else ""
    number = f" in {count(len(rows), 'check')}" if len(rows) > 1 else ""
    text = plain(f"{cause[:1].upper()}{cause[1:]}", _SENTENCE_LIMIT)
    sentence = f"{text}{verdict}{on}{number}, {verdict_in_words(first.base, first.subject)} before."
    return GateFinding(sentence=sentence, rows=tuple(rows))


def _badness(row: GateRecord) -> int:
    return _BAD.index(row.head) if row.head in _BAD else -1


def _time(members: Sequence[GateRecord]) -> GateFinding:
    rows = sorted(members, key=lambda row: -(row.ratio or 0.0))
    slower = [(row.ratio or 1.0) - 1.0 for row in rows]
    by = percent(slower[0])
    if len(rows) > 1 and percent(slower[-1]) != by:
        by = f"{percent(slower[-1]).removesuffix(' %')} to {by}"
    allowed = "" if rows[0].margin is None else f" (allowed: {exact_percent(rows[0].margin)})"
    return GateFinding(sentence=f"{_label(rows[0])} is {by} slower{_in_cases(rows)}{allowed}.", rows=tuple(rows))


def _memory(members: Sequence[GateRecord]) -> GateFinding:
    rows = sorted(members, key=lambda row: -((row.head_bytes or 0) / (row.base_bytes or 1)))
    worst = rows[0]
    at_worst = ", at worst" if len(rows) > 1 else ""
    sentence = f"{_label(worst)} needs more memory{_in_cases(rows)}{at_worst}: {worst.head}, before {worst.base}."
    return GateFinding(sentence=sentence, rows=tuple(rows))


def _plain(members: Sequence[GateRecord]) -> GateFinding:
    """The first sentence of the evidence, with the arm and the number of cases."""
    reason = plain(members[0].evidence.split(". ")[0].rstrip("."), _SENTENCE_LIMIT)
    return GateFinding(sentence=f"{_label(members[0])}{_in_cases(members)}: {reason}.", rows=tuple(members))


def _in_cases(rows: Sequence[GateRecord]) -> str:
    return f" in {len(rows)} cases" if len(rows) > 1 else ""


def _label(row: GateRecord) -> str:
    """What ran: the arm, else runtime and form, else the target."""
    if row.arm not in ("", "HEAD"):
        return row.arm
    return row.runtime or row.target or "HEAD"


def _template(row: GateRecord) -> str:
    return _NUMBER.sub("#", row.evidence)
