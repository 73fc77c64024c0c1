"""Saturation records as two tables: what was measured, and the main measures next to their exact prediction.

`core.saturation.claims` states what they mean for the claims of the paper.
"""

from collections.abc import Callable, Sequence

from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.core.records.records import MeasuredValue, Outcome, SaturationRecord
from sdpa_onnx.core.saturation.measures import LIMIT_Z, MeasureName, deviations
from sdpa_onnx.report.text.labels import inputs_in_words
from sdpa_onnx.report.text.number_text import NOT_KNOWN, figure, share
from sdpa_onnx.report.text.table import Column, Section, Table, text_table

__all__ = [
    "PREDICTION_TITLE",
    "SATURATION_TITLE",
    "largest_deviation",
    "prediction_table",
    "saturation_table",
    "scale_table",
]

SATURATION_TITLE = "Saturation of the softmax"
PREDICTION_TITLE = "Saturation, measured and predicted"

# Marks a z beyond LIMIT_Z and a cell that disagrees.
_FLAG = "!"


def _short(value: float) -> str:
    """Fewer digits for values over ten decades, so that the row fits 80 columns: 1.07, 0.083, 1e-09."""
    if value >= 0.1 or value == 0:
        return figure(value)
    return f"{value:#.2g}" if value >= 1e-3 else f"{value:.0e}"


def _three(value: float) -> str:
    """Three digits, two below 0.01: never more than six characters."""
    return figure(value) if value >= 0.01 else _short(value)


def _part(value: float) -> str:
    """A share; one that is nearly 0 has no digits."""
    return "<.01 %" if 0 < value < 1e-4 else share(value)


def _signed(z: float) -> str:
    """A deviation with its sign, and no minus before zero."""
    return f"{round(z, 1) + 0.0:+.1f}"


# Head of the column, measure, how it is written.
_COLUMNS: tuple[tuple[str, MeasureName, Callable[[float], str]], ...] = (
    ("beta/ beta_c", MeasureName.BETA_OVER_CRITICAL, figure),
    ("keys e^H", MeasureName.EFFECTIVE_KEYS, figure),
    ("max w > .99", MeasureName.SATURATED_ROWS, _part),
    ("|J| rms", MeasureName.JACOBIAN_RMS, _three),
    ("grad q rms", MeasureName.QUERY_GRADIENT_RMS, _three),
    ("grad q median", MeasureName.QUERY_GRADIENT_MEDIAN, _short),
    ("grad q p10", MeasureName.QUERY_GRADIENT_P10, _short),
    ("dead rows", MeasureName.QUERY_GRADIENT_DEAD, _part),
    ("f16 zeros", MeasureName.FLOAT16_ZEROS, _part),
)
# The columns of the first screen.
_MAIN_COLUMNS: tuple[tuple[str, MeasureName, Callable[[float], str]], ...] = (
    ("effective keys", MeasureName.EFFECTIVE_KEYS, figure),
    ("weight > .99", MeasureName.SATURATED_ROWS, _part),
    ("median gradient", MeasureName.QUERY_GRADIENT_MEDIAN, _short),
    ("float16 zeros", MeasureName.FLOAT16_ZEROS, _part),
)
_PREDICTED: tuple[tuple[str, MeasureName, Callable[[float], str]], ...] = (
    ("H/ln S", MeasureName.ENTROPY_SHARE, _three),
    ("max w > .99", MeasureName.SATURATED_ROWS, _part),
    ("|J| rms", MeasureName.JACOBIAN_RMS, _three),
    ("grad q rms", MeasureName.QUERY_GRADIENT_RMS, _three),
)


def saturation_table(records: Sequence[SaturationRecord]) -> Table:
    """The measures: a section per kind of input and scale rule, rows in the order of the records."""
    rows = [
        {
            "inputs and scale": inputs_in_words(record),
            "d_k": _size(record.head_dim),
            "length": _size(record.kv_seq_len),
            **_measured(record, _COLUMNS),
            "worst z": _worst_z(record),
        }
        for record in records
    ]
    return text_table(
        SATURATION_TITLE,
        rows,
        heading="inputs and scale",
        numbers=rows[0] if rows else (),
        note="beta: standard deviation of a row's logits, beta_c = sqrt(2 ln S); above 1 the softmax is frozen. e^H: "
        "number of equal weights with the same entropy. |J|: Frobenius norm of the softmax Jacobian. grad q: norm of "
        "dL/dq for an upstream gradient of norm 1. Dead rows: rows with a grad q below a tenth of its median under "
        "1/sqrt(d_k). f16 zeros: weights below 2^-25. Worst z: z of the measure furthest from its exact prediction, in "
        f"standard errors; {_FLAG} if it is beyond {LIMIT_Z:g} or the cell disagrees.",
        keys=2,
    )


def scale_table(records: Sequence[SaturationRecord]) -> Table:
    """What the scale changes at the greatest length, for the first screen: a section per scale rule, a row per d_k.

    Args:
        records: Of one kind of input, at least one.
    """
    longest = max(known(record.kv_seq_len) for record in records)
    rows = [
        {
            "scale": f"scale {record.scale_rule}",
            "d_k": _size(record.head_dim),
            **_measured(record, _MAIN_COLUMNS),
        }
        for record in records
        if record.kv_seq_len == longest
    ]
    first = next(record for record in records if record.kv_seq_len == longest)
    variance = f"{known(first.sigma) ** 2:.3g}"
    return text_table(
        f"With {longest} keys ({first.target}, components of variance {variance}, {first.dtype})",
        rows,
        heading="scale",
        numbers=rows[0],
        note="Effective keys: number of equal weights with the same entropy. Weight > .99: rows with such a weight. "
        "Gradient: norm of dL/dq for an upstream gradient of norm 1. Zeros: weights that float16 stores as 0.",
    )


def prediction_table(records: Sequence[SaturationRecord]) -> Table:
    """The main measures and their exact prediction: a section per kind of input, length and scale rule."""
    shown = [record for record in records if any(name.value in record.measures for _, name, _ in _PREDICTED)]
    triples = [head for name, _, _ in _PREDICTED for head in (name, "exact", "z")]
    rows: dict[str, list[tuple[str, ...]]] = {}
    for record in shown:
        heading = f"{inputs_in_words(record)}, length {record.kv_seq_len}"
        rows.setdefault(heading, []).append(_predicted_row(record))
    return Table(  # its columns "exact" and "z" occur several times
        title=PREDICTION_TITLE,
        heading="inputs, scale and length",
        columns=tuple(Column(head=head, is_number=True) for head in ("d_k", *triples)),
        sections=tuple(Section(heading=heading, rows=tuple(members)) for heading, members in rows.items()),
        note="Exact: the expectation over Gaussian logits at this d_k and length. z: measured minus exact, in "
        f"standard errors of the measured value; {_FLAG} beyond {LIMIT_Z:g}. H/ln S: entropy of the weights over its "
        "largest value, 1 where all keys weigh the same. Medians, p10 and dead rows have no exact prediction.",
    )


def _measured(
    record: SaturationRecord, columns: Sequence[tuple[str, MeasureName, Callable[[float], str]]]
) -> dict[str, str]:
    return {head: _cell(record.measures.get(name.value), write) for head, name, write in columns}


def _size(size: int | None) -> str:
    return NOT_KNOWN if size is None else str(size)


def largest_deviation(record: SaturationRecord) -> tuple[str, float] | None:
    """The measure furthest from its prediction and its z; None if nothing was compared."""
    found = [(name, one.z) for name, one in record.measures.items() if one.z is not None]
    return max(found, key=lambda pair: abs(pair[1]), default=None)


def _cell(measure: MeasuredValue | None, write: Callable[[float], str]) -> str:
    return NOT_KNOWN if measure is None else write(measure.value)


def _worst_z(record: SaturationRecord) -> str:
    """The largest deviation with its flag, or the outcome if nothing was compared."""
    found = largest_deviation(record)
    if found is None:
        return NOT_KNOWN if record.outcome is Outcome.OK else record.outcome.value
    is_flagged = record.outcome is not Outcome.OK or bool(deviations(record.measures))
    return f"{_signed(found[1])}{_FLAG if is_flagged else ''}"


def _predicted_row(record: SaturationRecord) -> tuple[str, ...]:
    triples = [_triple(record.measures.get(name.value), write) for _, name, write in _PREDICTED]
    return (_size(record.head_dim), *(cell for triple in triples for cell in triple))


def _triple(measure: MeasuredValue | None, write: Callable[[float], str]) -> tuple[str, str, str]:
    """Measured, predicted, z."""
    if measure is None:
        return (NOT_KNOWN, NOT_KNOWN, NOT_KNOWN)
    predicted = NOT_KNOWN if measure.predicted is None else write(measure.predicted)
    if measure.z is None:
        return (write(measure.value), predicted, NOT_KNOWN)
    flag = "" if abs(measure.z) <= LIMIT_Z else _FLAG
    return (write(measure.value), predicted, f"{_signed(measure.z)}{flag}")
