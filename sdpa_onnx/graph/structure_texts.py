"""Find text in a message that is not UTF-8: protobuf reads it, onnx_ir and onnx.checker do not look at it."""

from collections.abc import Iterator
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

__all__ = ["text_fault"]


def text_fault(message: Message) -> str | None:
    """Describe the first text that is not UTF-8, or None."""
    return next(_bad_texts(message), None)


def _bad_texts(message: Message) -> Iterator[str]:
    texts, inner = _fields(message.DESCRIPTOR)
    for name, is_list in texts:
        value = getattr(message, name)
        for text in value if is_list else (value,):
            if not isinstance(text, str):
                yield f"a text in it (field {name}) is not UTF-8: {bytes(text[:40])!r}"
    for name, is_list in inner:
        if is_list:
            for part in getattr(message, name):
                yield from _bad_texts(part)
        elif message.HasField(name):
            yield from _bad_texts(getattr(message, name))


@cache
def _fields(descriptor: Descriptor) -> tuple[tuple[tuple[str, bool], ...], tuple[tuple[str, bool], ...]]:
    """Name of the fields that hold text and of those that hold messages, and whether each is a list."""
    texts = [field for field in descriptor.fields if field.type == FieldDescriptor.TYPE_STRING]
    inner = [field for field in descriptor.fields if field.message_type is not None]
    return tuple((one.name, one.is_repeated) for one in texts), tuple((one.name, one.is_repeated) for one in inner)
