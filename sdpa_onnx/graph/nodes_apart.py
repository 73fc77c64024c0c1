"""Isolate nodes of a graph: one model in which each has its own inputs and none reads another.

A runtime can fuse nothing between nodes that share nothing, so one run of
this model shows what each node does alone. Runs nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.subgraphs import subgraphs_of

__all__ = ["ApartModel", "captured_values", "has_subgraph", "nodes_apart"]

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApartModel:
    """The isolated nodes with their inputs.

    Args:
        model: Its outputs are those of the nodes, by their own names.
        feeds: Arrays by input name.
    """

    model: OnnxModel
    feeds: dict[str, Array]


def nodes_apart(
    whole: ir.Model, nodes: Sequence[ir.Node], values: Mapping[str, Array], constants: Mapping[str, Array]
) -> ApartModel:
    """Build the model.

    Args:
        whole: The model of the nodes; not changed.
        nodes: Nodes of its main graph. A node with a subgraph must be the only one.
        values: Arrays that the nodes read, by value name.
        constants: The same for values that do not depend on the graph's inputs: they stay constants.
    """
    if len(nodes) == 1 and has_subgraph(nodes[0]):
        return _with_subgraph(whole, nodes[0], values, constants)
    inputs: list[ir.Value] = []
    kept: dict[str, ir.Value] = {}
    copies: list[ir.Node] = []
    feeds: dict[str, Array] = {}
    for number, node in enumerate(nodes):
        own: dict[str, ir.Value] = {}
        for value in node.inputs:
            name = (value.name or "") if value is not None else ""
            if value is None or name in own:
                continue
            if name in constants:
                # The result of a node of constants has that node's output name, and the node may be here too.
                title = name if name in whole.graph.initializers else f"{name}.constant"
                own[name] = kept.setdefault(name, _constant(title, constants[name]))
            else:
                own[name] = _input(f"{name}.to.{number}", values[name])
                inputs.append(own[name])
                feeds[own[name].name or ""] = values[name]
        copies.append(_copy(node, own))
    outputs = [value for node in copies for value in node.outputs if value.name]
    graph = ir.Graph(
        inputs,
        outputs,
        nodes=copies,
        initializers=list(kept.values()),
        opset_imports=whole.graph.opset_imports,
        name="nodes_apart",
    )
    return ApartModel(model=_model(whole, graph), feeds=feeds)


def has_subgraph(node: ir.Node) -> bool:
    """Whether it is a Loop, If, Scan or the like."""
    return any(True for _ in subgraphs_of(node))


def captured_values(node: ir.Node) -> list[ir.Value]:
    """Values of the main graph that the node's subgraphs capture, each once."""
    found: dict[ir.Value, None] = {}
    for graph in subgraphs_of(node):
        inner = {value for one in graph.all_nodes() for value in one.outputs}
        for part in (graph, *graph.subgraphs()):
            inner |= {*part.inputs, *part.initializers.values()}
        read = [value for one in graph.all_nodes() for value in one.inputs if value is not None]
        found |= dict.fromkeys(value for value in (*read, *graph.outputs) if value not in inner)
    return list(found)


def _with_subgraph(
    whole: ir.Model, node: ir.Node, values: Mapping[str, Array], constants: Mapping[str, Array]
) -> ApartModel:
    """A model of one node under its own names, since its subgraphs read values by name."""
    read = list(dict.fromkeys([*(value for value in node.inputs if value is not None), *captured_values(node)]))
    outputs = [value for value in node.outputs if value.name]
    view = ir.GraphView(read, outputs, nodes=[node], opset_imports=whole.graph.opset_imports, name="nodes_apart")
    graph = view.clone()
    feeds: dict[str, Array] = {}
    for value in list(graph.inputs):
        name = value.name or ""
        value.const_value = None
        array = constants.get(name, values.get(name))
        if array is None:
            continue
        value.type, value.shape = _type(array), _shape(array)
        if name in constants:
            value.const_value = ir.tensor(array, name=name)
            graph.inputs.remove(value)
            graph.register_initializer(value)
        else:
            feeds[name] = array
    return ApartModel(model=_model(whole, graph), feeds=feeds)


def _model(whole: ir.Model, graph: ir.Graph) -> OnnxModel:
    return OnnxModel(ir=ir.Model(graph, ir_version=whole.ir_version, producer_name="sdpa_onnx"), sites=())


def _copy(node: ir.Node, values: Mapping[str, ir.Value]) -> ir.Node:
    outputs = [ir.Value(name=value.name or "", type=value.type) for value in node.outputs]
    return ir.Node(
        node.domain,
        node.op_type,
        [None if value is None else values[value.name or ""] for value in node.inputs],
        node.attributes.values(),
        outputs=outputs,
        name=node.name,
    )


def _input(name: str, array: Array) -> ir.Value:
    return ir.Value(name=name, type=_type(array), shape=_shape(array))


def _constant(name: str, array: Array) -> ir.Value:
    shape = ir.Shape(list(array.shape))
    return ir.Value(name=name, type=_type(array), shape=shape, const_value=ir.tensor(array, name=name))


def _type(array: Array) -> ir.TensorType:
    return ir.TensorType(ir.DataType.from_numpy(array.dtype))


def _shape(array: Array) -> ir.Shape:
    # Sizes stay dynamic as in the original graphs, since kernels may be chosen by them. Those of shapes and indices
    # are fixed: without them the rank of dependent values is unknown too, which OpenVINO refuses.
    return ir.Shape(list(array.shape) if array.dtype.kind in "iu" and array.ndim < 2 else [None] * array.ndim)
