"""The conformance report on a terminal or a pipe: findings, wrong rows, refused rows, the matrix.

Marks are ASCII; colours add no information.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from sdpa_onnx.core.records.records import ConformanceRecord
from sdpa_onnx.report.conformance.findings import conformance_findings, refusals
from sdpa_onnx.report.conformance.matrix import (
    MARK_WORDS,
    Cell,
    FeatureMatrix,
    Mark,
    by_place,
    by_runtime,
    mark_of,
)
from sdpa_onnx.report.conformance.run import (
    SECTION_TITLES,
    ConformanceFinding,
    ConformanceRun,
    evidence,
    findings_of,
    known_outcome,
    places,
    ran_words,
)
from sdpa_onnx.report.text.layout import TextLine, Tone, bullet, paragraph, table_lines
from sdpa_onnx.report.text.table import text_table

__all__ = ["conformance_lines", "short_lines", "verdict_lines"]

_BLANK = TextLine(text="", tone=Tone.ROW)
# Printed between the marks of two operators or opsets.
_GAP = " "
# Greatest number of features that a reason lists by name; the matrix shows all.
_MOST_FEATURES = 8
# Findings with their evidence, of which one takes ten lines, and names of further ones, in the short form.
_MOST_BLOCKS, _MOST_NAMED = 1, 8


def verdict_lines(run: ConformanceRun, width: int) -> list[TextLine]:
    """One sentence for each runtime: how many rows are right, wrong and refused."""
    first, *others = conformance_findings(run)
    lines = [TextLine(text=text, tone=Tone.TITLE) for text in paragraph(first, width)]
    for sentence in others:
        tone = Tone.TITLE if len(run.runtimes) > 1 else Tone.ROW
        lines += [TextLine(text=text, tone=tone) for text in paragraph(sentence, width)]
    return [replace(line, text=_printable(line.text)) for line in lines]


def short_lines(run: ConformanceRun, width: int) -> list[TextLine]:
    """The sentences, then what is wrong: the worst feature with evidence, the others by name."""
    lines = verdict_lines(run, width)
    found = [finding for verdict in SECTION_TITLES for finding in findings_of(run, verdict)]
    for finding in found[:_MOST_BLOCKS]:
        lines += _finding(finding, run, width)
    names = list(dict.fromkeys(finding.worst.feature for finding in found[_MOST_BLOCKS:]))
    if names:
        listed = f"Also: {', '.join(names[:_MOST_NAMED])}"
        more = f" and {len(names) - _MOST_NAMED} more features" if len(names) > _MOST_NAMED else ""
        lines += [TextLine(text=text, tone=Tone.ROW) for text in bullet(f"{listed}{more}.", width)]
    if run.records:
        rest = "--verbose prints all evidence, the refusals and the matrix of all features."
        lines += [TextLine(text=text, tone=Tone.NOTE) for text in paragraph(rest, width)]
    return [replace(line, text=_printable(line.text)) for line in lines]


def conformance_lines(run: ConformanceRun, width: int) -> list[TextLine]:
    """The whole report as lines of a given width; text that cannot be broken may be longer."""
    lines = verdict_lines(run, width)
    for verdict, title in SECTION_TITLES.items():
        found = findings_of(run, verdict)
        lines += [_BLANK, TextLine(text=title, tone=Tone.TITLE)] if found else []
        for finding in found:
            lines += _finding(finding, run, width)
    lines += _refused(run, width)
    if run.records:
        lines += [_BLANK, *_matrix(run, width)]
    return [replace(line, text=_printable(line.text)) for line in lines]


def _printable(text: str) -> str:
    """Replace control characters: the text of a runtime must not control the terminal."""
    return "".join(one if one.isprintable() else "?" for one in text)


def _finding(finding: ConformanceFinding, run: ConformanceRun, width: int) -> Iterator[TextLine]:
    """A block: feature, place, evidence, observed outcome, command that repeats it."""
    record = finding.worst
    runtime = f"{record.runtime}, " if len(run.runtimes) > 1 else ""
    title = f": {record.title}" if record.title else ""
    mark = " (new)" if finding.is_new else ""
    for text in bullet(f"{record.feature}{title}{mark}", width):
        yield TextLine(text=text, tone=Tone.SECTION)
    ran = f" ({ran_words(record)})" if record.path == "expanded" else ""
    sentences = [f"{runtime}{places(finding.rows)}{ran}. {evidence(record)}"]
    sentences += [f"Observed: {known_outcome(record)}."] if known_outcome(record) else []
    sentences += [f"Reading: {record.reading}"] if record.reading else []
    sentences += [f"Known: {finding.known.why}"] if finding.known else []
    for sentence in sentences:
        yield from (TextLine(text=text, tone=Tone.ROW) for text in paragraph(sentence, width, indent="  "))
    if record.repeat:  # never broken across lines: users copy it
        yield TextLine(text=f"  {record.repeat}", tone=Tone.NOTE)


def _refused(run: ConformanceRun, width: int) -> Iterator[TextLine]:
    for runtime in run.runtimes:
        groups = refusals(run, runtime)
        if groups:
            yield _BLANK
            yield TextLine(text=f"Refused by {runtime}", tone=Tone.TITLE)
        for reason, rows in groups:
            features = dict.fromkeys(row.feature for row in rows)
            fresh = sum(row in run.known.new for row in rows) if run.known is not None else 0
            counted = f"{len(rows)} x{f' ({fresh} new)' if fresh else ''}: {reason}"
            yield from (TextLine(text=text, tone=Tone.ROW) for text in bullet(counted, width))
            more = f" and {len(features) - _MOST_FEATURES} more" if len(features) > _MOST_FEATURES else ""
            listed = f"{', '.join(list(features)[:_MOST_FEATURES])}{more} ({places(rows)})"
            yield from (TextLine(text=text, tone=Tone.NOTE) for text in paragraph(listed, width, indent="  "))


def _matrix(run: ConformanceRun, width: int) -> list[TextLine]:
    if len(run.runtimes) > 1:
        return _runtimes(by_runtime(run.records, run.runtimes), run.records, width)
    matrix = by_place(run.records)
    name = max(len(row.feature) for row in matrix.rows)
    lines = [TextLine(text="Feature by feature", tone=Tone.TITLE)]
    for number, columns in enumerate(_parts(matrix, width - name - 2)):
        lines += [_BLANK] if number else []
        lines += _part(matrix, columns, name, width)
    return [*lines, *_legend(run.records, width)]


def _parts(matrix: FeatureMatrix, room: int) -> list[list[int]]:
    """Split the columns into parts that fit the width."""
    parts: list[list[int]] = [[]]
    for index in range(len(matrix.columns)):
        if parts[-1] and len(_marks("", [*parts[-1], index], matrix)) > max(room, 1):
            parts.append([])
        parts[-1].append(index)
    return parts


def _part(matrix: FeatureMatrix, columns: list[int], name: int, width: int) -> Iterator[TextLine]:
    numbers = [str(index + 1) for index in range(len(matrix.columns))]
    digits = max(len(numbers[index]) for index in columns)
    for digit in range(digits):
        heads = "".join(number.rjust(digits)[digit] for number in numbers)
        yield TextLine(text=f"{'':{name}}  {_marks(heads, columns, matrix)}".rstrip(), tone=Tone.HEAD)
    group = ""
    for row in matrix.rows:
        marks = "".join(_mark(cell) for cell in row.cells)
        if not any(row.cells[index] for index in columns):
            continue
        if row.group != group:
            group = row.group
            yield TextLine(text=f"{group}:", tone=Tone.SECTION)
        yield TextLine(text=f"{row.feature:{name}}  {_marks(marks, columns, matrix)}".rstrip(), tone=Tone.ROW)
    for text in _key(matrix, columns):
        yield from (TextLine(text=line, tone=Tone.NOTE) for line in paragraph(text, width))


def _marks(marks: str, columns: Sequence[int], matrix: FeatureMatrix) -> str:
    """One character per column, with a gap where the operator or the opset changes."""
    line = ""
    for before, index in zip([None, *columns], columns, strict=False):
        changes = before is not None and matrix.columns[before][:2] != matrix.columns[index][:2]
        line += (_GAP if changes else "") + (marks[index] if marks else ".")
    return line


def _key(matrix: FeatureMatrix, columns: Sequence[int]) -> list[str]:
    """Explain the numbers above the columns, one line per operator and opset."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for index in columns:
        groups.setdefault(matrix.columns[index][:2], []).append(index)
    lines = []
    for head, indices in groups.items():
        # "\0" is a space at which `paragraph` does not break: a number stays with its element type.
        listed = ", ".join(f"{index + 1}\0{matrix.columns[index][2]}" for index in indices)
        lines.append(f"{' '.join(part for part in head if part)}: {listed}")
    return lines


def _mark(cell: Cell) -> str:
    """The worst mark of a cell; a blank if it was not tested."""
    marks = {mark_of(record) for record in cell}
    return next((str(mark) for mark in Mark if mark in marks), " ")


def _legend(records: Sequence[ConformanceRecord], width: int) -> list[TextLine]:
    used = {mark_of(record) for record in records}
    words = "; ".join(f"{mark} {text}" for mark, text in MARK_WORDS.items() if mark in used)
    return [TextLine(text=text, tone=Tone.NOTE) for text in paragraph(f"{words}; blank: not tested.", width)]


def _runtimes(matrix: FeatureMatrix, records: Sequence[ConformanceRecord], width: int) -> list[TextLine]:
    """Several runtimes side by side; a cell counts its rows by mark if they differ."""
    names = [runtime for (runtime,) in matrix.columns]
    table = text_table(
        "Feature by feature",
        (
            {"group": row.group, "feature": row.feature, **dict(zip(names, map(_counted, row.cells), strict=True))}
            for row in matrix.rows
        ),
        heading="group",
        note="A mark without a number applies to all rows of the feature; a number counts the rows with that mark.",
    )
    return [*table_lines(table, width), *_legend(records, width)]


def _counted(cell: Cell) -> str:
    counts = Counter(mark_of(record) for record in cell)
    if len(counts) < 2:
        return "".join(counts)
    return " ".join(f"{counts[mark]}{mark}" for mark in Mark if counts[mark])
