"""Whether a model's numbers are so many that a runtime should hold them once at a time; reads none of them."""

import onnx_ir as ir

from sdpa_onnx.graph.files.external_data import tensors_of

__all__ = ["is_large", "number_bytes"]

# A runtime without float16 products holds such a model twice over, and four times while it writes down what it runs.
_LARGE_BYTES = 500_000_000


def number_bytes(model: ir.Model) -> int:
    """Bytes of all tensors of a model, wherever they are kept."""
    return sum(tensor.nbytes for tensor in tensors_of(model))


def is_large(model: ir.Model) -> bool:
    """Whether these are above 500 MB."""
    return number_bytes(model) > _LARGE_BYTES
