"""What a planted fault is, and how one is made from other blocks or from the right output."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import HeadBlock, head_blocks, softmax
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, Layout

__all__ = ["Fault", "Outputs", "on_blocks", "on_output", "plain_head"]

Array = NDArray[np.generic]
Float64 = NDArray[np.float64]
Outputs = dict[str, Array]
Generator = np.random.Generator
Head = Callable[[HeadBlock], Float64]
Plant = Callable[[AttentionSpec, AttentionInputs, Outputs, Generator], Outputs]

_ALL_DTYPES = frozenset(Dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of fault.

    Args:
        name: Stable slug, such as `scale-missing`.
        says: What it does, one clause without a stop: "the scale is left out".
        applies: Whether an attention of this spec can have it (a window that is ignored needs a window).
        plant: (spec, inputs, right outputs, rng) -> outputs with the fault. Keys of both:
            "output" and, where the site has them, "present_key", "present_value", "qk"; shapes and
            dtypes of the right ones. Never changes its arguments.
        dtypes: Element types in which it is a fault (float16 in secret is none in float16).
        output: Which output it spoils: "output", "present_key", "present_value" or "qk".
    """

    name: str
    says: str
    applies: Callable[[AttentionSpec], bool]
    plant: Plant
    dtypes: frozenset[Dtype] = _ALL_DTYPES
    output: str = "output"


def plain_head(block: HeadBlock) -> Float64:
    """Compute one block's output in float64: (rows, v_head_dim)."""
    output: Float64 = softmax(block.logits(block.capped(block.scores()))) @ block.value
    return output


def on_blocks(blocks: Callable[..., Iterator[HeadBlock]] = head_blocks, head: Head = plain_head) -> Plant:
    """Plant a fault that changes blocks, or how a block is computed; the rest of the outputs stays right.

    Args:
        blocks: Like `oracle.head_blocks`.
        head: A block -> its output.
    """

    def plant(spec: AttentionSpec, inputs: AttentionInputs, right: Outputs, _rng: Generator) -> Outputs:
        shape, dtype = right["output"].shape, right["output"].dtype
        apart = _apart(spec, np.zeros(shape)).copy()
        # What a wrong kernel computes may overflow and divide 0 by 0: that is the fault.
        with np.errstate(all="ignore"):
            for block in blocks(spec, inputs):
                apart[block.batch, block.head, block.rows] = head(block)
            together = apart.transpose(0, 2, 1, 3).reshape(shape) if spec.layout is Layout.BSH else apart
            return {**right, "output": together.astype(dtype)}

    return plant


def on_output(change: Callable[[AttentionSpec, Array, Generator], Array]) -> Plant:
    """Plant a fault in the right output.

    Args:
        change: (spec, output heads first: (batch, heads, queries, width), rng) -> the same, changed; may write
            into what it gets, which is a copy.
    """

    def plant(spec: AttentionSpec, _inputs: AttentionInputs, right: Outputs, rng: Generator) -> Outputs:
        output = right["output"]
        changed = change(spec, _apart(spec, output).copy(), rng)
        together = changed.transpose(0, 2, 1, 3).reshape(output.shape) if spec.layout is Layout.BSH else changed
        return {**right, "output": np.ascontiguousarray(together)}

    return plant


def _apart(spec: AttentionSpec, output: Array) -> Array:
    """(batch, heads, queries, width) of either layout."""
    if spec.layout is Layout.BNSH:
        return output
    batch_size, q_seq_len, _ = output.shape
    return output.reshape(batch_size, q_seq_len, spec.q_num_heads, spec.v_head_dim).transpose(0, 2, 1, 3)
