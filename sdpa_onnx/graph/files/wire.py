"""Protobuf messages as bytes: large tensors cut out of them and put back in, never held.

Knows where tensors can stand in a model and how a field is written; knows
nothing of what a model means. Bytes that are no such message raise `WireError`.

Source: https://protobuf.dev/programming-guides/encoding (varints, tags, lengths).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import IO, Protocol

__all__ = [
    "Bulk",
    "Piece",
    "WireError",
    "byte_pieces",
    "fields_of",
    "rewritten",
    "total_length",
    "varint",
    "write_pieces",
]

# The kind of field that has a length: text, bytes, messages.
_LENGTH = 2
# Source: protobuf's own limit on messages inside messages.
_DEEPEST = 100

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


class Bulk(Protocol):
    """Numbers that are written when their turn comes."""

    @property
    def nbytes(self) -> int: ...

    def chunks(self) -> Iterator[bytes]: ...

    def tofile(self, file: IO[bytes]) -> None: ...


Piece = bytes | memoryview | Bulk
# From the bytes of a tensor and their place in the whole to what stands instead; None = leave it.
Change = Callable[[memoryview, int], Sequence[Piece] | None]


def rewritten(data: memoryview, change: Change, *, at_least: int = 0) -> Sequence[Piece]:
    """The pieces of a serialised model whose tensors were changed, the lengths around them with them.

    Args:
        data: The model.
        change: What to do with each tensor.
        at_least: Bytes; what is shorter is not looked into.

    Raises:
        WireError: If it is no message.
    """
    return _rewritten(data, "ModelProto", 0, change, at_least, 0) or [data]


def total_length(pieces: Sequence[Piece]) -> int:
    """Bytes of all pieces."""
    return sum(piece.nbytes if not isinstance(piece, bytes) else len(piece) for piece in pieces)


def byte_pieces(pieces: Sequence[Piece]) -> Iterator[bytes | memoryview]:
    """The bytes of all pieces, a few at a time."""
    for piece in pieces:
        if isinstance(piece, bytes | memoryview):
            yield piece
        else:
            yield from piece.chunks()


def write_pieces(pieces: Sequence[Piece], file: IO[bytes]) -> None:
    """Append all pieces to an open file; numbers that lie in a file go from there to here."""
    for piece in pieces:
        if isinstance(piece, bytes | memoryview):
            file.write(piece)
        else:
            piece.tofile(file)


def varint(number: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def fields_of(data: memoryview) -> Iterator[tuple[int, int, int | None, int]]:
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
        yield tag >> 3, begin, start, position


def _rewritten(
    data: memoryview, message: str, place: int, change: Change, at_least: int, depth: int
) -> list[Piece] | None:
    """The pieces of one message, or None if nothing in it changes."""
    if depth > _DEEPEST:
        raise WireError
    pieces: list[Piece] = []
    kept = 0
    for number, begin, start, end in fields_of(data):
        inner = _INNER[message].get(number)
        if inner is None or start is None or end - start < at_least:
            continue
        part = data[start:end]
        if inner == "TensorProto":
            new = change(part, place + start)
        else:
            new = _rewritten(part, inner, place + start, change, at_least, depth + 1)
        if new is not None:
            pieces += [data[kept:begin], varint(number << 3 | _LENGTH) + varint(total_length(new)), *new]
            kept = end
    return [*pieces, data[kept:]] if kept else None


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
