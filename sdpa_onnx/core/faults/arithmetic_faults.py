"""Planted arithmetic faults: undeclared lower precision, half-precision sums, a softmax without its maximum.

Produces outputs only; judges none.
"""

from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention import spec_conditions as when
from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import HeadBlock, head_blocks, softmax
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, Layout
from sdpa_onnx.core.faults.fault_kind import Fault, Outputs, on_blocks

__all__ = ["ARITHMETIC_FAULTS", "Rounding", "half_sums", "in_format", "operands_only", "shortened", "stored"]

Array = NDArray[np.generic]
Float64 = NDArray[np.float64]
Rounding = Callable[[Float64], Float64]

_TF32_BITS = 11
_WIDE = frozenset({Dtype.FLOAT64, Dtype.FLOAT32})
_HALF = np.dtype(np.float16)


def stored(dtype: np.dtype[np.generic]) -> Rounding:
    """Round to a type and back."""
    return lambda array: array.astype(dtype).astype(np.float64)


def shortened(bits: int, mode: Callable[[Float64], Float64] = np.round) -> Rounding:
    """Keep so many bits of significand, rounded or cut off; the exponent range stays."""

    def rounding(array: Float64) -> Float64:
        significand, exponent = np.frexp(array)
        short: Float64 = np.ldexp(mode(np.ldexp(significand, bits)), exponent - bits)
        return short

    return rounding


def in_format(rounding: Rounding) -> Callable[[HeadBlock], Float64]:
    """Round operands, scores, weights and output to a format."""

    def head(block: HeadBlock) -> Float64:
        low = replace(block, query=rounding(block.query), key=rounding(block.key))
        weights = rounding(softmax(low.logits(low.capped(rounding(low.scores())))))
        return rounding(weights @ rounding(block.value))

    return head


def operands_only(rounding: Rounding) -> Callable[[HeadBlock], Float64]:
    """Round the operands of both matrix products, as tensor cores do."""

    def head(block: HeadBlock) -> Float64:
        low = replace(block, query=rounding(block.query), key=rounding(block.key))
        output: Float64 = rounding(softmax(low.logits(low.capped(low.scores())))) @ rounding(block.value)
        return output

    return head


def half_sums(block: HeadBlock) -> Float64:
    """Sum both matrix products term by term in float16."""
    query, key, value = (array.astype(_HALF) for array in (block.query, block.key, block.value))
    product = np.zeros((query.shape[0], key.shape[0]), dtype=_HALF)
    for column in range(query.shape[1]):
        product += query[:, column, None] * key[None, :, column]
    scores = block.scale * product.astype(np.float64)
    weights = softmax(block.logits(block.capped(scores))).astype(_HALF)
    summed = np.zeros((query.shape[0], value.shape[1]), dtype=_HALF)
    for row in range(key.shape[0]):
        summed += weights[:, row, None] * value[row]
    return summed.astype(np.float64)


def _without_maximum(spec: AttentionSpec, inputs: AttentionInputs, right: Outputs, rng: np.random.Generator) -> Outputs:
    """Compute exp of the logits without subtracting the maximum, in the output's type (bfloat16: in float32)."""
    working: np.dtype[np.generic] = right[OutputRole.OUTPUT].dtype
    if working.name == Dtype.BFLOAT16:
        working = np.dtype(np.float32)

    def head(block: HeadBlock) -> Float64:
        weights = np.exp(block.logits(block.capped(block.scores())).astype(working).astype(np.float64))
        weights = weights.astype(working)
        total = weights.sum(1, keepdims=True)
        hidden = np.isneginf(block.bias).all(axis=1, keepdims=True)
        share = np.where(hidden, 0.0, (weights / total).astype(np.float64))
        output: Float64 = share @ block.value
        return output

    return on_blocks(head=head)(spec, inputs, right, rng)


def _over_queries(spec: AttentionSpec, inputs: AttentionInputs, right: Outputs, _rng: np.random.Generator) -> Outputs:
    """Normalise the weights of each key over the queries."""
    output = np.zeros((*_heads_of(spec, right[OutputRole.OUTPUT]), spec.v_head_dim))
    logits: dict[tuple[int, int], list[Float64]] = {}
    values: dict[tuple[int, int], Float64] = {}
    for block in head_blocks(spec, inputs):
        place = (block.batch, block.head)
        logits.setdefault(place, []).append(block.logits(block.capped(block.scores())))
        values[place] = block.value
    for (batch, head), parts in logits.items():
        output[batch, head] = softmax(np.concatenate(parts).T).T @ values[batch, head]
    if spec.layout is Layout.BSH:
        output = output.transpose(0, 2, 1, 3)
    return {
        **right,
        OutputRole.OUTPUT: output.reshape(right[OutputRole.OUTPUT].shape).astype(right[OutputRole.OUTPUT].dtype),
    }


def _heads_of(spec: AttentionSpec, output: Array) -> tuple[int, int, int]:
    queries = output.shape[2] if spec.layout is Layout.BNSH else output.shape[1]
    return output.shape[0], spec.q_num_heads, queries


def _nan_swallowed(spec: AttentionSpec, inputs: AttentionInputs, right: Outputs, rng: np.random.Generator) -> Outputs:
    """Replace every NaN of the inputs by 0."""
    clean = {
        name: array if array.dtype.kind in "bui" else np.where(np.isnan(array), array.dtype.type(0), array)
        for name, array in inputs.named().items()
    }
    return on_blocks()(spec, AttentionInputs(**clean, quantisers=inputs.quantisers), right, rng)


def _not_divided(block: HeadBlock) -> Float64:
    """Weigh the values by exp(logit - maximum) without dividing by the sum."""
    logits = block.logits(block.capped(block.scores()))
    highest = logits.max(1, keepdims=True, initial=-np.inf)
    weights = np.exp(logits - np.where(np.isneginf(highest), 0.0, highest))
    output: Float64 = weights @ block.value
    return output


def _no_softcap(spec: AttentionSpec) -> bool:
    return not spec.softcap and spec.scale_value != 0.0


ARITHMETIC_FAULTS: tuple[Fault, ...] = (
    Fault(
        name="float32-in-secret",
        says="float64 is computed in float32",
        applies=when.always,
        plant=on_blocks(head=in_format(stored(np.dtype(np.float32)))),
        dtypes=frozenset({Dtype.FLOAT64}),
    ),
    Fault(
        name="tf32-in-secret",
        says="the operands of the products are rounded to TF32",
        applies=when.always,
        plant=on_blocks(head=operands_only(shortened(_TF32_BITS))),
        dtypes=_WIDE,
    ),
    Fault(
        name="float16-in-secret",
        says="operands, scores and weights are rounded to float16",
        applies=when.always,
        plant=on_blocks(head=in_format(stored(_HALF))),
        dtypes=_WIDE,
    ),
    Fault(
        name="bfloat16-in-secret",
        says="operands, scores and weights are rounded to bfloat16",
        applies=when.always,
        plant=on_blocks(head=in_format(stored(np.dtype(ml_dtypes.bfloat16)))),
        dtypes=_WIDE | {Dtype.FLOAT16},
    ),
    Fault(
        name="float16-accumulation",
        says="the products are summed in float16",
        applies=when.always,
        plant=on_blocks(head=half_sums),
        dtypes=_WIDE | {Dtype.FLOAT16},
    ),
    Fault(
        name="maximum-not-subtracted",
        says="the softmax does not subtract the maximum of the logits",
        applies=_no_softcap,
        plant=_without_maximum,
    ),
    Fault(
        name="softmax-over-queries",
        says="the softmax runs over the queries instead of the keys",
        applies=when.always,
        plant=_over_queries,
    ),
    Fault(name="nan-swallowed", says="a NaN in the inputs is read as zero", applies=when.always, plant=_nan_swallowed),
    Fault(
        name="softmax-left-out",
        says="the softmax is left out: the scores themselves weigh the values",
        applies=when.always,
        plant=on_blocks(head=lambda block: np.where(np.isneginf(block.bias), 0.0, block.scores()) @ block.value),
    ),
    Fault(
        name="sum-not-divided",
        says="the weights are not divided by their sum",
        applies=when.always,
        plant=on_blocks(head=_not_divided),
    ),
)
