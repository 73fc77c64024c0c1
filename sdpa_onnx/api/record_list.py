"""The list of records that the functions of the Python API return; a notebook shows it as tables and charts."""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeVar, overload

from sdpa_onnx.api.tables import TableLibrary, to_csv, to_table

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from sdpa_onnx.core.records.records import Record

__all__ = ["RecordList"]

# Greatest number of records that `repr` shows one by one.
_MOST_IN_REPR = 5

R = TypeVar("R", bound="Record")


class RecordList(list[R]):
    """A list of records. A notebook shows it as tables and charts; `repr` counts them.

    Of a short list `repr` shows each record in a line.

    It is a list in every other way: `records[0]` is a record, and `isinstance(records, list)` holds.

    Args:
        records: The records.
        folder: The run folder that holds them, see `sdpa_onnx.run`; None = they are stored nowhere.
    """

    def __init__(self, records: Iterable[R] = (), /, *, folder: Path | None = None) -> None:
        super().__init__(records)
        self.folder = folder

    def __repr__(self) -> str:
        counts = Counter(type(record).__name__ for record in self)
        bad = Counter(record.outcome.value for record in self if record.outcome.value != "ok")
        kinds = ", ".join(f"{number} {name}" for name, number in counts.items()) or "empty"
        outcomes = ", ".join(f"{number} {outcome}" for outcome, number in bad.items())
        line = f"RecordList({kinds}{f': {outcomes}' if outcomes else ': all ok' if self else ''})"
        return "\n  ".join([line, *map(repr, self)]) if len(self) <= _MOST_IN_REPR else line

    def _repr_html_(self) -> str:
        """Tables and charts for a notebook; all text is escaped, and nothing is loaded."""
        from sdpa_onnx.report.run.notebook import notebook_html

        return notebook_html(self)

    @overload
    def __getitem__(self, place: SupportsIndex) -> R: ...
    @overload
    def __getitem__(self, place: slice) -> "RecordList[R]": ...

    def __getitem__(self, place: SupportsIndex | slice) -> "R | RecordList[R]":
        found = super().__getitem__(place)
        return RecordList(found, folder=self.folder) if isinstance(found, list) else found

    @overload
    def to_table(self, *, library: Literal["pandas"]) -> "pd.DataFrame": ...
    @overload
    def to_table(self, *, library: Literal["polars"]) -> "pl.DataFrame": ...
    @overload
    def to_table(self, *, library: None = None) -> "pd.DataFrame | Any": ...

    def to_table(self, *, library: TableLibrary | None = None) -> Any:
        """The records as a data frame, see `sdpa_onnx.to_table`."""
        return to_table(self, library=library)

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the records as CSV, see `sdpa_onnx.to_csv`."""
        return to_csv(self, path)
