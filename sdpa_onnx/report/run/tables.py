"""The tables of a report, in the order in which they appear; each is built from the same prepared records.

Builds no cells itself. To add a table, add one line to `TABLES`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sdpa_onnx.core.records.records import Record, SaturationRecord
from sdpa_onnx.report.run.check_tables import (
    agreement_table,
    export_table,
    located_table,
    not_ok_table,
    planted_table,
    warning_table,
)
from sdpa_onnx.report.run.form_table import form_table
from sdpa_onnx.report.run.limits_table import limits_table
from sdpa_onnx.report.saturation.tables import prediction_table, saturation_table
from sdpa_onnx.report.text.labels import CommonFactors, usual_factors
from sdpa_onnx.report.text.table import Table
from sdpa_onnx.report.timing.case_names import CaseNames, case_names
from sdpa_onnx.report.timing.comparisons import RecordedComparison, comparisons
from sdpa_onnx.report.timing.cost_tables import circumstances_table, cost_table, work_table
from sdpa_onnx.report.timing.tables import timing_table

__all__ = ["TABLES", "TableInput", "all_tables"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInput:
    """The records of a report, prepared once for all tables.

    Args:
        records: All records.
        usual: Factors that most records share.
        timed: The timing records as comparisons.
        names: The names of their cases.
        saturation: The saturation records.
        ceilings: Ceilings measured in the same run, as in `RunHeader`; empty = not known.
    """

    records: Sequence[Record]
    usual: CommonFactors
    timed: Sequence[RecordedComparison]
    names: CaseNames
    saturation: Sequence[SaturationRecord]
    ceilings: Mapping[str, float]


TABLES: tuple[Callable[[TableInput], Table], ...] = (
    lambda given: not_ok_table(given.records, given.usual),
    lambda given: located_table(given.records),
    lambda given: timing_table(given.timed, given.names),
    lambda given: cost_table(given.timed, given.names),
    lambda given: work_table(given.timed, given.names, given.ceilings),
    lambda given: circumstances_table(given.timed),
    lambda given: agreement_table(given.records, given.usual),
    lambda given: planted_table(given.records),
    lambda given: export_table(given.records),
    lambda given: limits_table(given.records),
    lambda given: form_table(given.records),
    lambda given: saturation_table(given.saturation),
    lambda given: prediction_table(given.saturation),
    lambda given: warning_table(given.records),
)


def all_tables(records: Sequence[Record], ceilings: Mapping[str, float] | None = None) -> list[Table]:
    """Build every table that has a row, in the order of a report.

    Args:
        records: All records of the report.
        ceilings: Ceilings measured in the same run, as in `RunHeader`; None = not known.
    """
    usual, timed = usual_factors(records), comparisons(records)
    given = TableInput(
        records=records,
        usual=usual,
        timed=timed,
        names=case_names(timed, usual),
        saturation=[record for record in records if isinstance(record, SaturationRecord)],
        ceilings=ceilings or {},
    )
    return [table for build in TABLES if (table := build(given)).rows]
