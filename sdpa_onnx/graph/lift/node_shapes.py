"""Infer types and shapes of one node's outputs with ONNX's own rule for its operator.

Shape inference of a graph stops at the first node whose output it does not know. Node by node it goes on from shapes
that were found in another way. Sizes may be numbers or symbols; a symbol that the rule keeps comes back as it was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.graph.domains import standard_schema
from sdpa_onnx.graph.lift.sizes import SizeEntry, SymbolicSize
from sdpa_onnx.graph.nodes_apart import has_subgraph

__all__ = ["InferredType", "KnownInput", "node_as_proto", "output_types"]

# Of contents that decide a shape: axes, a target shape, the ends of a slice.
_MOST_NUMBERS = 64
_FAULTS = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError, TypeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownInput:
    """What is known of an input.

    Args:
        dtype: Element type.
        sizes: Of its axes; None for one that is unknown.
        numbers: Its contents, where they are known.
    """

    dtype: ir.DataType
    sizes: Sequence[SizeEntry | None]
    numbers: NDArray[np.generic] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InferredType:
    """What is inferred of an output: its element type, and its sizes, or None if not even their number is known."""

    dtype: ir.DataType
    sizes: tuple[SizeEntry | None, ...] | None


def node_as_proto(node: ir.Node) -> onnx.NodeProto:
    """The node as a proto, its inputs named i0, i1, ... and its outputs o0, o1, ..."""
    proto: onnx.NodeProto = ir.to_proto(node)
    del proto.input[:], proto.output[:]
    proto.input.extend(f"i{at}" if one is not None else "" for at, one in enumerate(node.inputs))
    proto.output.extend(f"o{at}" for at in range(len(node.outputs)))
    return proto


def output_types(
    node: ir.Node, opsets: Mapping[str, int], inputs: Sequence[KnownInput | None]
) -> list[InferredType | None]:
    """The inferred type of each output of a standard node; None for one that is unknown.

    Args:
        node: The node.
        opsets: Opset version by domain.
        inputs: In the order of the node; None for an absent or unknown one.
    """
    unknown: list[InferredType | None] = [None] * len(node.outputs)
    opset = opsets.get("", 0)
    schema = standard_schema(node, opset)
    if schema is None or has_subgraph(node):
        return unknown
    symbols: dict[str, SizeEntry] = {}
    types, data = {}, {}
    for at, known in enumerate(inputs):
        if known is None:
            continue
        shape = [_written(size, symbols) for size in known.sizes]
        types[f"i{at}"] = onnx.helper.make_tensor_type_proto(known.dtype.value, shape)
        if known.numbers is not None and known.numbers.size <= _MOST_NUMBERS:
            data[f"i{at}"] = onnx.numpy_helper.from_array(known.numbers, f"i{at}")
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    try:
        found = onnx.shape_inference.infer_node_outputs(schema, node_as_proto(node), types, data, opset_imports=imports)
    except _FAULTS:
        return unknown
    return [_read(found.get(f"o{at}"), symbols) for at in range(len(node.outputs))]


def _written(size: SizeEntry | None, symbols: dict[str, SizeEntry]) -> int | str | None:
    if not isinstance(size, SymbolicSize):
        return size
    name = next((name for name, known in symbols.items() if known == size), f"size{len(symbols)}")
    symbols[name] = size
    return name


def _read(found: onnx.TypeProto | None, symbols: Mapping[str, SizeEntry]) -> InferredType | None:
    if found is None or not found.tensor_type.elem_type:
        return None
    dtype = ir.DataType(found.tensor_type.elem_type)
    if not found.tensor_type.HasField("shape"):
        return InferredType(dtype=dtype, sizes=None)
    dims = found.tensor_type.shape.dim
    sizes = [dim.dim_value if dim.HasField("dim_value") else symbols.get(dim.dim_param) for dim in dims]
    return InferredType(dtype=dtype, sizes=tuple(sizes))
