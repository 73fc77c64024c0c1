"""The table of the sizes that a file allows, with what was run at its edges. Judges nothing."""

from collections.abc import Sequence

from sdpa_onnx.core.attention.axis_limits import AxisLimit
from sdpa_onnx.core.records.records import ExportRecord, Record
from sdpa_onnx.report.text.table import Table, text_table

__all__ = ["limit_in_words", "limits_table"]


def limits_table(records: Sequence[Record]) -> Table:
    """The limits of each export and file, each once."""
    found = dict.fromkeys(
        (record.target, str(limit), _tested(limit) or "-", limit.source)
        for record in records
        if isinstance(record, ExportRecord)
        for limit in record.limits
    )
    heads = ("target", "holds for", "tested at", "stated by")
    return text_table(
        "Limits of the axes",
        (dict(zip(heads, cells, strict=True)) for cells in found),
        heading="target",
        note="Holds for: nothing is known of other sizes, and none is requested. Tested at: the smallest and the "
        "largest size that ran and was right.",
    )


def limit_in_words(limit: AxisLimit) -> str:
    """One limit as a clause: condition, what was tested, and what states it."""
    tested = _tested(limit)
    return f"holds for {limit} only{f', tested at {tested}' if tested else ''} ({limit.source})"


def _tested(limit: AxisLimit) -> str:
    sizes = " and ".join(str(size) for size in limit.tested)
    beyond = limit.largest is not None and limit.tested and max(limit.tested) + limit.step <= limit.largest
    return f"{sizes}, not beyond" if beyond else sizes
