"""Measures the saturation of a softmax by row and over draws of keys; predictions are in `theory`, not here."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.records.records import MeasuredValue
from sdpa_onnx.errors import PlanError

__all__ = [
    "DEAD_BELOW",
    "FLOAT16_LARGEST",
    "FLOAT16_SMALLEST",
    "LEAST_DRAWS",
    "LIMIT_Z",
    "MEANINGS",
    "SATURATED_WEIGHT",
    "GradientMedians",
    "MeasureMeaning",
    "MeasureName",
    "RowStatistics",
    "concatenate_rows",
    "critical_spread",
    "deviations",
    "gradient_medians",
    "measure_rows",
    "summarise",
]

Array = NDArray[np.generic]
Float64 = NDArray[np.float64]

# A row is saturated if its largest weight exceeds this (METHOD D.3).
SATURATED_WEIGHT = 0.99
# A row is dead if its gradient is below this share of the median under 1/sqrt(d_k) (METHOD D.3).
DEAD_BELOW = 0.1
# Numbers below the first round to zero in float16; the second is its largest. Source: IEEE 754-2019, table 3.5.
FLOAT16_SMALLEST, FLOAT16_LARGEST = 2.0**-25, 65504.0
# Rows of one draw share their keys, so standard errors follow from the scatter between draws (METHOD D.7).
LEAST_DRAWS = 4
# A measure whose |z| exceeds this deviates from its prediction (METHOD D.7): once in 16 000 by chance.
LIMIT_Z = 4.0
# Smallest relative standard error, because float32 weights are accurate to about ten units of roundoff.
_RESOLUTION = 1e-6
_LOW_QUANTILE = 0.1


class MeasureName(StrEnum):
    """Names of the measures in a `SaturationRecord`; see MEANINGS."""

    PRODUCT_MEAN = "product_mean"
    PRODUCT_VARIANCE = "product_variance"
    LOGIT_SPREAD = "logit_spread"
    BETA = "beta"
    BETA_OVER_CRITICAL = "beta_over_critical"
    LOG_PARTITION = "log_partition"
    ENTROPY = "entropy"
    ENTROPY_SHARE = "entropy_share"
    EFFECTIVE_KEYS = "effective_keys"
    SQUARE_SUM = "square_sum"
    PARTICIPATION = "participation"
    LARGEST_WEIGHT = "largest_weight"
    SATURATED_ROWS = "saturated_rows"
    JACOBIAN_RMS = "jacobian_rms"
    JACOBIAN_MEDIAN = "jacobian_median"
    LOGIT_GRADIENT_RMS = "logit_gradient_rms"
    LOGIT_GRADIENT_MEDIAN = "logit_gradient_median"
    LOGIT_GRADIENT_P10 = "logit_gradient_p10"
    LOGIT_GRADIENT_DEAD = "logit_gradient_dead"
    QUERY_GRADIENT_RMS = "query_gradient_rms"
    QUERY_GRADIENT_MEDIAN = "query_gradient_median"
    QUERY_GRADIENT_P10 = "query_gradient_p10"
    QUERY_GRADIENT_DEAD = "query_gradient_dead"
    FLOAT16_ZEROS = "float16_zeros"
    FLOAT16_OVERFLOW = "float16_overflow"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureMeaning:
    """Definition of a measure: its unit ("" = a plain number, "share" = of rows, weights or products) and one line."""

    unit: str
    text: str


MEANINGS: dict[MeasureName, MeasureMeaning] = {
    MeasureName.PRODUCT_MEAN: MeasureMeaning(unit="", text="mean of q.k"),
    MeasureName.PRODUCT_VARIANCE: MeasureMeaning(
        unit="", text="mean square of q.k, d_k sigma^4 if components are independent"
    ),
    MeasureName.LOGIT_SPREAD: MeasureMeaning(
        unit="", text="standard deviation of the scaled logits of a row, mean over rows"
    ),
    MeasureName.BETA: MeasureMeaning(unit="", text="the same, root mean square over rows: scale sigma^2 sqrt(d_k)"),
    MeasureName.BETA_OVER_CRITICAL: MeasureMeaning(
        unit="", text="beta over sqrt(2 ln S): soft below 0.5, frozen above 1 (a few keys get all the weight)"
    ),
    MeasureName.LOG_PARTITION: MeasureMeaning(unit="nats", text="ln of the sum of e^logit, mean over rows"),
    MeasureName.ENTROPY: MeasureMeaning(unit="nats", text="entropy H of the weights, mean over rows"),
    MeasureName.ENTROPY_SHARE: MeasureMeaning(unit="", text="H over ln S, its largest possible value"),
    MeasureName.EFFECTIVE_KEYS: MeasureMeaning(unit="keys", text="e^H: number of equal weights with that entropy"),
    MeasureName.SQUARE_SUM: MeasureMeaning(unit="", text="sum of squared weights, mean over rows; 1/S flat, 1 one-hot"),
    MeasureName.PARTICIPATION: MeasureMeaning(
        unit="keys", text="1 over that mean: number of keys that share the weight"
    ),
    MeasureName.LARGEST_WEIGHT: MeasureMeaning(unit="", text="largest weight, mean over rows"),
    MeasureName.SATURATED_ROWS: MeasureMeaning(unit="share", text="rows whose largest weight is above 0.99"),
    MeasureName.JACOBIAN_RMS: MeasureMeaning(
        unit="", text="Frobenius norm of the softmax Jacobian, root mean square over rows"
    ),
    MeasureName.JACOBIAN_MEDIAN: MeasureMeaning(unit="", text="the same, median over rows"),
    MeasureName.LOGIT_GRADIENT_RMS: MeasureMeaning(
        unit="", text="norm of dL/d(scaled logits) for an upstream gradient of norm 1, root mean square over rows"
    ),
    MeasureName.LOGIT_GRADIENT_MEDIAN: MeasureMeaning(unit="", text="the same, median over rows"),
    MeasureName.LOGIT_GRADIENT_P10: MeasureMeaning(
        unit="", text="the same, 10 % quantile over rows; below 1e-15 it is rounding noise"
    ),
    MeasureName.LOGIT_GRADIENT_DEAD: MeasureMeaning(
        unit="share", text="rows where it is below a tenth of its median under 1/sqrt(d_k)"
    ),
    MeasureName.QUERY_GRADIENT_RMS: MeasureMeaning(
        unit="", text="norm of dL/d(query) for an upstream gradient of norm 1, root mean square over rows"
    ),
    MeasureName.QUERY_GRADIENT_MEDIAN: MeasureMeaning(unit="", text="the same, median over rows"),
    MeasureName.QUERY_GRADIENT_P10: MeasureMeaning(
        unit="", text="the same, 10 % quantile over rows; below 1e-15 it is rounding noise"
    ),
    MeasureName.QUERY_GRADIENT_DEAD: MeasureMeaning(
        unit="share", text="rows where it is below a tenth of its median under 1/sqrt(d_k)"
    ),
    MeasureName.FLOAT16_ZEROS: MeasureMeaning(unit="share", text="weights below 2^-25, which float16 stores as 0"),
    MeasureName.FLOAT16_OVERFLOW: MeasureMeaning(
        unit="share", text="products q.k above 65504, which float16 cannot store"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStatistics:
    """Statistics of each row, all of shape (rows,); NaN for a row whose weights are not finite.

    Args:
        product_mean, product_square: Mean over the keys of q.k and (q.k)^2, before the scale.
        logit_variance: Unbiased variance over the keys of the scaled logits.
        log_partition: ln sum e^logit, nats.
        entropy: -sum w ln w, nats.
        square_sum: sum w^2.
        largest_weight: max w.
        jacobian_square: |diag w - w w^T|_F^2.
        float16_zeros, float16_overflow: Shares of the keys.
        logit_gradient, query_gradient: Norms of dL/dlogits and dL/dquery.
    """

    product_mean: Float64
    product_square: Float64
    logit_variance: Float64
    log_partition: Float64
    entropy: Float64
    square_sum: Float64
    largest_weight: Float64
    jacobian_square: Float64
    float16_zeros: Float64
    float16_overflow: Float64
    logit_gradient: Float64
    query_gradient: Float64


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientMedians:
    """Median norms of dL/dlogits and dL/dquery under 1/sqrt(d_k), the reference for dead rows."""

    logit: float
    query: float


def critical_spread(kv_seq_len: int) -> float:
    """Compute beta_c = sqrt(2 ln S); with a larger logit spread the softmax puts all weight on a few keys.

    Source: Derrida 1981 (random energy model); METHOD D.1.
    """
    return math.sqrt(2.0 * math.log(kv_seq_len))


def measure_rows(
    logits: Array, weights: Array, *, scale: float, logit_gradient: Float64, query_gradient: Float64
) -> RowStatistics:
    """Compute the statistics of each row.

    Args:
        logits: (rows, keys), scale * q.k.
        weights: (rows, keys), softmax of the logits, computed by a runtime.
        scale: Factor in the logits, not 0.
        logit_gradient, query_gradient: (rows,), norms.

    Source: METHOD D.1 to D.5.
    """
    scores, probs = logits.astype(np.float64), weights.astype(np.float64)
    products = scores / scale
    overflow = ~(np.abs(products) <= FLOAT16_LARGEST)
    broken = ~(np.isfinite(scores).all(1) & np.isfinite(probs).all(1))
    scores[broken], probs[broken], products[broken] = 0.0, 0.0, 0.0
    highest = scores.max(1, keepdims=True)
    found = {
        "product_mean": products.mean(1),
        "product_square": (products * products).mean(1),
        "logit_variance": scores.var(1, ddof=1),
        "log_partition": highest[:, 0] + np.log(np.exp(scores - highest).sum(1)),
        "entropy": -(probs * np.log(np.where(probs > 0.0, probs, 1.0))).sum(1),
        "square_sum": (probs * probs).sum(1),
        "largest_weight": probs.max(1),
        "jacobian_square": jacobian_square(probs),
        "float16_zeros": (probs < FLOAT16_SMALLEST).mean(1),
        "logit_gradient": logit_gradient.astype(np.float64),
        "query_gradient": query_gradient.astype(np.float64),
    }
    for statistic in found.values():
        statistic[broken] = np.nan
    return RowStatistics(**found, float16_overflow=overflow.mean(1))


def jacobian_square(weights: Float64) -> Float64:
    """Compute |diag w - w w^T|_F^2 = p2 - 2 p3 + p2^2 of each row, p_n = sum w^n.

    The largest weight is handled separately as 1 - rest, with rest the sum of the other
    weights, because the formula above cancels completely near one-hot weights.

    Args:
        weights: (rows, keys).

    Source: METHOD D.2.
    """
    largest = weights.argmax(1)[:, None]
    top = np.take_along_axis(weights, largest, 1)[:, 0]
    others = weights.copy()
    np.put_along_axis(others, largest, 0.0, 1)
    squares = others * others
    rest, second, third = others.sum(1), squares.sum(1), (squares * others).sum(1)
    result: Float64 = top**2 * (rest**2 + 2.0 * second) + second - 2.0 * third + second**2
    return result


def concatenate_rows(blocks: Sequence[RowStatistics]) -> RowStatistics:
    """Concatenate the rows of several blocks of one draw."""
    return RowStatistics(
        **{name: np.concatenate([getattr(block, name) for block in blocks]) for name in RowStatistics.__slots__}
    )


def gradient_medians(norms: Sequence[tuple[Float64, Float64]]) -> GradientMedians:
    """Compute the medians over the rows of all draws.

    Args:
        norms: For each draw under 1/sqrt(d_k): norms of dL/dlogits and dL/dquery, each (rows,).
    """
    logit, query = (np.concatenate(parts) for parts in zip(*norms, strict=True))
    return GradientMedians(logit=float(np.median(logit)), query=float(np.median(query)))


def deviations(measures: Mapping[str, MeasuredValue]) -> dict[str, MeasuredValue]:
    """Return the measures with |z| above LIMIT_Z, the largest first."""
    beyond = [(name, one) for name, one in measures.items() if one.z is not None and not abs(one.z) <= LIMIT_Z]
    return dict(sorted(beyond, key=lambda item: -abs(item[1].z or 0.0)))


def summarise(
    draws: Sequence[RowStatistics],
    *,
    kv_seq_len: int,
    predicted: Mapping[MeasureName, float],
    alive: GradientMedians,
) -> dict[str, MeasuredValue]:
    """Summarise draws: value, standard error, prediction and deviation of each measure.

    Means, and functions of means, are computed over the draws; medians and
    quantiles over all rows. The standard error always follows from the scatter
    between draws, because rows of one draw share their keys. Rows whose weights are
    not finite are left out; then no measure is compared with a prediction.

    Args:
        draws: At least LEAST_DRAWS, with equal numbers of rows.
        kv_seq_len: Keys per row.
        predicted: Expectation by measure, if there is one.
        alive: Gradient medians of the same draws.

    Returns:
        Measures by name, in the order of MeasureName.

    Raises:
        PlanError: If there are too few draws.
    """
    if len(draws) < LEAST_DRAWS:
        raise PlanError(f"draws is {len(draws)}; it must be at least {LEAST_DRAWS}.", hint="Standard errors need them.")
    all_finite = all(bool(np.isfinite(draw.entropy).all()) for draw in draws)
    columns = _columns(kv_seq_len, alive)
    measures: dict[str, MeasuredValue] = {}
    for name in MeasureName:
        parts = [_finite(columns[name].rows(draw)) for draw in draws]
        if all(part.size for part in parts):
            known = all_finite or name is MeasureName.FLOAT16_OVERFLOW
            measures[name.value] = _measure(name, columns[name], parts, predicted.get(name) if known else None)
    return measures


@dataclass(frozen=True, slots=True)
class _Column:
    """How a measure is computed from row statistics: values per row, reduced over a draw, then transformed."""

    rows: Callable[[RowStatistics], Float64]
    transform: Callable[[float], float] = float
    quantile: float | None = None  # of all rows; None = the mean


def _columns(kv_seq_len: int, alive: GradientMedians) -> dict[MeasureName, _Column]:
    critical, log_keys = critical_spread(kv_seq_len), math.log(kv_seq_len)
    dead_logit, dead_query = DEAD_BELOW * alive.logit, DEAD_BELOW * alive.query
    return {
        MeasureName.PRODUCT_MEAN: _Column(lambda draw: draw.product_mean),
        MeasureName.PRODUCT_VARIANCE: _Column(lambda draw: draw.product_square),
        MeasureName.LOGIT_SPREAD: _Column(lambda draw: np.sqrt(draw.logit_variance)),
        MeasureName.BETA: _Column(lambda draw: draw.logit_variance, _root),
        MeasureName.BETA_OVER_CRITICAL: _Column(lambda draw: draw.logit_variance, lambda mean: _root(mean) / critical),
        MeasureName.LOG_PARTITION: _Column(lambda draw: draw.log_partition),
        MeasureName.ENTROPY: _Column(lambda draw: draw.entropy),
        MeasureName.ENTROPY_SHARE: _Column(lambda draw: draw.entropy, lambda mean: mean / log_keys),
        MeasureName.EFFECTIVE_KEYS: _Column(lambda draw: draw.entropy, math.exp),
        MeasureName.SQUARE_SUM: _Column(lambda draw: draw.square_sum),
        MeasureName.PARTICIPATION: _Column(lambda draw: draw.square_sum, lambda mean: 1.0 / max(mean, 1e-300)),
        MeasureName.LARGEST_WEIGHT: _Column(lambda draw: draw.largest_weight),
        MeasureName.SATURATED_ROWS: _Column(lambda draw: _is(draw.largest_weight > SATURATED_WEIGHT, draw)),
        MeasureName.JACOBIAN_RMS: _Column(lambda draw: draw.jacobian_square, _root),
        MeasureName.JACOBIAN_MEDIAN: _Column(lambda draw: draw.jacobian_square, _root, 0.5),
        MeasureName.LOGIT_GRADIENT_RMS: _Column(lambda draw: draw.logit_gradient**2, _root),
        MeasureName.LOGIT_GRADIENT_MEDIAN: _Column(lambda draw: draw.logit_gradient, float, 0.5),
        MeasureName.LOGIT_GRADIENT_P10: _Column(lambda draw: draw.logit_gradient, float, _LOW_QUANTILE),
        MeasureName.LOGIT_GRADIENT_DEAD: _Column(lambda draw: _is(draw.logit_gradient < dead_logit, draw)),
        MeasureName.QUERY_GRADIENT_RMS: _Column(lambda draw: draw.query_gradient**2, _root),
        MeasureName.QUERY_GRADIENT_MEDIAN: _Column(lambda draw: draw.query_gradient, float, 0.5),
        MeasureName.QUERY_GRADIENT_P10: _Column(lambda draw: draw.query_gradient, float, _LOW_QUANTILE),
        MeasureName.QUERY_GRADIENT_DEAD: _Column(lambda draw: _is(draw.query_gradient < dead_query, draw)),
        MeasureName.FLOAT16_ZEROS: _Column(lambda draw: draw.float16_zeros),
        MeasureName.FLOAT16_OVERFLOW: _Column(lambda draw: draw.float16_overflow),
    }


def _measure(name: MeasureName, column: _Column, parts: Sequence[Float64], predicted: float | None) -> MeasuredValue:
    if column.quantile is None:
        each = np.array([part.mean() for part in parts])
        centre = float(each.mean())
    else:
        each = np.array([np.quantile(part, column.quantile) for part in parts])
        centre = float(np.quantile(np.concatenate(parts), column.quantile))
    scatter = float(each.std(ddof=1)) / math.sqrt(each.size)
    value = column.transform(centre)
    error = abs(column.transform(centre + scatter) - column.transform(centre - scatter)) / 2.0
    if predicted is None:
        return MeasuredValue(value=value, standard_error=error)
    if MEANINGS[name].unit == "share" and np.count_nonzero((each > 0.0) & (each < 1.0)) < len(parts) / 2:
        # In most draws the share is 0 or 1, so their scatter is too small; use the binomial error over the rows.
        rows = sum(part.size for part in parts)
        error = max(error, math.sqrt(max(predicted * (1.0 - predicted), 1.0 / rows) / rows))
    error = max(error, _RESOLUTION * abs(predicted))
    z = _normal_deviate((value - predicted) / error, len(parts) - 1) if error > 0.0 else None
    return MeasuredValue(value=value, predicted=predicted, standard_error=error, z=z)


def _normal_deviate(t: float, degrees: int) -> float:
    """Convert a t statistic to a normal deviate.

    A standard error from few draws is itself uncertain: |t| exceeds 4 by chance in
    2.8 % of cases with 4 draws, 0.1 % with 16, and 0.006 % if it were known.

    Args:
        t: Deviation over its standard error.
        degrees: Draws - 1.

    Source: Wallace, Ann. Math. Stat. 30 (1959); at 4 it is 0.11 low for 4 draws, 0.02 for 8.
    """
    root = math.sqrt(degrees * math.log1p(t * t / degrees))
    return math.copysign((8 * degrees + 1) / (8 * degrees + 3) * root, t)


def _finite(rows: Float64) -> Float64:
    return rows[np.isfinite(rows)]


def _is(truth: NDArray[np.bool_], draw: RowStatistics) -> Float64:
    """Convert to 1 and 0 for finite rows, NaN for the others."""
    return np.where(np.isfinite(draw.entropy), truth.astype(np.float64), np.nan)


def _root(mean: float) -> float:
    return math.sqrt(max(mean, 0.0))
