"""A model as one message: tensors in files are read into it or referred to; their hash needs no message at all.

Where files lie is decided in `saved_files`.
"""

import hashlib
from collections.abc import Mapping
from typing import IO

import onnx
import onnx_ir as ir

from sdpa_onnx.graph.files.external_data import FileTensor, Tensor, in_memory, replace_tensors, tensors_of
from sdpa_onnx.graph.quiet import quiet_ir

__all__ = ["content_hash", "reference_to", "serialised", "to_message", "write_tensor"]

# Tensors of this many bytes are hashed one by one.
_BULK_BYTES = 2**20


def to_message(model: ir.Model, elsewhere: Mapping[int, ir.ExternalTensor] | None = None) -> onnx.ModelProto:
    """The message of a model as an object, of any size.

    Args:
        model: The model; not changed.
        elsewhere: References to be written instead of tensors, by `id` of the tensor. Others in files are read.
    """
    references = elsewhere or {}

    def placed(tensor: Tensor) -> Tensor | None:
        return references.get(id(tensor)) or in_memory(tensor)

    if references or any(isinstance(tensor, FileTensor) for tensor in tensors_of(model)):
        model = model.clone()
        replace_tensors(model, placed)
    with quiet_ir():
        return ir.to_proto(model)


def serialised(model: ir.Model, elsewhere: Mapping[int, ir.ExternalTensor] | None = None) -> bytes:
    """The same as bytes.

    Raises:
        EncodeError, ValueError: If it is above protobuf's 2 GiB.
    """
    data: bytes = to_message(model, elsewhere).SerializeToString(deterministic=True)
    return data


def content_hash(model: ir.Model) -> str:
    """sha256 of a model, hex; the same whether its numbers lie in the message or in files, of any size.

    It is that of the message where no tensor has 1 MiB. Larger ones are referred to in it by their place in this
    order, and hashed after it.
    """
    bulk = [tensor for tensor in tensors_of(model) if _is_bulk(tensor)]
    digest = hashlib.sha256(serialised(model, {id(tensor): reference_to(tensor, "", None) for tensor in bulk}))
    for tensor in bulk:
        for chunk in tensor.chunks() if isinstance(tensor, FileTensor) else (tensor.tobytes(),):
            digest.update(chunk)
    return digest.hexdigest()


def _is_bulk(tensor: Tensor) -> bool:
    if isinstance(tensor, ir.StringTensor) or tensor.nbytes < _BULK_BYTES:
        return False
    # Numbers written one by one (float_data) keep their form.
    return not isinstance(tensor, ir.serde.TensorProtoTensor) or bool(tensor.raw.HasField("raw_data"))


def write_tensor(tensor: Tensor, file: IO[bytes]) -> None:
    """Append the bytes of a tensor to an open file."""
    if isinstance(tensor, FileTensor):
        tensor.tofile(file)
    else:
        file.write(tensor.tobytes())


def reference_to(tensor: Tensor, location: str, offset: int | None) -> ir.ExternalTensor:
    """A tensor's name, type and notes with another place for its numbers."""
    return ir.ExternalTensor(
        location,
        offset,
        None if offset is None else tensor.nbytes,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name or "",
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props) or None,
    )
