"""Defines a reading: the oracle with one rule changed. Lists none; see `readings`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sdpa_onnx.core.attention.oracle import HeadBlock
from sdpa_onnx.core.attention.spec import AttentionSpec

__all__ = ["Reading"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The oracle with one rule changed.

    A reading may produce NaN (a plain softmax of a row without a visible key). The
    judge does not check elements where its oracle is not finite, so whoever compares an output
    with a reading must also check that the output is NaN there, as `core.faults.diagnosis` does.

    Args:
        name: Stable slug, such as `causal-upper-left`.
        says: Description, a clause that follows "It looks as if": "the last key is missing".
        dated: Version of the specification or of a runtime with this reading; "" if none is known.
        applies: Whether this reading can differ from the oracle for a spec.
        blocks: Same signature as `oracle.head_blocks(spec, inputs, rows=...)`, with the rule changed.
    """

    name: str
    says: str
    dated: str = ""
    applies: Callable[[AttentionSpec], bool]
    blocks: Callable[..., Iterator[HeadBlock]]
