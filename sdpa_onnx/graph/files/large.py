"""Whether a model is so large that only one runtime should hold it at a time; reads no tensor."""

import onnx_ir as ir

from sdpa_onnx.graph.files.external_data import tensors_of

__all__ = ["is_large", "number_bytes"]

# A runtime without float16 products holds such a model twice, and four times while it saves its optimised graph.
_LARGE_BYTES = 500_000_000


def number_bytes(model: ir.Model) -> int:
    """Bytes of all tensors of a model, in the message or in files."""
    return sum(tensor.nbytes for tensor in tensors_of(model))


def is_large(model: ir.Model) -> bool:
    """Whether they exceed 500 MB."""
    return number_bytes(model) > _LARGE_BYTES
