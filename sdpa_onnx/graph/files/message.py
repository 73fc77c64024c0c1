"""A model as one message, its large tensors read from files and written in their turn.

Cuts them out of a file on the way in, puts them back in on the way out: the
bytes are those of protobuf's own writer. Where files lie is `saved_files`' matter.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, cast

import onnx
import onnx_ir as ir

from sdpa_onnx.graph.files.external_data import FileTensor, Tensor, replace_tensors, tensors_of
from sdpa_onnx.graph.files.wire import Piece, fields_of, rewritten, varint
from sdpa_onnx.graph.quiet import quiet_ir

__all__ = ["is_bulk", "message_pieces", "reference_to", "without_bulk", "write_tensor"]

# Tensors of this many bytes are never copied into a message that is held.
_BULK_BYTES = 2**20
# Stands for a file in messages that nobody else sees; no file has such a name.
_MARK = "\0bulk "
_LENGTH_FIELD = 2


def without_bulk(data: memoryview, name: str) -> bytes:
    """A serialised model whose large tensors refer to their place in the file instead.

    Args:
        data: The file, mapped.
        name: Its name, which the references carry.

    Raises:
        WireError: If it is no message.
    """

    def referred(part: memoryview, place: int) -> Sequence[Piece] | None:
        fields = fields_of(part)
        raws = [field for field in fields if field[0] == onnx.TensorProto.RAW_DATA_FIELD_NUMBER]
        elsewhere = {onnx.TensorProto.EXTERNAL_DATA_FIELD_NUMBER, onnx.TensorProto.DATA_LOCATION_FIELD_NUMBER}
        # What is written twice or in two places is left to protobuf and its checks.
        if len(raws) != 1 or elsewhere & {field[0] for field in fields}:
            return None
        (_, begin, start, end) = raws[0]
        if start is None or end - start < _BULK_BYTES:
            return None
        reference = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)
        for key, value in (("location", name), ("offset", place + start), ("length", end - start)):
            reference.external_data.add(key=key, value=str(value))
        return [part[:begin], part[end:], reference.SerializeToString()]

    return b"".join(cast("Sequence[bytes]", rewritten(data, referred, at_least=_BULK_BYTES)))


def is_bulk(tensor: Tensor) -> bool:
    """Whether a tensor's numbers are kept out of messages that are held: in a file, or many."""
    if isinstance(tensor, FileTensor):
        return True
    if isinstance(tensor, ir.ExternalTensor | ir.StringTensor):
        return False
    # Numbers written one by one (float_data) keep their form.
    if isinstance(tensor, ir.serde.TensorProtoTensor) and not tensor.raw.HasField("raw_data"):
        return False
    return tensor.nbytes >= _BULK_BYTES


def _chunks_of(tensor: Tensor) -> Iterator[bytes]:
    """The bytes of a tensor, a few at a time where it lies in a file."""
    return tensor.chunks() if isinstance(tensor, FileTensor) else iter((tensor.tobytes(),))


def write_tensor(tensor: Tensor, file: IO[bytes]) -> None:
    """Append the bytes of a tensor to an open file."""
    if isinstance(tensor, FileTensor):
        tensor.tofile(file)
    else:
        file.write(tensor.tobytes())


@dataclass(frozen=True, slots=True)
class _Numbers:
    tensor: Tensor

    @property
    def nbytes(self) -> int:
        return self.tensor.nbytes

    def chunks(self) -> Iterator[bytes]:
        return _chunks_of(self.tensor)

    def tofile(self, file: IO[bytes]) -> None:
        write_tensor(self.tensor, file)


def message_pieces(model: ir.Model, elsewhere: Mapping[int, ir.ExternalTensor] | None = None) -> Sequence[Piece]:
    """The message of a model in pieces, large tensors each a piece whose numbers are not read yet.

    Args:
        model: The model; not changed.
        elsewhere: References to be written instead of tensors, by `id` of the tensor.

    Raises:
        EncodeError, ValueError: If what is not numbers is above protobuf's 2 GiB.
    """
    outside = elsewhere or {}
    if not outside and not any(is_bulk(tensor) for tensor in tensors_of(model)):
        return [_serialised(model)]
    bulk: list[Tensor] = []

    def marked(tensor: Tensor) -> Tensor | None:
        if id(tensor) in outside:
            return outside[id(tensor)]
        if not is_bulk(tensor):
            return None
        bulk.append(tensor)
        return reference_to(tensor, f"{_MARK}{len(bulk) - 1}", None)

    def filled(part: memoryview, _place: int) -> Sequence[Piece] | None:
        proto = onnx.TensorProto.FromString(bytes(part))
        if not proto.external_data or not proto.external_data[0].value.startswith(_MARK):
            return None
        tensor = bulk[int(proto.external_data[0].value.removeprefix(_MARK))]
        return _filled(proto, tensor)

    copy = model.clone()
    replace_tensors(copy, marked)
    return rewritten(memoryview(_serialised(copy)), filled)


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


def _filled(proto: onnx.TensorProto, tensor: Tensor) -> Sequence[Piece]:
    """The tensor with its numbers, in the order of field numbers as protobuf writes it."""
    raw = onnx.TensorProto.RAW_DATA_FIELD_NUMBER
    proto.ClearField("external_data")
    proto.ClearField("data_location")
    data = proto.SerializeToString(deterministic=True)
    cut = next((begin for number, begin, _, _ in fields_of(memoryview(data)) if number > raw), len(data))
    return [data[:cut], varint(raw << 3 | _LENGTH_FIELD) + varint(tensor.nbytes), _Numbers(tensor), data[cut:]]


def _serialised(model: ir.Model) -> bytes:
    with quiet_ir():
        data: bytes = ir.to_proto(model).SerializeToString(deterministic=True)
    return data
