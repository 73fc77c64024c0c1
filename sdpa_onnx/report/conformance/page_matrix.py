"""The matrix of the HTML page: every row of every runtime in a cell, with its tooltip.

Text only; the template escapes it and lays it out.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from sdpa_onnx.core.records.records import ConformanceRecord
from sdpa_onnx.report.conformance.matrix import Cell, Mark, MatrixRow, by_place_and_runtime, mark_of
from sdpa_onnx.report.conformance.run import ConformanceRun, evidence, place, ran_words, verdict_word

__all__ = ["matrix_context"]

Column = tuple[str, ...]


def matrix_context(run: ConformanceRun, targets: Mapping[int, str]) -> dict[str, Any] | None:
    """The matrix in the form that the template reads, or None without rows.

    Args:
        targets: id() of a row -> the anchor of its finding, or "".
    """
    if not run.records:
        return None
    matrix = by_place_and_runtime(run.records, run.runtimes)
    edges = [_is_edge(matrix.columns, index) for index in range(len(matrix.columns))]
    groups = [(name, list(rows)) for name, rows in groupby(matrix.rows, key=lambda row: row.group)]
    return {
        "has_runtimes": len(run.runtimes) > 1,
        "runtimes": _heads(matrix.columns, 1),
        "places": [{"span": head["span"], "parts": _parts(head["text"])} for head in _heads(matrix.columns, 3)],
        "dtypes": [{"text": column[3], "is_edge": edge} for column, edge in zip(matrix.columns, edges, strict=True)],
        "groups": [
            {
                "name": name or "features",
                "verdicts": _verdicts(record for row in rows for cell in row.cells for record in cell),
                "rows": [_row(row, edges, targets) for row in rows],
            }
            for name, rows in groups
        ],
    }


def _row(row: MatrixRow, edges: Sequence[bool], targets: Mapping[int, str]) -> dict[str, Any]:
    return {
        "feature": row.feature,
        "title": row.title,
        "verdicts": _verdicts(record for cell in row.cells for record in cell),
        "cells": [{**_cell(cell, targets), "is_edge": edge} for cell, edge in zip(row.cells, edges, strict=True)],
    }


def _cell(cell: Cell, targets: Mapping[int, str]) -> dict[str, str]:
    if not cell:
        return {"mark": "", "verdict": "", "title": "", "target": ""}
    worst = min(cell, key=lambda record: list(Mark).index(mark_of(record)))
    lines = [f"{record.runtime}, {record.feature}, {place(record)}: {_verdict_text(record)}" for record in cell]
    return {
        "mark": str(mark_of(worst)),
        "verdict": verdict_word(worst),
        "title": " / ".join(lines),
        "target": targets.get(id(worst), ""),
    }


def _verdict_text(record: ConformanceRecord) -> str:
    ran = f", {ran_words(record)}" if record.path else ""
    return f"{verdict_word(record)}{ran}. {evidence(record)}".strip()


def _verdicts(records: Any) -> str:
    return " ".join(dict.fromkeys(verdict_word(record) for record in records))


def _heads(columns: Sequence[Column], depth: int) -> list[dict[str, Any]]:
    """Neighbouring columns that share their first parts, under one head."""
    groups = [(key, len(list(members))) for key, members in groupby(columns, key=lambda column: column[:depth])]
    return [{"text": " ".join(part for part in key[max(depth - 2, 0) :] if part), "span": span} for key, span in groups]


def _is_edge(columns: Sequence[Column], index: int) -> bool:
    return index == 0 or columns[index - 1][:3] != columns[index][:3]


def _parts(text: str) -> list[str]:
    """Split a long operator name where a line may break: com. microsoft. Multi Head Attention."""
    return re.findall(r"[A-Z]?[^A-Z.\s]*[.\s]?|\S", text)
