"""Convert a node to float64: every float element type in its attributes and subgraphs becomes double.

Writes protos for ONNX's reference evaluator; evaluates nothing.
"""

import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, numpy_helper

__all__ = ["widened_node"]

_NARROW = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
# Attributes that hold an element type.
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "softmax_precision", "stash_type"})
# The reference evaluator computes these in the type of the input, and refuses any stash_type except 1.
_STASH_AS_INPUT = frozenset({"LayerNormalization", "RMSNormalization"})


def widened_node(node: NodeProto) -> NodeProto:
    """Copy a node so that it computes in float64 on float64 inputs.

    A Cast to a narrower float type becomes a Cast to double: the error bound of
    the verification covers the rounding of the original.
    """
    wide = NodeProto()
    wide.CopyFrom(node)
    for attribute in wide.attribute:
        _widen_attribute(attribute, node.op_type)
    return wide


def _widen_attribute(attribute: AttributeProto, op_type: str) -> None:
    if attribute.type == AttributeProto.INT and attribute.name in _TYPE_ATTRIBUTES and attribute.i in _NARROW:
        keeps = attribute.name == "stash_type" and op_type in _STASH_AS_INPUT
        attribute.i = TensorProto.FLOAT if keeps else TensorProto.DOUBLE
    elif attribute.type == AttributeProto.TENSOR:
        _widen_tensor(attribute.t)
    elif attribute.type == AttributeProto.GRAPH:
        _widen_graph(attribute.g)
    elif attribute.type == AttributeProto.GRAPHS:
        for graph in attribute.graphs:
            _widen_graph(graph)


def _widen_graph(graph: GraphProto) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        tensor = value.type.tensor_type
        if tensor.elem_type in _NARROW:
            tensor.elem_type = TensorProto.DOUBLE
    for initializer in graph.initializer:
        _widen_tensor(initializer)
    for node in graph.node:
        for attribute in node.attribute:
            _widen_attribute(attribute, node.op_type)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _NARROW:
        wide = numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float64"), tensor.name)
        tensor.CopyFrom(wide)
