"""Check whether the inputs of a model at given sizes fit into the memory of this machine.

Does not count the memory of outputs or of intermediate values.
"""

import math
import os
from collections.abc import Iterable, Mapping

from sdpa_onnx.errors import ModelError, PlanError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.check.feeds import resolve_shape

__all__ = ["input_bytes", "require_memory"]

# Each input exists four times: as drawn, in the model's type, in float64 for the oracle, and as the runtime's copy.
_COPIES = 4
_GIB = 2**30


def require_memory(
    model: OnnxModel, size_sets: Iterable[Mapping[str, int]], *, memory_bytes: int | None = None
) -> None:
    """Reject sizes whose inputs do not fit; scores are computed block by block and are not counted.

    Args:
        model: The model whose inputs are counted.
        size_sets: Every set of sizes to try.
        memory_bytes: Available memory in bytes; None = the memory of this machine, no limit if it is unknown.

    Raises:
        PlanError: If the largest set does not fit.
    """
    available = _memory_bytes() if memory_bytes is None else memory_bytes
    for sizes in size_sets:
        needed = _COPIES * input_bytes(model, sizes)
        if available is not None and needed > available:
            listed = ", ".join(f"{axis} {size}" for axis, size in sizes.items())
            raise PlanError(
                f"The inputs with {listed} need about {needed / _GIB:.1f} GiB; "
                f"this machine has {available / _GIB:.1f} GiB.",
                hint="Use smaller sizes.",
            )


def input_bytes(model: OnnxModel, sizes: Mapping[str, int]) -> int:
    """Bytes of all inputs; an input whose shape cannot be resolved counts as 0."""
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
    except (AttributeError, ValueError, OSError):  # not every system reports it
        return None
