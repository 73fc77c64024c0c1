"""Query and extend a copy of the graph during the search: shapes, constants, unique names, node insertion.

Knows no dialect of attention.
"""

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.graph.bodies import Body, bodies_of, name_apart
from sdpa_onnx.graph.inferred_shapes import infer_shapes
from sdpa_onnx.graph.lift.axes import Axes
from sdpa_onnx.graph.lift.inlined import inline_attention
from sdpa_onnx.graph.lift.sizes import SizeEntry, stated
from sdpa_onnx.graph.nodes import Nodes, with_attributes

__all__ = ["GraphFacts"]

# The first IR version in which an initializer need not be a graph input.
_OPTIONAL_INPUTS = 4
_LIFTED = "/lifted"


class GraphFacts:
    """A copy of a model with inferred shapes, and the queries that the readers of dialects need.

    Functions that contain attention are inlined; `stays_function` is the reason, a clause, if they cannot be.
    Tensors are shared with the model. An external data file is opened only
    for a small tensor whose content is queried.

    Args:
        model: The model; not changed.
        keeps_outputs: Whether the outputs of an operator stay its own; if not, one that the standard operator does
            not have is replaced by added nodes that compute it.
    """

    def __init__(self, model: ir.Model, *, keeps_outputs: bool = False) -> None:
        self.keeps_outputs = keeps_outputs
        self.model = model.clone()
        self.stays_function = inline_attention(self.model)
        self.graph = self.model.graph
        name_apart(self.graph)
        # Before IR version 4 every initializer had to be an input.
        self._axes = Axes(self.graph.inputs if model.ir_version >= _OPTIONAL_INPUTS else (), model.opset_imports)
        self._names = {node.name for node in self.nodes if node.name}
        self._names |= {value.name for value in _values(self.graph) if value.name}
        # A graph that was lifted before has nodes of these builders.
        self._names |= {name.rpartition("/")[0] for name in self._names if _LIFTED in name}
        self._read: set[str] = set()
        infer_shapes(self.model)
        for node in self.nodes:  # in graph order, so that no later query recurses deeply
            for value in node.outputs:
                self._axes.of(value)
        for node in self.nodes:  # in a second pass, when all names of each size are known
            self._state_shapes(node)
        self._bodies = {id(body.graph): body for body in self._named_bodies()}

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes of the graph and of the bodies of If, Loop and Scan in it, in graph order."""
        return tuple(self.graph.all_nodes())

    @property
    def inputs(self) -> tuple[ir.Value, ...]:
        """The inputs of the graph and of the bodies in it."""
        bodies = (body.graph.inputs for body in self._bodies.values())
        return (*self.graph.inputs, *itertools.chain.from_iterable(bodies))

    def _named_bodies(self) -> Iterator[Body]:
        for body in bodies_of(self.graph):
            self.name_of(body.node)
            yield body

    @property
    def opset(self) -> int:
        """Operator-set version of the default domain."""
        return self.model.opset_imports.get("", 0)

    def constant_of(self, value: ir.Value | None) -> NDArray[np.generic] | None:
        """The array of a value that depends on constants and static sizes alone, else None."""
        return self._axes.constants.of(value)

    def is_constant(self, value: ir.Value) -> bool:
        """Whether a value is constant; tensor contents are not read."""
        return self._axes.constants.is_one(value)

    def scalar_of(self, value: ir.Value | None) -> float | None:
        """The number that all entries of a constant value have in common, or None."""
        array = self.constant_of(value)
        if array is None or not array.size or array.dtype.kind not in "fiubV":
            return None
        numbers = array.astype(np.float64).ravel()
        return float(numbers[0]) if bool((numbers == numbers[0]).all()) else None

    def sizes_in(self, value: ir.Value | None) -> NDArray[np.generic] | None:
        """An integer array, with a `SymbolicSize` for each entry that depends on an axis; None if unknown."""
        return self._axes.sizes_in(value)

    def sizes_of(self, value: ir.Value | None) -> tuple[SizeEntry, ...] | None:
        """The axis sizes of a value, with a `SymbolicSize` for each that is not static; None if the rank is unknown."""
        return None if value is None else self._axes.of(value)

    def dims_of(self, value: ir.Value | None) -> tuple[int | None, ...] | None:
        """The axis sizes of a value, with None for each that is not static; None if the rank is unknown."""
        sizes = self.sizes_of(value)
        return None if sizes is None else tuple(size if isinstance(size, int) else None for size in sizes)

    def name_of(self, node: ir.Node) -> str:
        """The node's name; an unnamed node is named after its operator and first output."""
        if not node.name:
            node.name = self.prefix(f"{node.op_type}/{node.outputs[0].name}")
        return node.name

    def prefix(self, wanted: str) -> str:
        """A name that no node, no value and no earlier call has; reserved for the caller."""
        for name in itertools.chain([wanted], (f"{wanted}_{number}" for number in itertools.count(1))):
            if name not in self._names:
                self._names.add(name)
                return name
        raise AssertionError("itertools.count ended")

    def attention_name(self, node: ir.Node) -> str:
        """A unique name for the attention recognised by a node: place and name of it, with a number if needed."""
        body = self._bodies.get(id(node.graph))
        wanted = self.name_of(node) if body is None else f"{body.prefix}/{self.name_of(node)}"
        name = next(
            name
            for name in itertools.chain([wanted], (f"{wanted}#{number}" for number in itertools.count(1)))
            if name not in self._read
        )
        self._read.add(name)
        return name

    def nodes_for(self, node: ir.Node) -> Nodes:
        """A builder of nodes with unique names, to be inserted before `node`."""
        return Nodes(self.prefix(f"{self.name_of(node)}{_LIFTED}"))

    def insert_before(self, node: ir.Node, nodes: Nodes) -> None:
        """Insert the built nodes into the graph of a node, in order, before it."""
        with_attributes(nodes.written, self.opset)
        if nodes.written and node.graph is not None:
            node.graph.insert_before(node, nodes.written)
        for written in nodes.written:
            self._state_shapes(written)

    def _state_shapes(self, node: ir.Node) -> None:
        """Set the shapes of a node's outputs to the derived sizes where the graph states less."""
        for value in node.outputs:
            sizes, dtype = self.sizes_of(value), self._axes.dtype_of(value)
            if value.type is None and dtype is not None:
                value.type = ir.TensorType(dtype)
            if sizes is None or (value.shape is not None and value.shape.is_static()):
                continue
            old = value.shape or [None] * len(sizes)
            new = [stated(size) for size in sizes]
            value.shape = ir.Shape([old[axis] if size is None else size for axis, size in enumerate(new)])

    def replace_output(self, node: ir.Node, value: ir.Value) -> None:
        """Replace a node's only output by a value, which takes over its name, and remove the node.

        Args:
            node: A node after the producer of `value`.
            value: An equivalent value.
        """
        old = node.outputs[0]
        name, value.shape, value.type = old.name, old.shape, old.type
        old.name = self.prefix(f"{name}_replaced")
        value.name = name
        old.replace_all_uses_with(value, replace_graph_outputs=True)
        if node.graph is not None:
            node.graph.remove(node, safe=True)

    def discard(self, nodes: Nodes) -> None:
        """Disconnect built nodes that are not inserted, so that they do not count as consumers of their inputs."""
        for node in nodes.written:
            for position in range(len(node.inputs)):
                node.replace_input_with(position, None)


def _values(graph: ir.Graph) -> Iterable[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph.all_nodes():
        yield from node.outputs
