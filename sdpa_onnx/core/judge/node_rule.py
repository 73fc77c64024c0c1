"""Compares one node's output with the float64 result on the same inputs and decides its verdict.

For every node except attention, which has its own proven error bound. Knows
operators by name only and evaluates none of them.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.precision import FloatFormat, Precision
from sdpa_onnx.core.judge.block_bound import gamma
from sdpa_onnx.core.records.verdicts import Verdict

__all__ = [
    "NodeAgreement",
    "NodeExpectation",
    "NodeRule",
    "format_of",
    "judge_node_output",
    "product_bound",
    "rule_of",
    "sum_bound",
    "working_unit",
]

Array = NDArray[np.generic]
Float64 = NDArray[np.float64]

# Two correct kernels can differ by the square root of the number of partial sums: docs/decisions/0001.
_ALLOWED_TIMES = 8.0
# Operators of which each output element is an input element, or one correctly rounded operation on input elements.
# Source: IEEE 754-2019, 5.4.1, and the operator specifications of opset 25.
_ROUNDED = frozenset(
    {"Abs", "Add", "Cast", "CastLike", "Ceil", "Clip", "Compress", "Concat", "ConstantOfShape"}
    | {"DepthToSpace", "Div", "Dropout", "Expand", "EyeLike", "Flatten", "Floor", "Gather"}
    | {"GatherElements", "GatherND", "Identity", "LeakyRelu", "Max", "MaxPool", "Min", "Mod", "Mul"}
    | {"Neg", "OneHot", "PRelu", "Pad", "Reciprocal", "ReduceMax", "ReduceMin", "Relu", "Reshape"}
    | {"ReverseSequence", "Round", "Sign", "Slice", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub"}
    | {"ThresholdedRelu", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where"}
)
_PRODUCTS = frozenset({"MatMul", "Gemm", "Einsum", "ReduceSum", "ReduceMean", "Sum", "CumSum"})
# The quotient is rounded before it is rounded to an integer, so the integer may be off by one.
_QUANTISING = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "QLinearMatMul", "QLinearConv"})

_FORMATS = {
    "float64": FloatFormat.FLOAT64,
    "float32": FloatFormat.FLOAT32,
    "float16": FloatFormat.FLOAT16,
    "bfloat16": FloatFormat.BFLOAT16,
}


class NodeRule(StrEnum):
    """How the rounding error of an operator is limited.

    ROUNDED: at most one rounding per element. PRODUCT: a sum of products or of elements, with a proven
    error bound. QUANTISING: integers that may be off by one. OTHER: nothing is proven,
    so the error is compared with that of the reference in the same type.
    """

    ROUNDED = "rounded"
    PRODUCT = "product"
    QUANTISING = "quantising"
    OTHER = "other"


def rule_of(domain: str, op_type: str) -> NodeRule:
    """Return the rule of an operator."""
    if domain not in ("", "ai.onnx"):
        return NodeRule.OTHER
    if op_type in _PRODUCTS:
        return NodeRule.PRODUCT
    if op_type in _QUANTISING:
        return NodeRule.QUANTISING
    return NodeRule.ROUNDED if op_type in _ROUNDED else NodeRule.OTHER


def format_of(dtype: np.dtype[np.generic]) -> FloatFormat | None:
    """Return the floating-point format of a type; None for integers, booleans and unsupported types."""
    return _FORMATS.get(dtype.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeExpectation:
    """The expected output of a node, and the data that limit its rounding error.

    Args:
        rule: See `NodeRule`.
        exact: The float64 result on exactly the inputs that the runtime receives; for an
            integer or boolean output, the result of the reference.
        own: The reference's result in the model's type, or None if it has none.
        moved: The float64 result on inputs that were each changed by one rounding of the working
            format, randomly up or down; of an integer output the integers on such inputs; None if not computed.
        bound: Proven bound of the error before the output is rounded, or None.
        dtype: Type of the output in the model.
    """

    rule: NodeRule
    exact: Array
    own: Array | None
    moved: Array | None
    bound: Float64 | None
    dtype: np.dtype[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAgreement:
    """Result of comparing a node's output with the float64 result.

    Args:
        verdict: OK, SUSPICIOUS (above the limit, which is not a proof) or WRONG.
        error: |actual - exact| of the element with the largest error relative to its limit; 0.0 if unknown.
        allowed: The limit of that element.
        evidence: One sentence.
        is_finding: Whether the node may be reported as faulty by itself: the verdict is WRONG, or the error is not
            proven but more than half of the digits are lost.
    """

    verdict: Verdict
    error: float
    allowed: float
    evidence: str
    is_finding: bool = False


def judge_node_output(truth: NodeExpectation, actual: Array) -> NodeAgreement:
    """Compare one output of one node with its expected output and decide the verdict.

    A correctly rounded element may be off by nine roundings of itself, a sum of products by its proven bound. Other
    operators have no bound. Their limit, beyond which an element is only suspicious, is eight times
    the larger of the reference's own error in the same type (in a 16-bit type without its output rounding) and the
    change caused by one rounding of the inputs, plus one rounding of the output; both are the maximum over a row of
    the output, see `_row_errors`.

    Args:
        truth: The expected output.
        actual: The runtime's output.

    Source: docs/decisions/0001 for the factor; IEEE 754-2019 for one rounding;
        Higham, Accuracy and Stability of Numerical Algorithms, 3.5, for products.
    """
    if actual.shape != truth.exact.shape:
        return _wrong(f"It has shape {actual.shape}, expected {truth.exact.shape}.")
    if actual.dtype != truth.dtype:
        return _wrong(f"It is of type {actual.dtype}, expected {truth.dtype}.")
    stored = format_of(truth.dtype)
    if stored is None:
        return _judge_integers(truth, actual)
    exact, values = truth.exact.astype(np.float64), actual.astype(np.float64)
    unit = stored.unit_roundoff
    judged, not_finite = _comparable(truth, exact, values, stored)
    if not_finite is not None:
        return _wrong(f"At {not_finite} it is {values[not_finite]}, expected {exact[not_finite]:.6g}.")
    if not judged.any():
        return NodeAgreement(verdict=Verdict.OK, error=0.0, allowed=0.0, evidence="Nothing in it can be judged.")
    exact, values = np.where(judged, exact, 0.0), np.where(judged, values, 0.0)
    error = np.abs(values - exact)
    proven = truth.bound is not None or truth.rule is NodeRule.ROUNDED
    if truth.bound is not None:
        rule = "the proven bound"
        allowed = truth.bound + unit * (1.0 + unit) * (np.abs(exact) + truth.bound) + _smallest(stored)
    else:
        rule = "nine roundings" if proven else "eight times the error of the reference, which is no proof"
        allowed = _allowed(truth, exact, judged, unit, stored)
    return _conclude(error, allowed, exact, values, unit=unit, rule=rule, proven=proven)


def product_bound(left: Array, right: Array, added: Float64 | None, precision: Precision) -> Float64:
    """Compute the proven bound of the error of left @ right + added, before the output is rounded.

    Args:
        left: First operand, already transposed and scaled as the operator specifies.
        right: Second operand.
        added: The term added to the product, or None.
        precision: The declared precision.

    Source: |computed - exact| <= gamma_n |A||B| for any order of summation, Higham 3.5; with a
        rounding of both operands, and three more for a bias and factors.
    """
    magnitudes: Float64 = np.abs(left.astype(np.float64)) @ np.abs(right.astype(np.float64))
    terms, roundings = left.shape[-1], 0
    if added is not None:
        magnitudes = magnitudes + np.abs(added)
        terms, roundings = terms + 1, 3
    return sum_bound(magnitudes, terms, precision, roundings=roundings)


def sum_bound(magnitudes: Float64, terms: int, precision: Precision, *, roundings: int = 0) -> Float64:
    """Compute the proven bound of the error of sums of products, before the output is rounded.

    Args:
        magnitudes: The same sums over the absolute values of all operands.
        terms: Number of terms of each sum.
        precision: The declared precision.
        roundings: Further roundings of a term or of the sum, such as a factor or a division by their number.

    Source: as `product_bound`.
    """
    operand = 0.0 if precision.operand is None else precision.operand.unit_roundoff
    sums = float(gamma(terms, max(precision.output_sum.unit_roundoff, precision.score_sum.unit_roundoff)))
    return magnitudes * math.expm1(sums + 2.0 * operand + roundings * precision.output_sum.unit_roundoff)


def working_unit(precision: Precision) -> float:
    """Unit roundoff of the coarsest format that a kernel of this precision computes in."""
    formats = (precision.operand, precision.score_sum, precision.softmax, precision.output_sum)
    return max(one.unit_roundoff for one in formats if one is not None)


def _smallest(stored: FloatFormat) -> float:
    """Largest loss in a kernel that flushes subnormal numbers to zero."""
    match stored:
        case FloatFormat.FLOAT64:
            return 2.0**-1022
        case FloatFormat.FLOAT16:
            return 2.0**-24
        case FloatFormat.FLOAT32 | FloatFormat.BFLOAT16 | FloatFormat.TF32:
            return 2.0**-126


def _comparable(
    truth: NodeExpectation, exact: Float64, values: Float64, stored: FloatFormat
) -> tuple[NDArray[np.bool_], tuple[int, ...] | None]:
    """Find elements that can be judged by their error, and the first that is not finite without cause.

    If the formula yields NaN, nothing is expected. Infinity is expected where the formula yields
    it, and allowed where the value, or an intermediate value in the model's type, overflows the format.
    """
    large = np.abs(exact) > stored.largest * (1.0 - stored.unit_roundoff)
    if truth.own is not None:
        large |= ~np.isfinite(truth.own.astype(np.float64)) & np.isfinite(exact)
    finite = np.isfinite(values)
    bad = np.isfinite(exact) & ~finite & ~large
    bad |= np.isinf(exact) & (values != exact) & ~(finite & (np.abs(values) >= stored.largest))
    place = tuple(int(one) for one in np.unravel_index(int(bad.argmax()), bad.shape)) if bad.any() else None
    return np.isfinite(exact) & finite, place


def _allowed(
    truth: NodeExpectation, exact: Float64, judged: NDArray[np.bool_], unit: float, stored: FloatFormat
) -> Float64:
    rounding = unit * np.abs(exact)
    if truth.rule is NodeRule.ROUNDED:
        return (_ALLOWED_TIMES + 1.0) * rounding + _smallest(stored)
    seen = np.zeros_like(exact)
    if truth.own is not None:
        # Most kernels compute in a wider format than 16 bits, so the reference's output rounding counts only once.
        once = rounding if stored in (FloatFormat.FLOAT16, FloatFormat.BFLOAT16) else 0.0
        seen = np.maximum(seen, _distance(truth.own.astype(np.float64), exact, judged) - once)
    if truth.moved is not None:
        seen = np.maximum(seen, _distance(truth.moved.astype(np.float64), exact, judged))
    # (1 + unit): a value is rounded in the working format and then again in the output's.
    return _ALLOWED_TIMES * _row_errors(seen) + (1.0 + unit) * rounding + _smallest(stored)


def _distance(values: Float64, exact: Float64, judged: NDArray[np.bool_]) -> Float64:
    usable = judged & np.isfinite(values)
    distance: Float64 = np.where(usable, np.abs(np.where(usable, values, 0.0) - exact), 0.0)
    return distance


def _row_errors(seen: Float64) -> Float64:
    """Largest error of each row (along the last axis), at least the median over the rows.

    A single element may be exact by chance, so whole rows are used. A single row may be ill-conditioned
    (a fully masked one, with inputs of -3e38), which must not raise the limit of the others.
    """
    if not seen.ndim:
        return seen
    rows = seen.max(axis=-1, keepdims=True, initial=0.0)
    larger: Float64 = np.maximum(rows, np.median(rows) if rows.size else 0.0)
    return larger


def _judge_integers(truth: NodeExpectation, actual: Array) -> NodeAgreement:
    step = 1.0 if truth.rule is NodeRule.QUANTISING else 0.0
    different = actual != truth.exact
    if step and actual.dtype.kind in "iu":
        different &= np.abs(actual.astype(np.float64) - truth.exact.astype(np.float64)) > step
    count = int(np.count_nonzero(different))
    if not count:
        return NodeAgreement(verdict=Verdict.OK, error=0.0, allowed=step, evidence="It is equal.")
    # An integer that a rounding before it changes (a rounded position, the larger of two nearly equal scores).
    firm = different & (True if truth.moved is None else np.asarray(truth.moved == truth.exact))
    verdict = Verdict.WRONG if firm.any() else Verdict.SUSPICIOUS
    different = firm if firm.any() else different
    place = tuple(int(one) for one in np.unravel_index(int(np.argmax(different)), different.shape))
    seen = f"got {actual[place]}, expected {truth.exact[place]}"
    text = f"{count} of {actual.size} elements differ, first at {place}: {seen}."
    error = abs(float(actual[place]) - float(truth.exact[place])) if actual.dtype.kind in "iub" else 0.0
    if verdict is Verdict.SUSPICIOUS:
        text += " One rounding of the inputs changes them too, so this is no proof."
    is_finding = verdict is Verdict.WRONG
    return NodeAgreement(verdict=verdict, error=error, allowed=step, evidence=text, is_finding=is_finding)


def _conclude(
    error: Float64, allowed: Float64, exact: Float64, values: Float64, *, unit: float, rule: str, proven: bool
) -> NodeAgreement:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(error > 0.0, error / allowed, 0.0)
    place = tuple(int(one) for one in np.unravel_index(int(ratio.argmax()), ratio.shape))
    found, limit = float(error[place]), float(allowed[place])
    count = int(np.count_nonzero(error > allowed))
    if not count:
        text = f"All {error.size} elements are within the limit, the worst is off by {found:.2g}, limit {limit:.2g}."
        return NodeAgreement(verdict=Verdict.OK, error=found, allowed=limit, evidence=text)
    text = (
        f"{count} of {error.size} elements exceed the limit ({rule}), the worst is off by {found:.3g}, limit "
        f"{limit:.3g}, at {place}: got {values[place]:.6g}, expected {exact[place]:.6g}."
    )
    digits_lost = (error > allowed) & (error > math.sqrt(unit) * _row_errors(np.abs(exact)))
    return NodeAgreement(
        verdict=Verdict.WRONG if proven else Verdict.SUSPICIOUS,
        error=found,
        allowed=limit,
        evidence=text,
        is_finding=proven or bool(digits_lost.any()),
    )


def _wrong(text: str) -> NodeAgreement:
    return NodeAgreement(verdict=Verdict.WRONG, error=0.0, allowed=0.0, evidence=text, is_finding=True)
