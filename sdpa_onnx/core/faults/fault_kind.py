"""Defines a planted fault, made from changed blocks of the oracle or from the correct output.

Lists no faults; see `planted_faults`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import HeadBlock, head_blocks
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, Layout

__all__ = ["Fault", "Outputs", "on_blocks", "on_output", "plain_head"]

Array = NDArray[np.generic]
Float64 = NDArray[np.float64]
Outputs = dict[OutputRole, Array]
Generator = np.random.Generator
Head = Callable[[HeadBlock], Float64]
Plant = Callable[[AttentionSpec, AttentionInputs, Outputs, Generator], Outputs]

_ALL_DTYPES = frozenset(Dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of fault.

    Args:
        name: Stable slug, such as `scale-missing`.
        says: Description, one clause without a full stop: "the scale is left out".
        applies: Whether an attention of this spec can have it (ignoring the window requires a window).
        plant: (spec, inputs, correct outputs, rng) -> outputs with the fault. Keys of both: the outputs that
            the attention has, OUTPUT always; shapes and dtypes stay the same. Does not modify its arguments.
        dtypes: Element types in which it is a fault (undeclared float16 is none in float16).
        output: The output that it changes.
    """

    name: str
    says: str
    applies: Callable[[AttentionSpec], bool]
    plant: Plant
    dtypes: frozenset[Dtype] = _ALL_DTYPES
    output: OutputRole = OutputRole.OUTPUT


def plain_head(block: HeadBlock) -> Float64:
    """Compute one block's output in float64: (rows, v_head_dim)."""
    output: Float64 = block.weights(block.logits(block.capped(block.scores()))) @ block.value
    return output


def on_blocks(blocks: Callable[..., Iterator[HeadBlock]] = head_blocks, head: Head = plain_head) -> Plant:
    """Create a fault that changes blocks, or how a block is computed; the other outputs stay correct.

    Args:
        blocks: Same signature as `oracle.head_blocks`.
        head: Computes the output of a block.
    """

    def plant(spec: AttentionSpec, inputs: AttentionInputs, right: Outputs, _rng: Generator) -> Outputs:
        shape, dtype = right[OutputRole.OUTPUT].shape, right[OutputRole.OUTPUT].dtype
        output = _to_bnsh(spec, np.zeros(shape)).copy()
        # A faulty computation may overflow or divide 0 by 0; that is part of the fault.
        with np.errstate(all="ignore"):
            for block in blocks(spec, inputs):
                output[block.batch, block.head, block.rows] = head(block)
            joined = output.transpose(0, 2, 1, 3).reshape(shape) if spec.layout is Layout.BSH else output
            return {**right, OutputRole.OUTPUT: joined.astype(dtype)}

    return plant


def on_output(change: Callable[[AttentionSpec, Array, Generator], Array]) -> Plant:
    """Create a fault that changes the correct output.

    Args:
        change: (spec, output in BNSH, rng) -> changed output; it gets a copy and may modify it.
    """

    def plant(spec: AttentionSpec, _inputs: AttentionInputs, right: Outputs, rng: Generator) -> Outputs:
        output = right[OutputRole.OUTPUT]
        changed = change(spec, _to_bnsh(spec, output).copy(), rng)
        joined = changed.transpose(0, 2, 1, 3).reshape(output.shape) if spec.layout is Layout.BSH else changed
        return {**right, OutputRole.OUTPUT: np.ascontiguousarray(joined)}

    return plant


def _to_bnsh(spec: AttentionSpec, output: Array) -> Array:
    """Convert an output of either layout to (batch, heads, queries, width)."""
    if spec.layout is Layout.BNSH:
        return output
    batch_size, q_seq_len, _ = output.shape
    return output.reshape(batch_size, q_seq_len, spec.q_num_heads, spec.v_head_dim).transpose(0, 2, 1, 3)
