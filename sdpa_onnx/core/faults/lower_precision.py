"""Finds the lower precision that an output was computed in, by computing the attention in it.

A bound of a lower precision is wide: errors as large as the values themselves fit into it. So the errors must
have the size of those that the arithmetic itself makes on these inputs, and large ones their direction too.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import numpy_dtype
from sdpa_onnx.core.attention.oracle import HeadBlock, head_blocks
from sdpa_onnx.core.attention.precision import PRECISIONS
from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.core.faults.arithmetic_faults import (
    Rounding,
    half_sums,
    in_format,
    operands_only,
    shortened,
    stored,
)
from sdpa_onnx.core.faults.diagnosis_fit import ExplainedOutput
from sdpa_onnx.core.faults.diagnosis_systematic import are_systematic

__all__ = ["lower_precision"]

Array = NDArray[np.generic]
Float64 = NDArray[np.float64]
Head = Callable[[HeadBlock], Float64]

# Low precision affects every element: the median error is at least this share of the root mean square error ...
_SPREAD_OUT = 0.1
# ... which is at least this share of the bound of that precision ...
_USED_SHARE = 0.005
# ... and at most this many times the error of the attention computed in that precision.
_LARGEST_TIMES = 4.0
# Cosine of the angle between the errors and those of the computation; of unrelated errors of n elements it is about
# 1/sqrt(n). Roundings that are not emulated, of partial sums, make it smaller than 1.
_LEAST_COSINE = 0.3
# The roundings of sums and stored results depend on an order that is unknown, and may be the larger part. So the size
# alone decides if the errors are small against the values, which those of another function of the inputs seldom are.
_SMALL = 0.05
# Lower precisions that may be used instead of the declared one, the nearest first.
_LOWER: dict[str, tuple[str, ...]] = {
    "float64": ("float32", "tf32", "float16", "bfloat16", "float16-accumulation"),
    "float32": ("tf32", "float16", "bfloat16", "float16-accumulation"),
    "tf32": ("float16", "bfloat16", "float16-accumulation"),
    "float16": ("float16-accumulation", "bfloat16"),
}
_BITS = {"float32": 24, "tf32": 11, "float16": 11, "bfloat16": 8}


def lower_precision(subject: ExplainedOutput, right: Float64, declared: str, actual: Array) -> str | None:
    """Find the lower precision whose bound and errors fit the output; the errors must look random.

    Args:
        subject: The output on the selected queries.
        right: The oracle's output there.
        declared: The declared precision, a key of `PRECISIONS`.
        actual: The whole output in its own type.
    """
    known = ~subject.excused & np.isfinite(right)
    if not known.any() or not np.isfinite(subject.actual[known]).all():
        return None
    error = (subject.actual - right)[known]
    size = np.abs(error)
    level = _level(error)
    if not level > 0.0 or float(np.median(size[size > 0.0])) < _SPREAD_OUT * level:
        return None
    if are_systematic(subject, right):
        return None
    for name in _lower_than(declared, actual):
        lower = PRECISIONS[name]
        if lower.operand is None:
            # Wider inputs are rounded on the way in.
            lower = replace(lower, operand=lower.output)
        truth = subject.truth(head_blocks, lower)
        used = _level(size / truth.bound[known])
        if used >= _USED_SHARE and subject.agrees(truth) and _is_made_by(name, subject, right, known, error):
            return name
    return None


def _is_made_by(name: str, subject: ExplainedOutput, right: Float64, known: NDArray[np.bool_], error: Float64) -> bool:
    """Whether the computation in a precision makes errors of this size, and of this direction unless they are small."""
    level = _level(error)
    for head in _heads(name):
        with np.errstate(all="ignore"):
            made = (_output(subject, head) - right)[known]
        if not np.isfinite(made).all() or level > _LARGEST_TIMES * _level(made):
            continue
        if np.vdot(error, made) > _LEAST_COSINE * np.linalg.norm(error) * np.linalg.norm(made):
            return True
        if level <= _SMALL * _level(right[known]):
            return True
    return False


def _heads(name: str) -> list[Head]:
    """Ways to compute in a precision: operands rounded or cut off, everything rounded."""
    if name not in _BITS:
        return [half_sums]
    rounded, cut = (shortened(_BITS[name], mode) for mode in (np.round, np.trunc))
    everything: Rounding = rounded if name == "tf32" else stored(numpy_dtype(Dtype(name)))
    return [in_format(everything), operands_only(rounded), operands_only(cut)]


def _output(subject: ExplainedOutput, head: Head) -> Float64:
    output = np.zeros(subject.actual.shape)
    for block in head_blocks(subject.spec, subject.inputs, rows=subject.rows):
        output[block.batch, block.head, np.searchsorted(subject.rows, block.rows)] = head(block)
    return output


def _level(error: Float64) -> float:
    return float(np.sqrt(np.mean(np.square(error))))


def _lower_than(declared: str, actual: Array) -> list[str]:
    """List lower precisions; first the short types that can represent every number of the output."""
    lower = _LOWER.get(declared, ())
    # The coarsest first, because float16 can represent most bfloat16 numbers.
    kinds = {name: numpy_dtype(Dtype(name)) for name in reversed(lower) if name in list(Dtype)}
    with np.errstate(all="ignore"):
        held = [name for name, kind in kinds.items() if np.array_equal(actual.astype(kind).astype(np.float64), actual)]
    return [*held, *(name for name in lower if name not in held)]
