"""Bodies of If, Loop and Scan: where they are, and each as a model of its own, in which it can be run and tapped.

A body opened: the nodes of the main graph that it needs, then its own nodes in the main graph. So a branch is computed
whatever its condition is, and the first turn of a loop with what it carries as inputs. Judges nothing.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sdpa_onnx.graph.subgraphs import nodes_within, subgraphs_of

__all__ = ["Body", "bodies_of", "name_apart", "needed_nodes", "opened"]

# By operator and body.
_ASSUMED = {
    ("If", "then_branch"): "as if its condition held",
    ("If", "else_branch"): "as if its condition did not hold",
    ("Loop", "body"): "in the first turn, with drawn values for what the loop carries",
    ("Scan", "body"): "in one step, with drawn states and slices",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Body:
    """A subgraph, by its place in the model.

    Args:
        graph: Its nodes.
        node: The If, Loop or Scan that it belongs to.
        attribute: Name of the attribute that holds it: then_branch, else_branch or body.
        outer: The body that the node lies in; None = the main graph.
    """

    graph: ir.Graph
    node: ir.Node
    attribute: str
    outer: "Body | None" = None

    @property
    def path(self) -> tuple["Body", ...]:
        """The bodies that it lies in, the outermost first, and itself."""
        return (self,) if self.outer is None else (*self.outer.path, self)

    @property
    def place(self) -> str:
        """Its place, as shown to the user: "then_branch of If_3"."""
        return " in ".join(f"{body.attribute} of {body.node.name}" for body in reversed(self.path))

    @property
    def assumption(self) -> str:
        """How it runs when it is opened: "as if its condition held"."""
        return ", ".join(_ASSUMED[body.node.op_type, body.attribute] for body in self.path if _is_known(body))

    @property
    def prefix(self) -> str:
        """The first part of the names of its attentions: "If_3/then_branch"."""
        return "/".join(part for body in self.path for part in (body.node.name or "", body.attribute))


def bodies_of(graph: ir.Graph, outer: Body | None = None) -> Iterator[Body]:
    """Every body at any depth, in graph order, an outer one before those inside it."""
    for node in graph:
        for body in _own(node, outer):
            yield body
            yield from bodies_of(body.graph, body)


def _own(node: ir.Node, outer: Body | None) -> Iterator[Body]:
    for name, attribute in node.attributes.items():
        if attribute.type is ir.AttributeType.GRAPH:
            yield Body(graph=attribute.as_graph(), node=node, attribute=name, outer=outer)
        elif attribute.type is ir.AttributeType.GRAPHS:
            for number, graph in enumerate(attribute.as_graphs()):
                yield Body(graph=graph, node=node, attribute=f"{name}[{number}]", outer=outer)


def _is_known(body: Body) -> bool:
    return (body.node.op_type, body.attribute) in _ASSUMED


def name_apart(graph: ir.Graph) -> None:
    """Rename nodes and values of bodies, in place, so that no two in the model have one name.

    ONNX allows both branches of an If to use one name for different values.
    """
    nodes: set[str | None] = {node.name for node in graph}
    values: set[str | None] = {value.name for value in _values(graph)}
    for body in bodies_of(graph):
        for node in body.graph:
            node.name = _free(node.name, nodes)
        for value in _values(body.graph):
            value.name = _free(value.name, values)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from dict.fromkeys((*graph.inputs, *graph.initializers.values()))
    for node in graph:
        yield from node.outputs


def _free(name: str | None, taken: set[str | None]) -> str | None:
    """The name, with a number if it is taken; none stays none."""
    if not name:
        return name
    numbered = (f"{name}_{number}" for number in itertools.count(1))
    free = next(one for one in itertools.chain([name], numbered) if one not in taken)
    taken.add(free)
    return free


def opened(model: ir.Model, body: Body, outputs: Sequence[ir.Value]) -> ir.Model:
    """A model of the body's nodes and of those that they need, without the condition or the loop around them.

    Args:
        model: No two of its values, at any depth, have one name. Not changed; its tensors are shared.
        body: Of this model.
        outputs: Values that nodes of the body compute.

    Returns:
        Its inputs are those of the graph, needed or not, then those of the body and of the bodies around it, but for
        the number of the turn and the condition of a Loop, which are those of the first turn.
    """
    path = body.path
    graphs = (model.graph, *(one.graph for one in path))
    inputs = [value for graph in graphs for value in graph.inputs]
    needed = needed_nodes([*body.graph, *(value.producer() for value in outputs)])
    view = ir.GraphView(
        inputs,
        outputs,
        nodes=[node for graph in graphs for node in graph if node in needed],
        initializers=[value for graph in graphs for value in graph.initializers.values()],
        opset_imports=model.graph.opset_imports,
        name=body.graph.name,
    )
    graph = view.clone()
    for one in path:
        if one.node.op_type == "Loop":
            _fix_turn(graph, [value.name for value in one.graph.inputs[:2]])
    return ir.Model(
        graph,
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        functions=[function.clone() for function in model.functions.values()],
    )


def _fix_turn(graph: ir.Graph, names: "Sequence[str | None]") -> None:
    """Make the number of the turn and the condition of a Loop the constants 0 and True."""
    for name, number in zip(names, (np.int64(0), np.True_), strict=True):
        value = next(one for one in graph.inputs if one.name == name)
        graph.inputs.remove(value)
        shape = () if value.shape is None else tuple(value.shape.numpy())
        value.const_value = ir.tensor(np.full(shape, number), name=name)
        graph.register_initializer(value)


def needed_nodes(nodes: "Sequence[ir.Node | None]") -> set[ir.Node]:
    """The nodes and all that compute what they read, at any level."""
    found: set[ir.Node] = set()
    waiting = [node for node in nodes if node is not None]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        within = list(nodes_within(node))
        read = [value for inner in within for value in inner.inputs if value is not None]
        read += [value for inner in within for graph in subgraphs_of(inner) for value in graph.outputs]
        waiting += [made for value in read if (made := value.producer()) is not None]
    return found
