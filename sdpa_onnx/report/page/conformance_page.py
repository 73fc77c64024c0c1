"""The page of `conformance`: what is wrong and refused, every row in a matrix; judges nothing.

It is safe to send: without host name and without paths. `conformance_blocks` are also part of the page of a run.
"""

from collections.abc import Mapping, Sequence

from sdpa_onnx.core.records.records import ConformanceRecord, Outcome
from sdpa_onnx.core.records.verdicts import Conformity
from sdpa_onnx.report.conformance.findings import conformance_findings, refusals
from sdpa_onnx.report.conformance.matrix import MARK_WORDS, Cell, Mark, MatrixRow, by_place_and_runtime, mark_of
from sdpa_onnx.report.conformance.run import (
    SECTION_TITLES,
    ConformanceFinding,
    ConformanceRun,
    evidence,
    findings_of,
    known_outcome,
    place,
    places,
    ran_words,
    verdict_word,
)
from sdpa_onnx.report.page.content import (
    PageBlock,
    PageContent,
    PageFold,
    PageMatrix,
    PageMatrixCell,
    PageMatrixRow,
    PageSection,
    PageTable,
    PageText,
    PageTone,
)
from sdpa_onnx.report.page.html import page_html
from sdpa_onnx.report.page.parts import page_data, page_table, tone_of, with_facts
from sdpa_onnx.report.page.without_paths import without_paths
from sdpa_onnx.report.text.table import text_table

__all__ = ["conformance_blocks", "render_page"]

_TONES = {
    **dict.fromkeys((Mark.CRASHED, Mark.NO_ANSWER, Mark.WRONG), PageTone.BAD),
    **dict.fromkeys((Mark.SUSPICIOUS, Mark.REFUSED), PageTone.DOUBT),
    **dict.fromkeys((Mark.EXPANDED, Mark.RIGHT), PageTone.GOOD),
    Mark.SKIPPED: PageTone.NEUTRAL,
}
_READING = (
    "right: every case of the feature agrees with the oracle within the error that the declared arithmetic explains.",
    "wrong: no evaluation order of the declared arithmetic gives this output.",
    "suspicious: outputs of several cases are within that bound, but neither rounding nor chance explains them.",
    "refused: the runtime reports that it does not support this.",
    "crashed: its process died. no-answer: it did not answer in time, nor when repeated with three times as much.",
    "expanded: the runtime has no kernel for the operator and runs its function body, node by node.",
    (
        "The name of a case, such as b2_hq4_hkv2_q5_kv7_d8_f32_causal, has its batch size (b), query heads (hq), key "
        "and value heads (hkv), new queries (q) and keys (kv) of a sample, width of a head (d) and element type (f32, "
        "f16, bf16, f64); then the options that differ from the default: causal, dv = width of a value, wl and wr = "
        "window to the left and right, past = keys in the cache, mask = its kind, cap = softcap, scale, and bsh = "
        "layout BSH, the heads of an input in one axis."
    ),
)
_LINKS = frozenset({"source", "known"})
_COMMANDS = frozenset({"repeat"})


def render_page(run: ConformanceRun) -> str:
    """Render the page; the same run gives the same text."""
    first, *others = conformance_findings(run)
    worst = min((mark_of(record) for record in run.records), key=list(Mark).index, default=Mark.SKIPPED)
    versions = [(runtime, version or "unknown") for runtime, version in run.versions.items()]
    names = ", ".join(version or runtime for runtime, version in run.versions.items()) or "no runtime"
    content = PageContent(
        title="ONNX attention conformance",
        subtitle=f"{names}{', ' if run.made else ''}{run.made}, judged against a float64 oracle",
        verdict=first,
        tone=_TONES[worst] if run.is_finished else tone_of(Outcome.SKIPPED),
        findings=tuple(others),
        steps=(),
        sections=(
            PageSection(anchor="features", title="Features", blocks=conformance_blocks(run)),
            PageSection(anchor="reading", title="How to read this", blocks=(PageText(lines=_READING),)),
            with_facts([*versions, *run.facts.items()], run.command),
        ),
        data=page_data(run.records),
    )
    return page_html(content, clean=without_paths)


def conformance_blocks(run: ConformanceRun) -> tuple[PageBlock, ...]:
    """What is not right, the matrix, and the evidence behind its cells; nothing without rows."""
    if not run.records:
        return ()
    found = [_findings_table(run, verdict, title) for verdict, title in SECTION_TITLES.items()]
    matrix = by_place_and_runtime(run.records, run.runtimes)
    evidence_of = {row.feature: _evidence(row, number) for number, row in enumerate(matrix.rows, 1)}
    used = {mark_of(record) for record in run.records}
    legend = "; ".join(f"{mark} {words}" for mark, words in MARK_WORDS.items() if mark in used)
    name = slice(0 if len(run.runtimes) > 1 else 1, None)
    folded = tuple(table for table in evidence_of.values() if table is not None)
    return (
        *(table for table in found if table is not None),
        PageMatrix(
            title="Feature by feature",
            corner="feature",
            heads=tuple(" ".join(part for part in column[name] if part) for column in matrix.columns),
            rows=tuple(_row(row, evidence_of[row.feature]) for row in matrix.rows),
            note=f"{legend}; blank: not tested. A cell that is not right leads to its evidence.",
        ),
        *_refused(run),
        *([PageFold(title="Evidence of every row that is not right", blocks=folded)] if folded else []),
    )


def _findings_table(run: ConformanceRun, verdict: Conformity, title: str) -> PageTable | None:
    """Rows that are wrong in the same manner are one row, the worst first."""
    found = findings_of(run, verdict)
    if not found:
        return None
    return _table(title, [_finding_cells(run, finding) for finding in found])


def _finding_cells(run: ConformanceRun, finding: ConformanceFinding) -> dict[str, str]:
    record = finding.worst
    ran = f" ({ran_words(record)})" if ran_words(record) else ""
    sentences = [evidence(record)]
    sentences += [f"Observed: {known_outcome(record)}."] if known_outcome(record) else []
    sentences += [f"Reading: {record.reading}."] if record.reading else []
    return {
        "feature": f"{record.feature}: {record.title}".removesuffix(": "),
        "where": f"{record.runtime}, {places(finding.rows)}{ran}",
        "evidence": " ".join(sentences),
        "new": "new" if finding.is_new else "",
        "known": finding.known.why if finding.known else "",
        "source": run.sources.get(record.feature, ""),
        "repeat": record.repeat,
    }


def _refused(run: ConformanceRun) -> list[PageTable]:
    """Refused rows by reason."""
    entries = run.known.known if run.known else ()
    cells = []
    for runtime in run.runtimes:
        for reason, rows in refusals(run, runtime):
            known = [entry.why for entry, matched in entries if any(row in matched for row in rows)]
            is_new = run.known is not None and any(row in run.known.new for row in rows)
            sources = {run.sources[row.feature] for row in rows if row.feature in run.sources}
            cells.append(
                {
                    "reason": reason,
                    "runtime": runtime,
                    "features": ", ".join(dict.fromkeys(row.feature for row in rows)),
                    "where": places(rows),
                    "rows": str(len(rows)),
                    "new": "new" if is_new else "",
                    "known": known[0] if known else "",
                    "source": sources.pop() if len(sources) == 1 else "",
                }
            )
    return [_table("Refused", cells)] if cells else []


def _table(title: str, rows: Sequence[Mapping[str, str]], *, anchor: str = "") -> PageTable:
    """A table without the columns that are empty."""
    kept = [head for head in rows[0] if any(row[head] for row in rows)]
    table = text_table(title, ({head: row[head] for head in kept} for row in rows), numbers=("rows",))
    return page_table(table, anchor=anchor, is_folded=bool(anchor), commands=_COMMANDS, links=_LINKS)


def _evidence(row: MatrixRow, number: int) -> PageTable | None:
    """Every record of a feature that is not right; None if all are."""
    records = [record for cell in row.cells for record in cell if record.verdict is not Conformity.RIGHT]
    if not records:
        return None
    return _table(row.feature, [_evidence_cells(record) for record in records], anchor=f"feature-{number}")


def _evidence_cells(record: ConformanceRecord) -> dict[str, str]:
    return {
        "runtime": record.runtime,
        "where": place(record),
        "verdict": verdict_word(record),
        "ran": ran_words(record),
        "evidence": evidence(record),
        "observed": known_outcome(record),
        "reading": record.reading,
        "repeat": record.repeat,
    }


def _row(row: MatrixRow, shown: PageTable | None) -> PageMatrixRow:
    return PageMatrixRow(
        head=row.feature,
        group=row.group,
        title=row.title,
        cells=tuple(_cell(cell, "" if shown is None else shown.anchor) if cell else None for cell in row.cells),
    )


def _cell(cell: Cell, anchor: str) -> PageMatrixCell:
    """The worst record of a cell, and all of them in words."""
    worst = min(cell, key=lambda record: list(Mark).index(mark_of(record)))
    words = [
        f"{one.runtime}, {one.feature}, {place(one)}: {verdict_word(one)}. {evidence(one)}".strip() for one in cell
    ]
    return PageMatrixCell(
        text=str(mark_of(worst)),
        label=" / ".join(words),
        tone=_TONES[mark_of(worst)],
        target="" if worst.verdict is Conformity.RIGHT else anchor,
    )
