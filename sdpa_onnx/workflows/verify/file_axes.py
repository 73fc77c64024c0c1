"""What a file says about its sizes by itself: axes that it declares fixed, scales that may belong to one length.

Reads the graph and its metadata; running is `dynamic_axes`'.
"""

import itertools

import onnx_ir as ir

from sdpa_onnx.core.attention.size_functions import scale_doubt
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.site import AttentionSite

__all__ = ["scale_doubts", "site_doubt", "static_axes"]

_PROVE = "verify --against MODULE proves or clears it."


def static_axes(model: OnnxModel) -> tuple[str, ...]:
    """Batch and sequence axes of inputs that are declared with a number while other axes may change.

    A size of 1 in a mask is a broadcast and no fixed axis. Which axis counts
    what is read off the rank, as the exporter chooses it.
    """
    inputs = [value for value in model.ir.graph.inputs if value.shape is not None]
    if all(value.shape.is_static() for value in inputs):  # type: ignore[union-attr]  # filtered above
        return ()
    return tuple(text for value in inputs for text in _static(value))


def scale_doubts(model: OnnxModel) -> tuple[str, ...]:
    """Doubts about the constant scale of each attention, one sentence each."""
    return tuple(doubt for site in model.sites if (doubt := site_doubt(model, site)))


def site_doubt(model: OnnxModel, site: AttentionSite) -> str:
    """Why the scale of one attention may have been fixed at the length of a sample; "" without doubt."""
    traced = model.facts.traced
    lengths = None
    if traced is not None:
        single = list(traced.values())
        # A cache and what is new to it make one length of keys.
        lengths = single + [sum(pair) for pair in itertools.combinations(single, 2)]
    doubt = scale_doubt(site.spec, lengths)
    return f"{site.name}: {doubt}; {_PROVE}" if doubt else ""


def _static(value: ir.Value) -> list[str]:
    shape = value.shape or ()
    rank = len(shape)
    name = value.name or ""
    is_mask = value.dtype is ir.DataType.BOOL or "mask" in name or "bias" in name
    if rank < 2 or (rank == 2 and not is_mask and value.dtype is not None and value.dtype.is_floating_point()):
        return []
    sequences = (rank - 2, rank - 1) if is_mask or rank == 2 else (1 if rank == 3 else rank - 2,)
    axes = dict.fromkeys(sequences, "sequence") | {0: "batch"}
    if rank == 2 and is_mask and value.dtype is not ir.DataType.BOOL:
        axes[0] = "sequence"
    return [
        f"the {axes[axis]} axis {axis} of '{name}' is fixed to {shape[axis]} in the file"
        for axis in sorted(axes)
        if isinstance(shape[axis], int) and not (is_mask and shape[axis] == 1)
    ]
