"""Whether a tensor's numbers fit its shape and type, and a value's type can be read; looks into no other file."""

import math

import onnx
import onnx_ir as ir

__all__ = ["tensor_fault", "type_fault"]

# Beyond what any memory holds; numpy's own sizes end at 2**63.
_LARGEST_ELEMENTS = 2**56

_T = onnx.TensorProto
_RAW = "raw_data"
_IN_INT32 = frozenset({_T.INT32, _T.INT16, _T.INT8, _T.UINT16, _T.UINT8, _T.BOOL, _T.FLOAT16, _T.BFLOAT16})
# The field that holds numbers one by one, by element type. Types of 8 bits and less lie in int32_data too.
_FIELDS: dict[int, str] = {
    _T.FLOAT: "float_data",
    _T.COMPLEX64: "float_data",
    _T.DOUBLE: "double_data",
    _T.COMPLEX128: "double_data",
    _T.INT64: "int64_data",
    _T.UINT32: "uint64_data",
    _T.UINT64: "uint64_data",
    _T.STRING: "string_data",
}
_ALL_FIELDS = (_RAW, "int32_data", *sorted(set(_FIELDS.values())))


def tensor_fault(tensor: onnx.TensorProto) -> str | None:
    """What is wrong with a tensor, for a sentence that begins with its name."""
    if tensor.data_type not in _T.DataType.values() or tensor.data_type == _T.UNDEFINED:
        return f"is of the unknown type {tensor.data_type}"
    if any(dim < 0 for dim in tensor.dims) or math.prod(dim for dim in tensor.dims if dim) > _LARGEST_ELEMENTS:
        return f"has a size that cannot be: {list(tensor.dims)}"
    if tensor.HasField("segment"):
        return "is given in segments, which are not read here"
    filled = [name for name in _ALL_FIELDS if len(getattr(tensor, name))]
    if tensor.data_location == _T.EXTERNAL:
        return "has numbers here and in a file" if filled else _external_fault(tensor)
    if tensor.external_data:
        return "names a file, but is said to have its numbers here"
    return _length_fault(tensor, filled)


def _length_fault(tensor: onnx.TensorProto, filled: list[str]) -> str | None:
    """Numbers in another field, or too few or too many of them."""
    field = _FIELDS.get(tensor.data_type, "int32_data")
    if len(filled) > 1 or (filled and filled[0] not in (_RAW, field)):
        return f"of type {_T.DataType.Name(tensor.data_type)} has its numbers in {' and '.join(filled)}"
    if filled == [_RAW]:
        if tensor.data_type == _T.STRING:
            return "of type STRING has its text in raw_data"
        found, needed, unit = len(tensor.raw_data), _bytes(tensor), "bytes"
    else:
        found, needed, unit = len(getattr(tensor, field)), _entries(tensor), "numbers"
    return None if found == needed else f"has {found} {unit}, but its shape {list(tensor.dims)} takes {needed}"


def _bytes(tensor: onnx.TensorProto) -> int:
    return -(-_size(tensor) * _bits(tensor) // 8)


def _entries(tensor: onnx.TensorProto) -> int:
    size = _size(tensor)
    if tensor.data_type in (_T.COMPLEX64, _T.COMPLEX128):
        return 2 * size
    if tensor.data_type == _T.STRING or tensor.data_type in _IN_INT32:
        return size
    bits = _bits(tensor)
    # Two or four to an entry, packed as in raw_data; six bits stand alone.
    return -(-size * bits // 8) if bits in (2, 4) else size


def _size(tensor: onnx.TensorProto) -> int:
    return int(math.prod(tensor.dims))


def _bits(tensor: onnx.TensorProto) -> int:
    return int(ir.DataType(tensor.data_type).bitwidth)


def _external_fault(tensor: onnx.TensorProto) -> str | None:
    keys = [entry.key for entry in tensor.external_data]
    if len(keys) != len(set(keys)):
        return "tells the place of its numbers twice"
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if not entries.get("location"):
        return "lies in a file without a name"
    for key in ("offset", "length"):
        text = entries.get(key, "0")
        # A plain number that fits 63 bits: int() takes "1_0" and " 7" too, and thousands of digits take for ever.
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            return f"has no number as {key}: {text[:40]!r}"
    return None


def type_fault(proto: onnx.TypeProto) -> str | None:
    """What is wrong with a value's type, for a sentence that begins with its name; no type is fine."""
    match proto.WhichOneof("value"):
        case None:
            return None
        case "tensor_type":
            return _tensor_type_fault(proto.tensor_type)
        case "sequence_type":
            return type_fault(proto.sequence_type.elem_type)
        case "optional_type":
            return type_fault(proto.optional_type.elem_type)
        case other:
            return f"is of a kind that is not read here ({other})"


def _tensor_type_fault(proto: onnx.TypeProto.Tensor) -> str | None:
    if proto.elem_type not in _T.DataType.values():
        return f"is of the unknown type {proto.elem_type}"
    if any(dim.HasField("dim_value") and dim.dim_value < 0 for dim in proto.shape.dim):
        return "has a negative size; an axis of any size has a name or nothing"
    return None
