"""A comparison as sentences and tables, shared by the terminal, Markdown and JUnit reports; decides nothing.

It knows no line widths and no markup. Rows with the same finding in many cases are merged into one.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import msgspec

from sdpa_onnx.core.compare.gate_row import percent, verdict_in_words
from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.core.records.records import TimingRecord
from sdpa_onnx.report.compare.gate_findings import GateFinding, gate_findings
from sdpa_onnx.report.text.labels import CommonFactors, case_in_words, join_words, plain, site_in_words, usual_factors
from sdpa_onnx.report.text.number_text import NOT_KNOWN, count, duration, ratio_text
from sdpa_onnx.report.text.table import Table, text_table
from sdpa_onnx.workflows.expected.known_findings import KnownFinding, SortedFindings

__all__ = [
    "GateReport",
    "alarms",
    "by_verdict",
    "case_of",
    "changed_table",
    "evidence_lines",
    "headline",
    "place",
    "reached",
    "summary",
    "tally_table",
    "usual_of",
    "verdict_label",
]

# In the order of the report.
_ORDER = (
    *(
        GateVerdict.REGRESSION,
        GateVerdict.UNDECIDED,
        GateVerdict.NOT_COMPARABLE,
        GateVerdict.DISAPPEARED,
        GateVerdict.WORSE,
    ),
    *(GateVerdict.CHANGED, GateVerdict.APPEARED, GateVerdict.BETTER, GateVerdict.SAME),
)
_WORDS = {
    GateVerdict.SAME: "the same",
    GateVerdict.WORSE: "worse, allowed",
    GateVerdict.NOT_COMPARABLE: "not comparable",
}
# The verdict of a time that is slower, but by less than the margin.
_WITHIN = "slower within the margin"
# Findings that the first sentences name after the first; the table lists all.
_MOST_FINDINGS = 3
# Up to this many findings of one gate and verdict are printed in full. Of more, only the worst: they may share a cause.
_MOST_ALIKE = 3
# In the evidence of core/compare/gate_time.py.
_NOISY = "NOISY"
# Up to this many times are listed even if they did not change.
_MOST_TIMES = 12
_NOTHING_USUAL = CommonFactors()
# Fields that a row of a model with named axes does not repeat where all rows share them, with what is put before.
_SHARED = {"target": "of ", "runtime": "on ", "form": "", "opset": "opset "}


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """A finished comparison.

    Args:
        rows: The results of the gates.
        base, head: What was compared, for people.
        how: The method of the comparison, one sentence.
        command: The command line that repeats it.
        known: The rows sorted by the file of known findings; None without such a file.
    """

    rows: Sequence[GateRecord]
    base: str
    head: str
    how: str
    command: str
    known: SortedFindings | None = None

    @property
    def failing(self) -> list[GateRecord]:
        """Rows that fail the comparison: those that no known finding lists."""
        return [row for row in self.rows if row.fails and self.why(row) is None]

    @property
    def findings(self) -> list[GateFinding]:
        """The failing rows by cause, each cause once."""
        return gate_findings(self.failing)

    def why(self, row: GateRecord) -> KnownFinding | None:
        """The known finding that excuses a failing row, or None."""
        if self.known is None:
            return None
        return next((entry for entry, found in self.known.known if any(one is row for one in found)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Rows of one gate that share a cause, the worst first, or a verdict and its evidence.

    Args:
        rows: The rows.
        shared: Names of fields that are the same in all rows of the report, which a row does not repeat.
    """

    rows: Sequence[GateRecord] = field(default_factory=tuple)
    shared: Collection[str] = ()

    @property
    def first(self) -> GateRecord:
        return self.rows[0]

    def where(self, usual: CommonFactors) -> str:
        """The case, or the number of cases and the first of them."""
        first = place(_printed_case(self.first, self.shared), usual) or "the model"
        return first if len(self.rows) == 1 else f"{len(self.rows)} cases, such as {first}"


def _groups(report: GateReport) -> list[_Group]:
    """Group rows with the same finding, the worst first: all that changed, and unchanged times if they are few."""
    timed = [row for row in report.rows if row.ratio is not None]
    shown = {id(row) for row in timed} if len(timed) <= _MOST_TIMES else set()
    found: dict[tuple[object, ...], list[GateRecord]] = {}
    for row in report.rows:
        is_failing = row.fails and report.why(row) is None
        if not is_failing and (row.word is not GateVerdict.SAME or id(row) in shown):
            key = (row.gate, row.word, row.evidence, row.base, row.head, row.fails, report.why(row) is None)
            found.setdefault(key, []).append(row)
    order = list(Gate)
    ordered = sorted(found.values(), key=lambda rows: (_ORDER.index(rows[0].word), order.index(rows[0].gate)))
    shared = {*_shared(report)} if _is_of_models(report) else set[str]()
    return [_Group(rows=rows, shared=shared) for rows in (*(one.rows for one in report.findings), *ordered)]


def _is_of_models(report: GateReport) -> bool:
    """Whether two models were compared, of which most rows share the name, the runtime and the form."""
    return any(row.axes and row.site for row in report.rows)


def _shared(report: GateReport) -> dict[str, str]:
    """What all rows that have it have in common, in words by the name of its field."""
    values = {name: {getattr(row, name) for row in report.rows if getattr(row, name)} for name in _SHARED}
    return {name: f"{_SHARED[name]}{found.pop()}" for name, found in values.items() if len(found) == 1}


def place(row: GateRecord, usual: CommonFactors = _NOTHING_USUAL) -> str:
    """Where a row belongs: runtime or arm, case, attention, inputs.

    Args:
        usual: Factors that most rows share; they are not named.
    """
    runs = row.arm if row.arm not in ("", "HEAD") else row.runtime
    opset = f"opset {row.opset}" if row.opset and not row.arm else ""
    threads = f"{row.threads} threads" if (row.threads or 1) > 1 else ""
    parts = (
        runs,
        row.target,
        case_of(row, usual),
        row.form if not row.arm else "",
        opset,
        site_in_words(row),
        row.inputs,
        threads,
    )
    return plain(", ".join(dict.fromkeys(part for part in parts if part)))


def _printed_case(row: GateRecord, shared: Collection[str]) -> GateRecord:
    """The row without what all rows share; sizes of axes instead of the name of a case, which JUnit readers need."""
    if not shared:
        return row
    bare = msgspec.structs.replace(row, **{name: None if name == "opset" else "" for name in shared})
    if row.sizes.q_seq_len is not None:
        return bare
    sizes = ", ".join(f"{axis} {size}" for axis, size in row.axes.items())
    return msgspec.structs.replace(bare, case=bare.target, inputs=", ".join(filter(None, (sizes, row.inputs))))


def usual_of(report: GateReport) -> CommonFactors:
    """Heads and element type of most rows, which are not repeated in each row."""
    return usual_factors([_sized(row) for row in report.rows])


def case_of(row: GateRecord, usual: CommonFactors) -> str:
    """The case of a row, without the factors that most rows share.

    A larger model keeps the name of its case: JUnit readers know test cases by it.
    """
    return case_in_words(_sized(row), usual) if row.sizes.q_seq_len is not None else row.case or row.target


def by_verdict(rows: Sequence[GateRecord]) -> list[GateRecord]:
    """Rows in the order of the report, regressions first."""
    return sorted(rows, key=lambda row: _ORDER.index(row.word))


def _sized(row: GateRecord) -> TimingRecord:
    """The row as a record whose case can be described."""
    return TimingRecord(
        case=row.case,
        target=row.target,
        spec=row.spec,
        past_seq_len=row.past_seq_len,
        sizes=row.sizes,
        dtype=row.dtype,
    )


def headline(report: GateReport) -> str:
    """The verdict on the whole comparison, in a few words."""
    failing = len(report.findings)
    if failing:
        return count(failing, "regression")
    return "no regression found, time not gated" if _noisy(report) else "no regression"


def summary(report: GateReport) -> str:
    """The comparison in a few words: what got worse and by how much, or how many checks are the same."""
    checks = count(len(report.rows), "check")
    tally = Counter(verdict_label(report, row) for row in report.rows)
    margin = f" of {percent(max((row.margin or 0.0 for row in report.rows), default=0.0))}"
    findings = report.findings
    if findings:
        first, others = findings[0].sentence, [one.sentence.removesuffix(".") for one in findings[1:]]
        left = [f"{len(others) - _MOST_FINDINGS} more"] if len(others) > _MOST_FINDINGS else []
        more = f" Also: {'; '.join([*others[:_MOST_FINDINGS], *left])}." if others else ""
        within = tally[_WITHIN]
        verb = "is" if within == 1 else "are"
        slower = f" {count(within, 'more check')} {verb} {_WITHIN}{margin}." if within else ""
        failing = f" {len(report.failing)} of {checks} {'fails' if len(report.failing) == 1 else 'fail'}."
        return f"{first}{more}{failing}{slower}"
    parts = [f"{tally[word]} {word}{margin if word == _WITHIN else ''}" for word in _printed(report)]
    return f"No regression in {checks}: {join_words(parts)}."


def _printed(report: GateReport) -> list[str]:
    """Verdicts that occur, the best first."""
    ranked = sorted(report.rows, key=lambda row: -_ORDER.index(row.word))
    return list(dict.fromkeys(verdict_label(report, row) for row in ranked))


def alarms(report: GateReport) -> list[str]:
    """Sentences that the reader must not miss although they fail nothing."""
    lines = []
    noisy = _noisy(report)
    if noisy:
        lines.append(f"TIME WAS NOT GATED in {count(noisy, 'case')}: the machine was too noisy; see below.")
    known = [row for row in report.rows if row.fails and report.why(row) is not None]
    if known:
        verb = "is not counted as a regression" if len(known) == 1 else "are not counted as regressions"
        lines.append(f"{count(len(known), 'known finding')} {verb}.")
    return lines


def reached(report: GateReport) -> str:
    """At which sizes outputs were compared, sentences; "" if none were, or for stored runs."""
    return " ".join(dict.fromkeys(plain(row.evidence) for row in report.rows if row.longest is not None))


def _noisy(report: GateReport) -> int:
    """Number of timings that were too noisy to be gated."""
    return sum(row.gate is Gate.TIME and _NOISY in row.evidence for row in report.rows)


def verdict_label(report: GateReport, row: GateRecord) -> str:
    """The verdict of a row as it is printed."""
    if row.fails and report.why(row) is not None:
        return "known"
    within = row.gate is Gate.TIME and row.word is GateVerdict.WORSE and _is_within(row)
    word = _WITHIN if within else _WORDS.get(row.word, row.word.value)
    return f"{word} (strict)" if row.fails and row.word is not GateVerdict.REGRESSION else word


def _is_within(row: GateRecord) -> bool:
    """Whether the whole interval of the ratio is within the margin."""
    return row.ratio_high is not None and row.margin is not None and row.ratio_high <= 1 + row.margin


def changed_table(report: GateReport, *, most: int) -> Table | None:
    """List what changed, and times, one row per group; None if there is neither.

    Args:
        most: Greatest number of rows; a note counts those left out.
    """
    found = _groups(report)
    if not found:
        return None
    usual = usual_of(report)
    rows = [
        {
            "gate": str(group.first.gate),
            "verdict": verdict_label(report, group.first),
            "where": group.where(usual),
            **_before_and_now(group.first),
        }
        for group in found[:most]
    ]
    left = len(found) - len(rows)
    shared = ", ".join(_shared(report).values()) if _is_of_models(report) else ""
    common = ", ".join(filter(None, (shared, f"with {usual.words}" if usual.words else "")))
    notes = [
        f"All {common} unless stated otherwise." if common else "",
        f"{count(left, 'more row')} not shown.",
    ]
    return text_table(
        "What changed, and times" if any(row.ratio is not None for row in report.rows) else "What changed",
        rows,
        note=" ".join(note for note in notes[: 2 if left else 1] if note),
    )


def tally_table(report: GateReport) -> Table:
    """Count the rows of each gate by verdict."""
    used = _printed(report)
    gates = [gate for gate in Gate if any(row.gate is gate for row in report.rows)]
    counts = Counter((row.gate, verdict_label(report, row)) for row in report.rows)
    rows = ({"gate": str(gate), **{word: str(counts[gate, word] or "-") for word in used}} for gate in gates)
    return text_table("All checks", rows, numbers=used)


def evidence_lines(report: GateReport) -> list[tuple[str, str]]:
    """List findings as a label and a sentence of evidence; of many of one kind only the worst, with a count."""
    usual = usual_of(report)
    kinds: dict[tuple[object, ...], list[_Group]] = {}
    for group in _groups(report):
        row = group.first
        if row.word is not GateVerdict.SAME:
            kinds.setdefault((row.gate, verdict_label(report, row), id(report.why(row))), []).append(group)
    lines = []
    for groups in kinds.values():
        is_failing = groups[0].first.fails and report.why(groups[0].first) is None
        if len(groups) <= _MOST_ALIKE or groups[0].first.gate is Gate.TIME or is_failing:
            lines += [_evidence(report, group, usual) for group in groups]
            continue
        label, text = _evidence(report, groups[0], usual)
        lines.append((label, f"{text} The first; the table has {len(groups) - 1} more like it."))
    return _said_once(lines)


def _said_once(lines: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """One line for the same sentence under several gates, such as all that a time limit did not reach."""
    said: dict[tuple[str, str], dict[str, None]] = {}
    for label, sentence in lines:
        gate, _, verdict = label.partition(", ")
        said.setdefault((verdict, sentence), {})[gate] = None
    return [(f"{join_words(list(gates))}, {verdict}", sentence) for (verdict, sentence), gates in said.items()]


def _evidence(report: GateReport, group: _Group, usual: CommonFactors) -> tuple[str, str]:
    entry = report.why(group.first)
    known = f" Known: {plain(entry.why)} ({entry.place})." if entry is not None else ""
    doubts = "".join(f" Warning: {plain(text)}" for text in group.first.warnings)
    label = f"{group.first.gate}, {verdict_label(report, group.first)}"
    return label, f"{group.where(usual)}: {plain(group.first.evidence)}{known}{doubts}"


def _before_and_now(row: GateRecord) -> dict[str, str]:
    """The values of BASE and HEAD, and their ratio if there is one."""
    subject = row.subject if row.gate is Gate.AGREEMENT else None
    base, head = (verdict_in_words(verdict, subject) or NOT_KNOWN for verdict in (row.base, row.head))
    ratio = NOT_KNOWN
    if row.gate is Gate.MEMORY and row.base_bytes and row.head_bytes is not None:
        ratio = f"{row.head_bytes / row.base_bytes:.2f}"
    elif row.ratio is not None:
        base, head = duration(row.base_seconds), duration(row.head_seconds)
        ratio = ratio_text(row.ratio, row.ratio_low, row.ratio_high)
    return {"BASE": base, "HEAD": head, "ratio": ratio}
