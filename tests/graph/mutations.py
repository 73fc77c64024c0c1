"""Damaged copies of small valid files, the same for the same seed: bytes, fields of messages, values, tensor files."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import TensorProto, helper, numpy_helper

from tests.graph.models import bare, inner_attention, model_of
from tests.workflows.convert_sources import with_padding
from tests.workflows.foreign_models import in_function, in_if, several
from tests.workflows.quantised_models import block

__all__ = ["BASES", "DATA", "damaged"]

DATA = "weights.bin"
_MODELS = Path(__file__).parents[2] / "models"
_TINY = Path(__file__).parents[1] / "transformers" / "tiny" / "tiny-llama-dynamo-18.onnx"
_SIZE: list[int | str | None] = ["batch_size", 2, "q_seq_len", 8]
_PLACES = ("../../x", "/etc/hostname", "..", ".", "", "gone", "sub/../../x", "a\0b", "n" * 5000, DATA, "m.onnx")
_NUMBERS = (0, 1, -1, 2, 3, 7, 64, 2**31 - 1, -(2**31), 2**31, 2**62, -(2**62), 2**63 - 1)
_WORDS = ("", "x", "q", "y", "Attention", "MatMul", "Softmax", "Loop", "com.microsoft", "é", "a b", "-1", "9" * 30)


def _decomposed() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Transpose", ["x"], ["xt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["x", "xt"], ["scores"]),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "x"], ["y"]),
    ]
    constants = {"scale": np.array(0.125, np.float32), "bias": np.zeros((1, 1, 1, 1), np.float32)}
    return model_of(nodes, {"x": _SIZE}, {"y": _SIZE}, constants, opset=18)


def _contrib() -> onnx.ModelProto:
    node = helper.make_node("MultiHeadAttention", ["x", "x", "x"], ["y"], domain="com.microsoft", num_heads=2)
    size: list[int | str | None] = ["batch_size", "q_seq_len", 16]
    return model_of([node], {"x": size}, {"y": size}, opset=18)


def _outside() -> onnx.ModelProto:
    model = inner_attention()
    # Large enough not to be read at once.
    weight = np.zeros((64, 8, 8), np.float32)
    offset = 0
    for tensor, array in ((model.graph.initializer[0], np.eye(8, dtype=np.float32)), (None, weight)):
        proto = tensor or model.graph.initializer.add()
        proto.CopyFrom(numpy_helper.from_array(array, proto.name or "large"))
        proto.ClearField("raw_data")
        proto.data_location = TensorProto.EXTERNAL
        for key, value in (("location", DATA), ("offset", offset), ("length", array.nbytes)):
            proto.external_data.add(key=key, value=str(value))
        offset += array.nbytes
    return model


def _looped() -> onnx.ModelProto:
    one = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Attention", ["carried", "x", "x"], ["next"], name="inner"),
            helper.make_node("Identity", ["go_in"], ["go_out"]),
        ],
        "body",
        [one("step", TensorProto.INT64, []), one("go_in", TensorProto.BOOL, []), one("carried", 1, _SIZE)],
        [one("go_out", TensorProto.BOOL, []), one("next", 1, _SIZE)],
    )
    nodes = [helper.make_node("Loop", ["count", "go", "x"], ["y"], name="loop", body=body)]
    constants = {"count": np.array(2, np.int64), "go": np.array(True)}  # a number, no argument
    return model_of(nodes, {"x": _SIZE}, {"y": _SIZE}, constants)


def _exported() -> onnx.ModelProto:
    return onnx.load(_MODELS / "bert-base" / "self-padded" / "18.onnx")


def _old() -> onnx.ModelProto:
    model = _decomposed()
    model.opset_import[0].version = 12
    return model


BASES: dict[str, Callable[[], onnx.ModelProto]] = {
    "attention": lambda: onnx.load_from_string(bare(opset=24).to_bytes()),
    "decomposed": _decomposed,
    "contrib": _contrib,
    "outside": _outside,
    "loop": _looped,
    "export": _exported,
    "old": _old,
    "function": in_function,
    "branches": in_if,
    "several": several,
    "quantised": lambda: block(["x", "q", "k", "v"], after=True).to_proto(),
    "padding": with_padding,
    "decoder": lambda: onnx.load(_TINY),
}


def damaged(seed: int, folder: Path, bases: Mapping[str, Callable[[], onnx.ModelProto]] = BASES) -> Path:
    """Write one damaged file into a folder, with its tensor file.

    Args:
        seed: 0, 1, ...: the kinds of files in turn.
        folder: An empty folder.
        bases: What is damaged.
    """
    rng = np.random.default_rng(seed)
    base = bases[list(bases)[seed % len(bases)]]()
    data = np.random.default_rng(0).bytes(256 + 64 * 64 * 4)
    kind = rng.random()
    message = base.SerializeToString()
    if kind < 0.15:
        message = _with_other_bytes(message, rng)
    elif kind < 0.25:
        message = message[: int(rng.integers(1, len(message)))]
    else:
        for _ in range(int(rng.integers(1, 4))):
            _CHANGES[int(rng.integers(len(_CHANGES)))](base, rng)
        message = base.SerializeToString()
    _write_data(folder / DATA, data, rng)
    path = folder / "m.onnx"
    path.write_bytes(message)
    return path


def _write_data(path: Path, data: bytes, rng: np.random.Generator) -> None:
    match int(rng.integers(12)):
        case 0:
            path.write_bytes(data[: int(rng.integers(len(data)))])
        case 1:
            path.mkdir()
        case 2:
            os.mkfifo(path)
        case 3:
            path.symlink_to("/etc/hostname")
        case 4:
            path.symlink_to(path)
        case _:
            path.write_bytes(data)


def _with_other_bytes(message: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(message)
    for _ in range(int(rng.integers(1, 5))):
        changed[int(rng.integers(len(changed)))] ^= int(rng.integers(1, 256))
    return bytes(changed)


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else (value,):
                yield from _messages(inner)


def _pick(options: object, rng: np.random.Generator) -> object:
    listed = list(options)  # type: ignore[call-overload]
    return listed[int(rng.integers(len(listed)))]


def _change_field(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    """Clear, repeat, reorder or set one field anywhere."""
    message = _pick(_messages(model), rng)
    assert isinstance(message, Message)
    fields = list(message.ListFields()) or [(field, None) for field in message.DESCRIPTOR.fields]
    field = fields[int(rng.integers(len(fields)))][0]
    if field.is_repeated:
        _change_list(getattr(message, field.name), field, rng)
    elif rng.random() < 0.2 or field.message_type is not None:
        message.ClearField(field.name)
    else:
        _set(message, field, rng)


def _change_list(values: object, field: FieldDescriptor, rng: np.random.Generator) -> None:
    items = list(values)  # type: ignore[call-overload]
    place = int(rng.integers(len(items))) if items else 0
    match int(rng.integers(4)):
        case 0:
            del items[place : place + 1]
        case 1:
            items += items[place : place + 1]
        case 2:
            items = [items[int(at)] for at in rng.permutation(len(items))]
        case _:
            if field.message_type is None and items:
                items[place] = _value(field, rng)
    kept = [item if field.message_type is None else type(item).FromString(item.SerializeToString()) for item in items]
    del values[:]  # type: ignore[attr-defined]
    values.extend(kept)  # type: ignore[attr-defined]


def _set(message: Message, field: FieldDescriptor, rng: np.random.Generator) -> None:
    try:
        setattr(message, field.name, _value(field, rng))
    except ValueError:  # an enum that cannot hold it
        message.ClearField(field.name)


def _value(field: FieldDescriptor, rng: np.random.Generator) -> object:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        word = str(_pick(_WORDS, rng))
        return word.encode() if field.type == FieldDescriptor.TYPE_BYTES else word
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return float(_pick((0.0, -1.0, 1e38, float("nan"), float("inf"), 0.5), rng))  # type: ignore[arg-type]
    number = int(_pick(_NUMBERS, rng))  # type: ignore[call-overload]
    if field.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_ENUM):
        return number if -(2**31) <= number < 2**31 else 99
    return abs(number) if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else number


def _change_node(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    """Wire one node otherwise: to another value (its own output too), twice, to nothing, under another operator."""
    nodes = [message for message in _messages(model) if isinstance(message, onnx.NodeProto)]
    if not nodes:
        return
    node = nodes[int(rng.integers(len(nodes)))]
    names = [name for other in nodes for name in (*other.input, *other.output)] or ["x"]
    match int(rng.integers(7)):
        case 0 if node.input:
            node.input[int(rng.integers(len(node.input)))] = str(_pick(names, rng))
        case 1 if node.output:
            node.output[int(rng.integers(len(node.output)))] = str(_pick((*names, "", "fresh"), rng))
        case 2:
            node.input.append(str(_pick((*names, "", "dangling"), rng)))
        case 3 if node.input:
            del node.input[-1]
        case 4:
            node.op_type = str(_pick([other.op_type for other in nodes] + ["If", "Scan", "Attention", "Constant"], rng))
        case 5 if node.attribute:
            attribute = node.attribute[int(rng.integers(len(node.attribute)))]
            attribute.type = int(rng.integers(0, 15))  # type: ignore[assignment]
        case _:
            node.domain = str(_pick(("", "com.microsoft", "ai.onnx", "gone"), rng))


def _change_tensor(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    """Another size, type or place for one tensor's numbers."""
    tensors = [message for message in _messages(model) if isinstance(message, onnx.TensorProto)]
    if not tensors:
        return
    tensor = tensors[int(rng.integers(len(tensors)))]
    match int(rng.integers(5)):
        case 0 if tensor.dims:
            tensor.dims[int(rng.integers(len(tensor.dims)))] = int(_pick(_NUMBERS, rng))  # type: ignore[call-overload]
        case 1:
            tensor.raw_data = rng.bytes(int(rng.integers(0, 40)))
        case 2:
            tensor.data_type = int(rng.integers(0, 30))
        case _:
            tensor.data_location = TensorProto.EXTERNAL
            for entry in tensor.external_data or [tensor.external_data.add(key="location")]:
                if rng.random() < 0.5:
                    numbers = [str(number) for number in _NUMBERS]
                    entry.value = str(_pick(_PLACES if entry.key == "location" else (*numbers, "", "1e9", "x"), rng))


_CHANGES = (_change_field, _change_field, _change_field, _change_node, _change_node, _change_tensor)
