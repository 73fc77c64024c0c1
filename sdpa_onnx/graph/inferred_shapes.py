"""Infer types and shapes of a graph with onnx, in place. Linear in nodes and tensors; numbers of large tensors stay.

The pass of onnx_ir looks for every tensor in the list of inputs, and reads the whole inferred model back.
"""

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from sdpa_onnx.graph.domains import is_standard
from sdpa_onnx.graph.quiet import quiet_ir

__all__ = ["infer_shapes", "makes_tensors"]

# Numbers of larger tensors are not copied: what inference follows are sizes, axes and shapes.
_MOST_BYTES = 1000
# Operators whose output is a sequence or optional. onnx_ir writes the type and shape of its elements there, as if it
# were a tensor, and a runtime refuses the file then.
_NO_TENSOR = frozenset(
    {
        *("Optional", "SequenceConstruct", "SequenceEmpty", "SequenceErase"),
        *("SequenceInsert", "SequenceMap", "SplitToSequence"),
    }
)


def infer_shapes(model: ir.Model) -> None:
    """State the types and shapes that inference knows; what it does not know, or cannot read, stays as it is."""
    with quiet_ir():
        message = _message(model)
        try:
            inferred = onnx.shape_inference.infer_shapes(message, check_type=False, strict_mode=False, data_prop=True)
        except Exception:  # noqa: BLE001  # native code: a node that inference rejects, of any type of error
            return
        _merge(model.graph, inferred.graph)


def _message(model: ir.Model) -> onnx.ModelProto:
    """The model without the numbers of its large tensors, which become inputs; the model is the same afterwards."""
    graph = model.graph
    kept, inputs = list(graph.initializers.values()), list(graph.inputs)
    own = {id(value) for value in inputs}
    tensors = [value.const_value for value in kept]
    try:
        for value, tensor in zip(kept, tensors, strict=True):
            if tensor is not None:
                value.shape = ir.Shape(tensor.shape.numpy()) if value.shape is None else value.shape
                value.dtype = tensor.dtype if value.dtype is None else value.dtype
            if id(value) not in own:
                graph.inputs.append(value)
            if tensor is None or tensor.nbytes > _MOST_BYTES:
                value.const_value = None
                del graph.initializers[value.name or ""]
        return ir.to_proto(model)
    finally:
        graph.inputs.clear()
        graph.inputs.extend(inputs)
        graph.initializers.clear()
        for value, tensor in zip(kept, tensors, strict=True):
            value.const_value = tensor
            graph.initializers.add(value)


def _merge(graph: ir.Graph, inferred: onnx.GraphProto) -> None:
    values = {value.name: value for value in _tensors(graph)}
    for info in (*inferred.value_info, *inferred.output):
        value = values.get(info.name)
        if value is not None:
            _state(value, info.type)
    for node, message in zip(graph, inferred.node, strict=True):
        for attribute in message.attribute:
            own = node.attributes.get(attribute.name)
            if own is None or own.is_ref():
                continue
            if own.type is ir.AttributeType.GRAPH:
                _merge(own.value, attribute.g)
            elif own.type is ir.AttributeType.GRAPHS:
                for body, one in zip(own.value, attribute.graphs, strict=True):
                    _merge(body, one)


def _tensors(graph: ir.Graph) -> Iterator[ir.Value]:
    """The values of the graph itself, without sequences."""
    yield from graph.initializers.values()
    yield from graph.inputs
    for node in graph:
        if makes_tensors(node):
            yield from node.outputs


def makes_tensors(node: ir.Node) -> bool:
    """Whether the outputs of a node are tensors, not sequences or optionals."""
    return node.op_type not in _NO_TENSOR or not is_standard(node)


def _state(value: ir.Value, stated: onnx.TypeProto) -> None:
    shape = ir.serde.deserialize_type_proto_for_shape(stated)
    kind = ir.serde.deserialize_type_proto_for_type(stated)
    if shape is not None and shape != value.shape:
        value.shape = shape
    if kind is not None and kind.dtype != value.dtype:
        value.dtype = kind.dtype
