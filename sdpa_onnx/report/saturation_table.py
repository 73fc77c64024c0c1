"""Saturation records as one table: a section for each kind of input and scale rule, a row for each cell.

What it means for the paper's claims is said by `core.saturation_claims`.
"""

from collections.abc import Callable, Sequence

from sdpa_onnx.core.records import Measure, Outcome, SaturationRecord
from sdpa_onnx.core.saturation import LIMIT_Z, MeasureName
from sdpa_onnx.report.figures import figure, share
from sdpa_onnx.report.tables import Column, Section, Table

__all__ = ["saturation_table"]

_NONE = "-"

# Head of the column, measure, how it is written.
_COLUMNS: tuple[tuple[str, MeasureName, Callable[[float], str]], ...] = (
    ("beta/ beta_c", MeasureName.BETA_OVER_CRITICAL, figure),
    ("H/ln S", MeasureName.ENTROPY_SHARE, figure),
    ("keys e^H", MeasureName.EFFECTIVE_KEYS, figure),
    ("max w > .99", MeasureName.SATURATED_ROWS, share),
    ("|J| rms", MeasureName.JACOBIAN_RMS, figure),
    ("grad q rms", MeasureName.QUERY_GRADIENT_RMS, figure),
    ("grad q median", MeasureName.QUERY_GRADIENT_MEDIAN, figure),
    ("grad q p10", MeasureName.QUERY_GRADIENT_P10, figure),
    ("dead rows", MeasureName.QUERY_GRADIENT_DEAD, share),
    ("f16 zeros", MeasureName.FLOAT16_ZEROS, share),
)


def saturation_table(records: Sequence[SaturationRecord]) -> Table:
    """Build the table, rows in the order of the records."""
    gathered: dict[str, list[tuple[str, ...]]] = {}
    for record in records:
        heading = f"{record.target}, sigma^2 {record.sigma**2:.3g}, {record.dtype}, scale {record.scale_rule}"
        gathered.setdefault(heading, []).append(_row(record))
    heads = ("d_k", "length", *(head for head, _, _ in _COLUMNS), "largest z")
    return Table(
        title="Saturation of the softmax",
        heading="inputs and scale",
        columns=tuple(Column(head=head, is_number=True) for head in heads),
        sections=tuple(Section(heading=heading, rows=tuple(rows)) for heading, rows in gathered.items()),
        note="beta: standard deviation of a row's logits, beta_c = sqrt(2 ln S); above 1 the softmax is frozen. e^H: "
        "equal weights of that entropy. |J|: Frobenius norm of the softmax Jacobian. grad q: norm of dL/dq for an "
        "upstream gradient of norm 1. Dead rows: that below a tenth of its median under 1/sqrt(d_k). f16 zeros: "
        f"weights below 2^-25. z: furthest measure from its exact prediction, in standard errors; beyond {LIMIT_Z:g} a "
        "cell disagrees.",
    )


def _row(record: SaturationRecord) -> tuple[str, ...]:
    cells = [_cell(record.measures.get(name.value), write) for _, name, write in _COLUMNS]
    return (str(record.head_dim), str(record.kv_seq_len), *cells, _largest_z(record))


def _cell(measure: Measure | None, write: Callable[[float], str]) -> str:
    return _NONE if measure is None else write(measure.value)


def _largest_z(record: SaturationRecord) -> str:
    """The largest deviation, or the outcome where something else is wrong."""
    found = [one.z for one in record.measures.values() if one.z is not None]
    if not found:
        return record.outcome.value
    furthest = max(found, key=abs)
    is_told = record.outcome is Outcome.OK or abs(furthest) > LIMIT_Z
    return f"{furthest:+.1f}" if is_told else f"{furthest:+.1f} {record.outcome.value}"
