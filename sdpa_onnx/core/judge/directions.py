"""Score tests: tests whether the error of an output has the direction of a known mistake, such as a wrong scale.

Each test has one estimate per row; its standard error follows from the scatter between rows, from sigma, and from
errors that rows share. Finds small mistakes only, to first order; large ones are found by comparison with the
readings in `core.faults`. Keeps no rows x keys array.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.precision import Precision
from sdpa_onnx.core.attention.stages import Stages
from sdpa_onnx.core.judge.sigma import BlockSigma

__all__ = [
    "BlockDirections",
    "Direction",
    "RowScores",
    "SharedErrors",
    "SizedMistake",
    "clipped",
    "directions_of",
    "estimate_of",
    "find_directions",
    "rounded_scale",
    "score_rows",
]

Float64 = NDArray[np.float64]

# Source: METHOD A.7, except `_RARE`.
_LEAST_ROWS = 8
_LEAST_INFORMATION = 1e-12
_LARGEST_INFORMATION = 10.0
_LEAST_SHARE = 0.02
_STANDARD_ERRORS = 6.0
# A normal number exceeds this once in two million: the false alarm rate for few rows, whose scatter is itself
# uncertain (METHOD A.7 has six standard errors, for many rows).
_RARE = 5.0
_MISSING_RANGE = (0.7, 1.3)
_MISSING_LIMIT = 0.25
# If a key has all of the weight, its absence cannot be tested.
_LEAST_REMAINDER = 1e-6
# A push below this share of the values is float64 rounding noise; the exact push is zero.
_NOISE = 1e-12
# An output within this many steps of its main value may be rounded to that value.
_PULLED_STEPS = 2.0


class Direction(Enum):
    """A mistake that changes the output in a known direction; the value is its name."""

    SCALE = "scale"
    LAST_KEY = "last key missing"
    FIRST_KEY = "first key missing"
    LEAK = "uniform leak"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedMistake:
    """A mistake with an estimate of its size.

    Args:
        name: Name of the direction.
        estimate: Relative error of the scale; share of the key that is missing; share of the weight that leaks.
        standard_error: One sixth of the limit for correct results, see `find_directions`.
        share: Share of the squared error, in units of sigma, that the mistake explains, 0 to 1.
        is_refitted: Whether the estimate was repeated around the scale found; else it holds to first order.
    """

    name: str
    estimate: float
    standard_error: float
    share: float
    is_refitted: bool = False

    @property
    def says(self) -> str:
        """The finding as a sentence."""
        match Direction(self.name):
            case Direction.SCALE:
                if not self.is_refitted:
                    return f"The errors resemble a scale that is off by roughly {100.0 * self.estimate:.1g} %."
                return f"The scale is off by {_percent(self.estimate, self.standard_error)}."
            case Direction.LAST_KEY:
                return f"The last visible key of each query is missing ({_with_error(self)} of its weight)."
            case Direction.FIRST_KEY:
                return f"The first visible key of each query is missing ({_with_error(self)} of its weight)."
            case Direction.LEAK:
                share = _percent(self.estimate, self.standard_error)
                return f"Equal weight leaks to all visible keys: {share} of the total weight."


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDirections:
    """The direction in which each mistake changes the output of one block.

    Args:
        pushes: (directions, rows, v_head_dim), change of the output in units of sigma for a mistake of size 1,
            without the component along the output (which the normalisation of rounded weights can cause).
        information: (directions, rows), sum of squares of the pushes.
    """

    pushes: Float64
    information: Float64


@dataclass(frozen=True, slots=True, kw_only=True)
class RowScores:
    """Scores of one block of an actual output for each mistake: (directions, rows)."""

    information: Float64
    products: Float64


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedErrors:
    """Errors that the rows of one attention have in common, computed in `shared_errors.py`.

    Args:
        variances: (directions,), variance of each estimate due to errors of keys and values that all rows use.
        clusters: Per block: (rows,), cluster index; rows of one cluster are nearly equal and count as one.
    """

    variances: Float64
    clusters: tuple[NDArray[np.int64], ...]


def directions_of(stages: Stages, sigma: BlockSigma, precision: Precision) -> BlockDirections:
    """Compute the directions of one block, in the order of `Direction`.

    Source: METHOD A.7: scale d o / d ln c; missing key w_k (o - v_k) / (1 - w_k); leak mean(v) - o.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        leak = _leak(stages)
        raw = (
            stages.per_scale,
            _missing_key(stages, last=True),
            _missing_key(stages, last=False),
            leak,
        )
        used = (sigma.sigma > 0.0) & _varies(leak, stages.output, precision) & ~_is_pulled(stages, precision)
        inverse = np.where(used, 1.0 / sigma.sigma, 0.0)
        pushes = np.stack(raw) * inverse
        output = stages.output * inverse
        size = np.vecdot(output, output)
        along = np.vecdot(pushes, output) / np.where(size > 0.0, size, 1.0)
        pushes -= output * along[..., None]
        reach = float(np.abs(stages.block.value[stages.seen]).max(initial=0.0)) * inverse
        pushes[~np.isfinite(pushes) | (np.abs(pushes) < _NOISE * reach)] = 0.0
        return BlockDirections(pushes=pushes, information=np.vecdot(pushes, pushes))


def _varies(leak: Float64, output: Float64, precision: Precision) -> NDArray[np.bool_]:
    """Find columns in which the output varies by more than one step of its format.

    If value has a large common offset, all queries are rounded to the same
    few numbers, and the rounding error equals the variation of the output.
    """
    step = 2.0 * precision.output.unit_roundoff * np.abs(output).max(0, initial=0.0)
    varies: NDArray[np.bool_] = np.sqrt((leak * leak).mean(0)) > step if leak.size else step > 0.0
    return varies


def _is_pulled(stages: Stages, precision: Precision) -> NDArray[np.bool_]:
    """Find elements so close to the value of their row's main key that they are rounded to it.

    All errors of such a row have one direction, as if the scale were larger or the other keys missing.
    """
    if not stages.weights.shape[1]:
        return np.zeros(stages.output.shape, dtype=bool)
    main = stages.block.value[stages.weights.argmax(1)]
    step = 2.0 * precision.output.unit_roundoff * np.abs(stages.output)
    if precision.operand is not None:
        step *= max(1.0, precision.operand.unit_roundoff / precision.output.unit_roundoff)
    pulled: NDArray[np.bool_] = np.abs(stages.output - main) <= _PULLED_STEPS * step
    return pulled


def score_rows(directions: BlockDirections, deviations: Float64) -> RowScores:
    """Project the deviations (error / sigma) of one block on each direction."""
    return RowScores(information=directions.information, products=np.vecdot(directions.pushes, deviations[None]))


def find_directions(
    scores: Sequence[RowScores], square_sum: float, precision: Precision, shared: SharedErrors | None
) -> tuple[SizedMistake, ...]:
    """Find the mistakes that the errors show; the one that explains most comes first.

    Correct results may reach six standard errors. The standard error follows from the scatter between clusters of
    rows (with Student's t for few clusters), or from scatter and sigma together, whichever is smaller; the errors
    that rows share are added.

    Args:
        scores: Scores of all blocks.
        square_sum: Sum of all squared deviations of the rows judged.
        precision: The declared precision; an effect that its rounding can cause is not a mistake.
        shared: Errors that rows have in common. None = none, for a first test: shared errors only widen the
            standard error, so a mistake that is not significant without them is not significant with them.

    Source: METHOD A.7; docs/decisions/0004.
    """
    found = []
    labels = None if shared is None else np.concatenate([np.zeros(0, dtype=np.int64), *shared.clusters])
    for direction in Direction:
        estimate = _estimate(direction, scores, square_sum)
        if estimate is None:
            continue
        error = _standard_error(estimate, estimate.rows if labels is None else labels[estimate.rows])
        if error is None:
            continue
        common = 0.0 if shared is None else float(shared.variances[list(Direction).index(direction)])
        finding = SizedMistake(
            name=direction.value,
            estimate=estimate.estimate,
            standard_error=math.hypot(error, math.sqrt(common)),
            share=estimate.share,
        )
        if _is_significant(direction, finding, precision):
            found.append(finding)
    return tuple(sorted(found, key=lambda finding: -finding.share))


def estimate_of(direction: Direction, scores: Sequence[RowScores], square_sum: float) -> tuple[float, float] | None:
    """Estimate one mistake and its standard error, significant or not; None with too few rows."""
    estimate = _estimate(direction, scores, square_sum)
    if estimate is None:
        return None
    error = _standard_error(estimate, estimate.rows)
    return None if error is None else (estimate.estimate, error)


def rounded_scale(scores: Sequence[RowScores], square_sum: float, precision: Precision) -> float:
    """Estimate the relative error of the scale, limited to what declared rounding explains; 0 if not significant."""
    found = _estimate(Direction.SCALE, scores, square_sum)
    if found is None or found.share <= _LEAST_SHARE:
        return 0.0
    if not abs(found.estimate) > _STANDARD_ERRORS * float(np.linalg.norm(found.scatter)):
        return 0.0
    limit = _legitimate(Direction.SCALE, precision)
    return min(max(found.estimate, -limit), limit)


def clipped(information: Float64) -> Float64:
    """Limit the information of each row to ten times the median of the rows with information."""
    known = information[information > 0.0]
    return np.minimum(information, _LARGEST_INFORMATION * np.median(known)) if known.size else information


@dataclass(frozen=True, slots=True, kw_only=True)
class _Estimate:
    """Estimate of a direction with the contribution of each row to its error.

    Args:
        rows: Indices of the rows, over all blocks, that have an estimate.
        weights: Weight of each of them; the sum is 1.
        scatter: Weight times (the row's estimate - the estimate).
        spread: Weight times the row's standard error according to sigma.
    """

    estimate: float
    share: float
    rows: NDArray[np.int64]
    weights: Float64
    scatter: Float64
    spread: Float64


def _estimate(direction: Direction, scores: Sequence[RowScores], square_sum: float) -> _Estimate | None:
    """Average the rows' estimates weighted by their information, limited to ten times the median."""
    if not scores or square_sum <= 0.0:
        return None
    index = list(Direction).index(direction)
    information = np.concatenate([score.information[index] for score in scores])
    products = np.concatenate([score.products[index] for score in scores])
    used = information > _LEAST_INFORMATION * max(float(information.max(initial=0.0)), 1e-300)
    if np.count_nonzero(used) < _LEAST_ROWS:
        return None
    information, products = information[used], products[used]
    estimates, weight = products / information, clipped(information)
    total = float(weight.sum())
    estimate = float((weight * estimates).sum()) / total
    return _Estimate(
        estimate=estimate,
        share=min(1.0, estimate * estimate * total / square_sum),
        rows=np.flatnonzero(used),
        weights=weight / total,
        scatter=weight * (estimates - estimate) / total,
        spread=weight / np.sqrt(information) / total,
    )


def _standard_error(estimate: _Estimate, labels: NDArray[np.int64]) -> float | None:
    """Return one sixth of the limit for clusters of independent errors; None if there are too few clusters.

    Rows of one cluster have the same errors, so they count as one row with the sum of their weights.
    """
    _, places = np.unique(labels, return_inverse=True)
    weights, scatter, spread = (
        np.bincount(places, part) for part in (estimate.weights, estimate.scatter, estimate.spread)
    )
    if weights.size < _LEAST_ROWS:
        return None
    scattered = float(np.linalg.norm(scatter))
    effective = 1.0 / float(weights @ weights)
    student = max(_STANDARD_ERRORS, _student_reach(effective - 1.0)) / _STANDARD_ERRORS
    return min(student * scattered, math.hypot(scattered, float(np.linalg.norm(spread))))


def _student_reach(freedom: float) -> float:
    """Quantile of Student's t that is exceeded as rarely as `_RARE` by a normal number.

    Source: D. L. Wallace, Annals of Mathematical Statistics 30(4), 1959, solved for t.
    """
    if freedom < 1.0:
        return math.inf
    normal = _RARE * (8.0 * freedom + 3.0) / (8.0 * freedom + 1.0)
    return math.sqrt(freedom * math.expm1(normal * normal / freedom))


def _is_significant(direction: Direction, finding: SizedMistake, precision: Precision) -> bool:
    if not (np.isfinite(finding.estimate) and finding.share > _LEAST_SHARE):
        return False
    if direction in (Direction.LAST_KEY, Direction.FIRST_KEY):
        # Rows can share the rounding error of a common offset of value, so the size must fit too.
        low, high = _MISSING_RANGE
        if not low < finding.estimate < high:
            return False
    return abs(finding.estimate) > _legitimate(direction, precision) + _STANDARD_ERRORS * finding.standard_error


def _legitimate(direction: Direction, precision: Precision) -> float:
    """Largest estimate that rounding in the declared precision can cause.

    Keys and values that are rounded inside the products have the same error for all queries.
    """
    operand = 0.0 if precision.operand is None else precision.operand.unit_roundoff
    match direction:
        case Direction.SCALE:
            # A scale rounded to the format of the prescaled operands.
            stored = max(precision.scores.unit_roundoff, precision.prescaled.unit_roundoff, operand)
            return max(2.0 * stored, 8.0 * precision.softmax.unit_roundoff)
        case Direction.LAST_KEY | Direction.FIRST_KEY:
            return _MISSING_LIMIT
        case Direction.LEAK:
            return 4.0 * max(precision.weights.unit_roundoff, precision.output.unit_roundoff, operand)


def _missing_key(stages: Stages, *, last: bool) -> Float64:
    """Compute the change of the output if the last or first visible key of each query were missing."""
    visible, weights, output = stages.visible, stages.weights, stages.output
    if not visible.shape[1]:
        return np.zeros_like(output)
    index = visible.shape[1] - 1 - visible[:, ::-1].argmax(1) if last else visible.argmax(1)
    weight = weights[np.arange(index.size), index][:, None]
    change: Float64 = weight / np.maximum(1.0 - weight, _LEAST_REMAINDER) * (output - stages.block.value[index])
    return change


def _leak(stages: Stages) -> Float64:
    """Compute the change of the output if the weight were distributed equally over the visible keys."""
    value = np.where(stages.seen[:, None], stages.block.value, 0.0)
    count = np.count_nonzero(stages.visible, axis=1, keepdims=True)
    if stages.visible.all() and stages.visible.size:
        mean = np.broadcast_to(value.mean(0), stages.output.shape)
    else:
        mean = (stages.visible.astype(np.float64) @ value) / np.maximum(count, 1)
    leak: Float64 = mean - stages.output
    return leak


def _percent(estimate: float, standard_error: float) -> str:
    return f"{100.0 * estimate:.2g} % (+- {100.0 * standard_error:.1g} %)"


def _with_error(finding: SizedMistake) -> str:
    return f"{finding.estimate:.2f} +- {finding.standard_error:.2f}"
