"""Compares Attention's fourth output, the scores at one of four stages, with the oracle and a proven error bound.

The bound has the same error terms as that of the output. If the stage hides a key, its score must be
-inf; a query without a visible key has weights of zero. A NaN in the inputs must reach the scores computed from it.
Uses no statistical test.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import HeadBlock, QkOutputMode, head_blocks, split_heads
from sdpa_onnx.core.attention.precision import Precision
from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.attention.stages import Stages, stages_of
from sdpa_onnx.core.judge.agreement import Agreement
from sdpa_onnx.core.judge.block_bound import gamma
from sdpa_onnx.core.judge.bounds import lifted, logit_error
from sdpa_onnx.core.judge.nan_places import NanSources, contains_nan, replace_nan
from sdpa_onnx.core.records.verdicts import Verdict

__all__ = ["QkExpectation", "expect_qk", "judge_qk"]

Array = NDArray[np.generic]
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

# The ratio of an error where the bound is 0, because JSON has no infinity.
_LARGEST_RATIO = 1e300


@dataclass(frozen=True, slots=True, kw_only=True)
class QkExpectation:
    """The expected fourth output and its error bound.

    Args:
        expected: (batch_size, q_num_heads, q_seq_len, total_seq_len), -inf where the stage hides a key.
        bound: Largest |actual - expected| that is possible in the declared precision, same shape.
        largest: Largest finite number of the format that a score is stored in.
        must_be_nan: Scores that a NaN in the inputs must reach, same shape.
        may_be_nan: Scores that it may reach, those included.
    """

    expected: Float64
    bound: Float64
    largest: float
    must_be_nan: Bool
    may_be_nan: Bool


def expect_qk(
    spec: AttentionSpec, inputs: AttentionInputs, *, mode: QkOutputMode, precision: Precision
) -> QkExpectation:
    """Compute the scores of one stage and their proven error bound.

    Args:
        spec: The attention.
        inputs: The arrays exactly as the runtime received them.
        mode: The stage.
        precision: The declared precision.

    Source: qk_matmul_output_mode of ONNX Attention, opset 25: 0 the raw product, 1 after the
        softcap, 2 after the bias, 3 the weights, with a zero row where every key is hidden.
    """
    query, key, _ = split_heads(spec, inputs)
    expected = np.zeros((*query.shape[:3], key.shape[2]))
    bound = np.zeros_like(expected)
    must, may = np.zeros(expected.shape, bool), np.zeros(expected.shape, bool)
    holds_nan = contains_nan(inputs)
    for given in head_blocks(spec, inputs):
        place = (given.batch, given.head, given.rows)
        block = given
        if holds_nan:
            block, sources = replace_nan(given)
            must[place], may[place] = _nan_scores(given, sources, mode)
        expected[place], bound[place] = _stage(block, mode, precision)
    return QkExpectation(
        expected=expected,
        bound=bound,
        largest=min(precision.scores.largest, precision.output.largest),
        must_be_nan=must,
        may_be_nan=may,
    )


def _nan_scores(block: HeadBlock, sources: NanSources, mode: QkOutputMode) -> tuple[Bool, Bool]:
    """The scores of a block that must be NaN and that may be: (rows, keys)."""
    query, key = np.isnan(block.query).any(1, keepdims=True), np.isnan(block.key).any(1, keepdims=True)
    products: Bool = np.asarray(query) | np.asarray(key).T
    if mode in (QkOutputMode.SCORES, QkOutputMode.AFTER_SOFTCAP):
        return products, products
    visible = block.visible
    if mode is QkOutputMode.AFTER_MASK:
        logits: Bool = products | np.isnan(block.bias)
        return logits & visible, logits  # NaN - inf is NaN, a runtime that selects returns -inf
    lost = np.broadcast_to(sources.lost[:, None], visible.shape)
    return lost & visible, lost | sources.doubtful[:, None]


def judge_qk(expectation: QkExpectation, actual: Array) -> Agreement:
    """Compare a fourth output with its expectation; a hidden key whose score is not -inf counts as a mismatch."""
    expected = expectation.expected
    if actual.shape != expected.shape:
        return Agreement(
            verdict=Verdict.WRONG,
            diagnosis=f"The scores have shape {actual.shape}, expected {expected.shape}.",
        )
    with np.errstate(invalid="ignore"):  # signalling NaN
        values = actual.astype(np.float64)
    is_nan = np.isnan(values)
    swallowed = expectation.must_be_nan & ~is_nan
    hidden = np.isneginf(expected)
    known = np.isfinite(expected)
    # A score that overflows its format may be infinite, and values computed from it may be NaN.
    too_large = known & (np.abs(np.where(known, expected, 0.0)) + expectation.bound > expectation.largest)
    excused = (~known & ~hidden) | (too_large & ~np.isfinite(values)) | (expectation.may_be_nan & is_nan) | swallowed
    both = known & np.isfinite(values)
    error = np.abs(np.where(both, values, 0.0) - np.where(both, expected, 0.0))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where((error > 0.0) & ~excused, np.minimum(error / expectation.bound, _LARGEST_RATIO), 0.0)
    wrong_kind = ((known & ~np.isfinite(values)) | (hidden & ~np.isneginf(values))) & ~excused
    mismatched, not_finite = int(np.count_nonzero(ratio > 1.0)), int(np.count_nonzero(wrong_kind))
    lost = int(np.count_nonzero(swallowed))
    first = wrong_kind if not_finite else swallowed if lost else ratio
    worst = _place(int(first.argmax()), expected.shape) if expected.size else None
    return Agreement(
        verdict=Verdict.WRONG if mismatched or not_finite or lost else Verdict.OK,
        diagnosis=_lost_nan(lost, worst)
        if lost and not not_finite
        else _diagnosis(expectation, values, mismatched, not_finite, float(ratio.max(initial=0.0)), worst),
        max_abs_error=float(error.max(initial=0.0)),
        max_bound_ratio=float(ratio.max(initial=0.0)),
        worst=worst,
        mismatched=mismatched,
        not_finite=not_finite,
        swallowed=lost,
        total=expected.size,
        judged=int(np.count_nonzero(~excused | expectation.must_be_nan)),
        judged_rows=math.prod(expected.shape[:3]),
        total_rows=math.prod(expected.shape[:3]),
    )


def _stage(block: HeadBlock, mode: QkOutputMode, precision: Precision) -> tuple[Float64, Float64]:
    """Compute one stage of a block and its bound.

    The error bound of a logit includes all roundings up to the softmax, so it also bounds every earlier stage.
    """
    stages = stages_of(block)
    error = logit_error(stages, precision)
    if mode is QkOutputMode.WEIGHTS:
        return stages.weights, _weights_bound(stages, error, precision)
    stage = {
        QkOutputMode.SCORES: stages.scores,
        QkOutputMode.AFTER_SOFTCAP: block.capped(stages.scores),
        QkOutputMode.AFTER_MASK: stages.logits,
    }[mode]
    magnitude = np.abs(np.where(np.isfinite(stage), stage, 0.0))
    stored = precision.output.unit_roundoff + precision.scores.unit_roundoff
    bound: Float64 = error + stored * (magnitude + error) + precision.output.tiny + precision.scores.tiny
    return stage, bound


def _weights_bound(stages: Stages, error: Float64, precision: Precision) -> Float64:
    """Bound the error of a computed weight w_j e^(d_j) / sum_k w_k e^(d_k), |d_k| <= E_k, and its roundings."""
    weights = stages.weights
    raised_weights = lifted(stages, error)
    lowered = weights * -np.expm1(-error)
    kept = 1.0 - lowered.sum(1, keepdims=True)
    raised = 1.0 + raised_weights.sum(1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        above = np.where(kept > 0.0, (weights + raised_weights) / kept, np.inf) - weights
    below = weights - (weights - lowered) / raised
    moved = np.fmin(np.maximum(above, below), np.maximum(weights, 1.0 - weights))
    computed = np.minimum(weights + moved, 1.0)
    keys = np.maximum((weights > 0.0).sum(1, keepdims=True), 1)
    coarser = max(precision.output_sum.unit_roundoff, precision.softmax.unit_roundoff)
    relative = gamma(keys, coarser) + 4.0 * precision.softmax.unit_roundoff + 2.0 * precision.output.unit_roundoff
    underflow = 4.0 * precision.weights.tiny + 2.0 * precision.output.tiny + 2.0**-126
    total: Float64 = np.where(np.isneginf(stages.logits), 0.0, moved + relative * computed + underflow)
    return total


def _lost_nan(lost: int, first: tuple[int, int, int, int] | None) -> str:
    scores = "1 score computed from it is a number" if lost == 1 else f"{lost} scores computed from it are numbers"
    return f"A NaN in the inputs was lost: {scores}, first at (batch, head, query, key) {first}."


def _place(position: int, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    batch, head, query, key = (int(index) for index in np.unravel_index(position, shape))
    return batch, head, query, key


def _diagnosis(
    expectation: QkExpectation,
    values: Float64,
    mismatched: int,
    not_finite: int,
    worst_ratio: float,
    worst: tuple[int, int, int, int] | None,
) -> str:
    total = expectation.expected.size
    if worst is None or not (mismatched or not_finite):
        return f"All {total} scores are within the proven bound, the worst at {worst_ratio:.2g} of it."
    got, expected = float(values[worst]), float(expectation.expected[worst])
    where = f"at (batch, head, query, key) {worst}: got {got:.6g}, expected {expected:.6g}"
    if not_finite:
        return (
            f"{not_finite} of {total} scores are finite although the key is hidden, or not finite although it is "
            f"visible, first {where}."
        )
    return (
        f"{mismatched} of {total} scores exceed the proven bound, at worst {worst_ratio:.3g} times "
        f"{where} +- {expectation.bound[worst]:.2g}."
    )
