"""Raise the opset of a model from 7 or later to at most 18 with ONNX's version converter, one node at a time.

Does not convert whole models: the version converter would lose names, shapes, metadata and nodes of other domains, and
load external data. Each node whose operator changed is converted alone instead, so everything else stays unchanged.
"""

from collections.abc import Sequence

import numpy as np
import onnx
import onnx.version_converter
import onnx_ir as ir

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.domains import is_standard
from sdpa_onnx.graph.lower.graph_edits import GraphEdits
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["HIGHEST", "LOWEST", "raise_older"]

# The version converter starts at 7; from 18 on, onnxscript converts.
LOWEST, HIGHEST = 7, 18
# Between these opsets they only gained types; the nodes of their subgraphs are converted one by one.
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})

# Of an input that the converter may need.
_MOST_NUMBERS = 64


def raise_older(model: ir.Model, opset: int) -> None:
    """Raise the opset of the default domain of a model, in place; model functions are inlined.

    Args:
        model: Its opset is at least 7 and below `opset`. A Softmax over several axes, as below opset 13, must have a
            known rank.
        opset: Target, 8 to 18.

    Raises:
        ModelError: If a node has no equivalent at that opset.
    """
    own = model.opset_imports[""]
    if model.functions:
        import onnx_ir.passes.common as passes

        passes.InlinePass()(model)
    nodes = Nodes(GraphEdits(model).free_prefix("raised"))
    for node in list(model.graph.all_nodes()):
        if is_standard(node) and _has_changed(node.op_type, own, opset):
            _raise(node, nodes, own, opset)
    model.opset_imports[""] = opset


def _has_changed(op_type: str, own: int, opset: int) -> bool:
    if op_type in _CONTROL_FLOW:
        return False
    try:
        before, after = (onnx.defs.get_schema(op_type, version, "") for version in (own, opset))
    except onnx.defs.SchemaError as error:
        raise ModelError(f"'{op_type}' is not an operator of opsets {own} to {opset}.") from error
    return before.since_version != after.since_version


def _raise(node: ir.Node, nodes: Nodes, own: int, opset: int) -> None:
    """Give a node the converted attributes, and attributes that became inputs as constant inputs; or replace it."""
    raised = ir.from_proto(onnx.version_converter.convert_version(_single_node_model(node, own), opset)).graph
    *before, last = raised
    if last.op_type != node.op_type or any(one.op_type != "Constant" for one in before):
        _replace(node, nodes, raised)
        return
    constants = _constants(raised, before)
    first = len(nodes.written)
    for position, value in enumerate(last.inputs):
        if value is not None and value.name in constants:
            if position >= len(node.inputs):
                node.resize_inputs(position + 1)
            tensor = constants[value.name]
            node.replace_input_with(position, nodes.constant(np.asarray(tensor.numpy()), tensor.dtype))
    if node.graph is not None and len(nodes.written) > first:
        node.graph.insert_before(node, nodes.written[first:])
    for name in [name for name in node.attributes if name not in last.attributes]:
        del node.attributes[name]
    node.attributes.update({name: value for name, value in last.attributes.items() if name not in node.attributes})


def _constants(raised: ir.Graph, nodes: Sequence[ir.Node]) -> dict[str | None, ir.TensorProtocol]:
    constants = {one.outputs[0].name: one.attributes["value"].as_tensor() for one in nodes}
    return constants | {
        name: value.const_value for name, value in raised.initializers.items() if value.const_value is not None
    }


def _replace(node: ir.Node, nodes: Nodes, raised: ir.Graph) -> None:
    """Replace a node by the several nodes that compute the same at the higher opset."""
    graph, first = node.graph, len(nodes.written)
    if graph is None:
        return
    values: dict[str, ir.Value | None] = {f"x{place}": value for place, value in enumerate(node.inputs)}
    constants = _constants(raised, [one for one in raised if one.op_type == "Constant"])
    values |= {name or "": nodes.constant(np.asarray(one.numpy()), one.dtype) for name, one in constants.items()}
    for one in raised:
        if one.op_type == "Constant":
            continue
        inputs = [None if value is None else values[value.name or ""] for value in one.inputs]
        made = nodes.many(one.op_type, *inputs, outputs=len(one.outputs))
        written = nodes.written[-1]
        written.attributes.update(one.attributes)
        for value, new in zip(one.outputs, made, strict=True):
            new.type, new.shape = value.type, value.shape
            values[value.name or ""] = new
    graph.insert_before(node, nodes.written[first:])
    for place, old in enumerate(node.outputs):
        last = values[f"y{place}"]
        if last is not None:
            name, last.type, last.shape = old.name, old.type or last.type, old.shape
            old.name, last.name = f"{name}/old", name
            old.replace_all_uses_with(last, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _single_node_model(node: ir.Node, own: int) -> onnx.ModelProto:
    """A model of this node alone, its inputs and outputs named by position."""
    single = onnx.NodeProto(op_type=node.op_type, name="node")
    single.input.extend("" if value is None else f"x{place}" for place, value in enumerate(node.inputs))
    single.output.extend(f"y{place}" for place in range(len(node.outputs)))
    single.attribute.extend(ir.to_proto(attribute) for attribute in node.attributes.values())
    inputs = [_info(f"x{place}", value) for place, value in enumerate(node.inputs) if value is not None]
    outputs = [_info(f"y{place}", value) for place, value in enumerate(node.outputs)]
    graph = onnx.helper.make_graph([single], "node", inputs, outputs)
    for place, value in enumerate(node.inputs):
        tensor = None if value is None else value.const_value
        if tensor is not None and tensor.size <= _MOST_NUMBERS:  # such as the scales of an Upsample
            graph.initializer.append(onnx.numpy_helper.from_array(tensor.numpy(), f"x{place}"))
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", own)])


def _info(name: str, value: ir.Value) -> onnx.ValueInfoProto:
    kind = ir.DataType.FLOAT if value.dtype is None else value.dtype
    sizes = None if value.shape is None else [size if isinstance(size, int) else None for size in value.shape]
    return onnx.helper.make_tensor_value_info(name, kind.value, sizes)
