"""Read a large serialised model without its large tensors: each becomes a reference to its place in the file.

Walks the fields of the messages that can hold tensors and parses nothing else, so
that a file of 2 GiB is mapped and not read. Plain protobuf holds it twice.

Source: https://protobuf.dev/programming-guides/encoding (varints, tags, lengths).
"""

from collections.abc import Iterator

import onnx

__all__ = ["WireError", "is_too_deep", "without_bulk"]

# Tensors of this many bytes stay in the file.
_BULK_BYTES = 2**20
# What protobuf reads at most.
_MOST_BYTES = 2**31 - 1
# The kind of field that has a length: text, bytes, messages.
_LENGTH = 2
# Source: protobuf's own limit on messages inside messages.
_DEEPEST = 100
# A graph holds messages inside messages itself: an output, its type, its shape, a size.
_BELOW_GRAPH = 5

# Where messages that can hold tensors stand: message -> field number -> message.
_INNER: dict[str, dict[int, str]] = {
    "ModelProto": {7: "GraphProto", 25: "FunctionProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto"},
    "FunctionProto": {7: "NodeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {5: "TensorProto", 6: "GraphProto", 10: "TensorProto", 11: "GraphProto"},
}


class WireError(ValueError):
    """Bytes that are no protobuf message."""


def without_bulk(data: memoryview, name: str) -> bytes:
    """A serialised model whose large tensors refer to their place in the file instead.

    Args:
        data: The file, mapped.
        name: Its name, which the references carry.

    Raises:
        WireError: If it is no message, or one that protobuf does not read.
    """
    found = _rewritten(data, "ModelProto", 0, name, 0)
    if len(data if found is None else found) > _MOST_BYTES:
        raise WireError
    return bytes(data) if found is None else found


def is_too_deep(data: bytes) -> bool:
    """Whether subgraphs are nested deeper than protobuf reads; False for bytes that are no message."""
    waiting = [(memoryview(data), "ModelProto", 0)]
    try:
        while waiting:
            part, message, depth = waiting.pop()
            if depth > _DEEPEST - _BELOW_GRAPH:
                return True
            found = ((_INNER[message].get(number), start, end) for number, _, start, end in _fields(part))
            waiting += [
                (part[start:end], inner, depth + 1)
                for inner, start, end in found
                if inner in _INNER and start is not None
            ]
    except WireError:
        return False
    return False


def _rewritten(data: memoryview, message: str, place: int, name: str, depth: int) -> bytes | None:
    """One message without its large tensors, or None if it has none."""
    if depth > _DEEPEST:
        raise WireError
    pieces: list[bytes | memoryview] = []
    kept = 0
    for number, begin, start, end in _fields(data):
        inner = _INNER[message].get(number)
        if inner is None or start is None or end - start < _BULK_BYTES:
            continue
        if inner == "TensorProto":
            new = _reference(data[start:end], place + start, name)
        else:
            new = _rewritten(data[start:end], inner, place + start, name, depth + 1)
        if new is not None:
            pieces += [data[kept:begin], _varint(number << 3 | _LENGTH) + _varint(len(new)), new]
            kept = end
    return b"".join([*pieces, data[kept:]]) if pieces else None


def _reference(part: memoryview, place: int, name: str) -> bytes | None:
    """A tensor that refers to its numbers in the file, or None if they are few or not in `raw_data` alone."""
    fields = list(_fields(part))
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
    return b"".join([part[:begin], part[end:], reference.SerializeToString()])


def _fields(data: memoryview) -> Iterator[tuple[int, int, int | None, int]]:
    """Number, first byte, first byte of the content (None: it has no length) and end of every field.

    Raises:
        WireError: If it is no message.
    """
    position = 0
    while position < len(data):
        begin = position
        tag, position = _number(data, position)
        start: int | None = None
        match tag & 7:
            case 0:
                _, position = _number(data, position)
            case 1:
                position += 8
            case 5:
                position += 4
            case 2:
                length, start = _number(data, position)
                position = start + length
            case _:
                raise WireError
        if position > len(data):
            raise WireError
        if not tag >> 3:  # no field has this number: bytes of zero, of which a sparse file has as many as it likes
            raise WireError
        yield tag >> 3, begin, start, position


def _number(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise WireError


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
