"""The matrix of features and places as data: the records of each cell, and its mark.

Twins, which lay it out: terminal.py and ../page/conformance_page.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sdpa_onnx.core.records.records import ConformanceRecord
from sdpa_onnx.core.records.verdicts import Conformity

__all__ = [
    "MARK_WORDS",
    "Cell",
    "FeatureMatrix",
    "Mark",
    "MatrixRow",
    "by_place",
    "by_place_and_runtime",
    "by_runtime",
    "mark_of",
]

Cell = tuple[ConformanceRecord, ...]


class Mark(StrEnum):
    """One character per row; the worst first."""

    CRASHED = "C"
    NO_ANSWER = "T"
    WRONG = "W"
    SUSPICIOUS = "?"
    REFUSED = "r"
    SKIPPED = "s"
    EXPANDED = ":"
    RIGHT = "."


MARK_WORDS = {
    Mark.RIGHT: "right",
    Mark.EXPANDED: "right, expanded into other nodes",
    Mark.WRONG: "wrong",
    Mark.SUSPICIOUS: "suspicious",
    Mark.REFUSED: "refused",
    Mark.CRASHED: "crashed",
    Mark.NO_ANSWER: "no answer in time",
    Mark.SKIPPED: "skipped",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRow:
    """One feature; a cell without records was not tested."""

    group: str
    feature: str
    title: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureMatrix:
    """Features by columns; a column is named by its parts, such as operator, opset and dtype."""

    columns: tuple[tuple[str, ...], ...]
    rows: tuple[MatrixRow, ...]


def mark_of(record: ConformanceRecord) -> Mark:
    """The mark of one row."""
    if record.verdict is None:
        return Mark.SKIPPED
    if record.verdict is Conformity.RIGHT and record.path == "expanded":
        return Mark.EXPANDED
    return Mark[record.verdict.name]


def by_place(records: Sequence[ConformanceRecord]) -> FeatureMatrix:
    """One runtime: a column for each operator, opset and dtype; operators and dtypes in order of appearance."""
    return _matrix(records, _places(records), _place_of)


def by_place_and_runtime(records: Sequence[ConformanceRecord], runtimes: Sequence[str]) -> FeatureMatrix:
    """Several runtimes: a column for each combination of runtime, operator, opset and dtype that has rows."""
    columns = [
        (runtime, *column)
        for runtime in runtimes
        for column in _places([record for record in records if record.runtime == runtime])
    ]
    return _matrix(records, columns, lambda record: (record.runtime, *_place_of(record)))


def by_runtime(records: Sequence[ConformanceRecord], runtimes: Sequence[str]) -> FeatureMatrix:
    """Several runtimes: a column for each; a cell holds the rows of all places."""
    return _matrix(records, [(runtime,) for runtime in runtimes], lambda record: (record.runtime,))


def _places(records: Sequence[ConformanceRecord]) -> list[tuple[str, ...]]:
    operators = list(dict.fromkeys(record.operator for record in records))
    dtypes = list(dict.fromkeys(record.dtype for record in records))
    ordered = sorted({(operators.index(one.operator), one.opset or 0, dtypes.index(one.dtype)) for one in records})
    return [(operators[operator], str(opset or ""), dtypes[dtype]) for operator, opset, dtype in ordered]


def _place_of(record: ConformanceRecord) -> tuple[str, ...]:
    return record.operator, str(record.opset or ""), record.dtype


def _matrix(
    records: Sequence[ConformanceRecord],
    columns: Sequence[tuple[str, ...]],
    column_of: Callable[[ConformanceRecord], tuple[str, ...]],
) -> FeatureMatrix:
    """Rows in order of appearance, those of one group together."""
    groups = list(dict.fromkeys(record.group for record in records))
    found: dict[str, dict[tuple[str, ...], list[ConformanceRecord]]] = {}
    first: dict[str, ConformanceRecord] = {}
    for record in records:
        found.setdefault(record.feature, {}).setdefault(column_of(record), []).append(record)
        first.setdefault(record.feature, record)
    rows = [
        MatrixRow(
            group=first[feature].group,
            feature=feature,
            title=first[feature].title,
            cells=tuple(tuple(cells.get(column, ())) for column in columns),
        )
        for feature, cells in found.items()
    ]
    return FeatureMatrix(columns=tuple(columns), rows=tuple(sorted(rows, key=lambda row: groups.index(row.group))))
