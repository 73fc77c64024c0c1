"""The data of a `conformance` report, and its texts for places and figures.

Reads no clock, no machine and no file: the caller provides the data.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.core.records.records import ConformanceRecord
from sdpa_onnx.core.records.verdicts import Conformity
from sdpa_onnx.report.text.labels import plain
from sdpa_onnx.report.text.number_text import count, figure
from sdpa_onnx.workflows.conformance.observing import OTHER
from sdpa_onnx.workflows.expected.known_findings import KnownFinding, SortedFindings

__all__ = [
    "SECTION_TITLES",
    "SKIPPED",
    "ConformanceFinding",
    "ConformanceRun",
    "evidence",
    "findings_of",
    "known_outcome",
    "place",
    "places",
    "ran_words",
    "verdict_word",
]

SKIPPED = "skipped"
"""The verdict that is printed for a row that was not judged."""

SECTION_TITLES = {
    Conformity.CRASHED: "Crashed",
    Conformity.NO_ANSWER: "No answer in time",
    Conformity.WRONG: "Wrong",
    Conformity.SUSPICIOUS: "Suspicious",
}
"""The title of the findings of each verdict, in the order in which reports list them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceRun:
    """Rows of one or several runtimes, and the environment.

    Args:
        records: The rows, in the order in which they ran.
        versions: Runtime -> its version, such as "onnxruntime 1.32.0".
        sources: Feature -> the place in the operator's text, or the issue, that defines what is right.
        facts: Facts about the machine and the packages that are safe to publish, by name.
        command: The command line that repeats the run.
        known: The rows sorted by the file of known findings, or None without such a file.
        is_finished: False if the run was stopped.
        made: The day of the run.
    """

    records: tuple[ConformanceRecord, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    known: SortedFindings | None = None
    is_finished: bool = True
    made: str = ""

    @property
    def runtimes(self) -> tuple[str, ...]:
        """Names of the runtimes, each once, those without a row too."""
        return tuple(dict.fromkeys([*self.versions, *(record.runtime for record in self.records)]))

    def rows_of(self, runtime: str) -> list[ConformanceRecord]:
        """The rows of one runtime."""
        return [record for record in self.records if record.runtime == runtime]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceFinding:
    """Rows of one feature that are wrong, or crashed, in the same manner.

    Args:
        worst: The row with the largest error over its bound.
        rows: All of them.
        known: The entry of the file of known findings that lists it, or None.
        is_new: Whether there is a file of known findings that does not list all rows.
    """

    worst: ConformanceRecord
    rows: tuple[ConformanceRecord, ...]
    known: KnownFinding | None
    is_new: bool


def findings_of(run: ConformanceRun, verdict: Conformity) -> list[ConformanceFinding]:
    """Group the rows of one verdict by runtime, feature, operator and what was observed.

    Sorted by runtime, then by the share of wrong cases, then by the largest error over its bound, the worst first.
    """
    groups: dict[tuple[str, ...], list[ConformanceRecord]] = {}
    for record in run.records:
        if record.verdict is verdict:
            key = (record.runtime, record.operator, record.feature, record.observed, record.reading)
            groups.setdefault(key, []).append(record)
    found = [_finding(run, rows) for rows in groups.values()]
    return sorted(found, key=lambda one: (run.runtimes.index(one.worst.runtime), -_share(one), -_size(one)))


def _share(finding: ConformanceFinding) -> float:
    """Share of the cases that are wrong."""
    cases = sum(row.cases or 0 for row in finding.rows)
    return sum(row.wrong_cases or 0 for row in finding.rows) / cases if cases else 0.0


def _size(finding: ConformanceFinding) -> float:
    return _bound_ratio(finding.worst)


def _bound_ratio(record: ConformanceRecord) -> float:
    """Largest error over its bound, for sorting; 0 if nothing was judged."""
    ratio = record.max_bound_ratio or 0.0
    return math.inf if math.isnan(ratio) else ratio


def known_outcome(record: ConformanceRecord) -> str:
    """The known outcome that was observed; "" if it is none of them."""
    return "" if record.observed == OTHER else record.observed


def verdict_word(record: ConformanceRecord) -> str:
    """The verdict; "skipped" for a row without one."""
    return SKIPPED if record.verdict is None else str(record.verdict)


def place(record: ConformanceRecord) -> str:
    """Operator, opset and dtype of a row: Attention 23 float32."""
    return " ".join(str(part) for part in (record.operator, record.opset or "", record.dtype) if part)


def ran_words(record: ConformanceRecord) -> str:
    """How the operator ran: native, or expanded into a number of nodes; "" if that is not known."""
    if record.path != "expanded" or record.path_nodes is None:
        return record.path
    return f"{record.path} into {record.path_nodes} nodes"


def places(records: Iterable[ConformanceRecord]) -> str:
    """Several places, shortened: Attention 23 float32, float16; Attention 24 float32."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        head = " ".join(str(part) for part in (record.operator, record.opset or "") if part)
        found.setdefault(head, {})[record.dtype] = None
    return "; ".join(" ".join(part for part in (head, ", ".join(dtypes)) if part) for head, dtypes in found.items())


def _figures_text(record: ConformanceRecord) -> str:
    """How many cases of a row are wrong, and by how much; an error within its bound is no evidence and left out."""
    parts = []
    if record.wrong_cases and record.cases:
        parts.append(f"{record.wrong_cases} of {count(record.cases, 'case')} wrong")
    if record.max_bound_ratio is not None and record.max_bound_ratio > 1:
        parts.append(f"largest error {figure(known(record.max_abs_error))}")
        parts.append(f"{figure(record.max_bound_ratio)} times the bound")
    return ", ".join(parts)


def evidence(record: ConformanceRecord, *, beside: ConformanceRecord | None = None) -> str:
    """The evidence as sentences: cases, figures, diagnosis, reason.

    Args:
        beside: A row whose diagnosis and reason are printed already and not repeated.
    """
    printed = {beside.diagnosis, beside.reason} if beside is not None else set()
    new = [text for text in (record.diagnosis, record.reason) if text not in printed]
    parts = [_figures_text(record), *map(plain, new), *map(plain, record.warnings)]
    return " ".join(_sentence(text) for text in dict.fromkeys(parts) if text)


def _finding(run: ConformanceRun, rows: Sequence[ConformanceRecord]) -> ConformanceFinding:
    entries = run.known.known if run.known else ()
    entry = next((entry for entry, matched in entries if any(row in matched for row in rows)), None)
    new = run.known.new if run.known else ()
    worst = max(rows, key=_bound_ratio)
    return ConformanceFinding(worst=worst, rows=tuple(rows), known=entry, is_new=any(row in new for row in rows))


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
