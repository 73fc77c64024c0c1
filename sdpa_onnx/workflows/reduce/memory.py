"""Whether the inputs of a model at some sizes fit into the memory of this machine."""

import math
import os
from collections.abc import Iterable, Mapping

from sdpa_onnx.errors import ModelError, PlanError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.check.feeds import resolve_shape

__all__ = ["input_bytes", "require_memory"]

# An input is held as drawn, in the model's type, in float64 for the oracle, and as the runtime's copy.
_COPIES = 4
_GIB = 2**30


def require_memory(
    model: OnnxModel, size_sets: Iterable[Mapping[str, int]], *, memory_bytes: int | None = None
) -> None:
    """Refuse sizes at which not even the inputs fit; scores are held block by block and are not counted.

    Args:
        model: Its inputs count.
        size_sets: Every set of sizes that would be tried.
        memory_bytes: What there is; None = the machine's own, without a limit where it does not tell.

    Raises:
        PlanError: If the largest set does not fit.
    """
    has = _memory_bytes() if memory_bytes is None else memory_bytes
    for sizes in size_sets:
        needs = _COPIES * input_bytes(model, sizes)
        if has is not None and needs > has:
            at = ", ".join(f"{axis} {size}" for axis, size in sizes.items())
            raise PlanError(
                f"The inputs at {at} need about {needs / _GIB:.1f} GiB; this machine has {has / _GIB:.1f} GiB.",
                hint="Give smaller sizes.",
            )


def input_bytes(model: OnnxModel, sizes: Mapping[str, int]) -> int:
    """Bytes of all inputs; those whose shape cannot be read count nothing."""
    total = 0
    for value in model.ir.graph.inputs:
        try:
            shape = resolve_shape(value, sizes)
        except ModelError:
            continue
        total += math.prod(shape) * (4 if value.dtype is None else math.ceil(value.dtype.bitwidth / 8))
    return total


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not every system tells
        return None
