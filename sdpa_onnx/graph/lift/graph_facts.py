"""The graph under search: a copy that may grow, its constants and sizes, and names that nothing has yet."""

import itertools
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.graph.lift.axes import Axes
from sdpa_onnx.graph.lift.contrib.shapes import infer_shapes
from sdpa_onnx.graph.lift.sizes import SizeEntry, stated
from sdpa_onnx.graph.nodes import Nodes
from sdpa_onnx.graph.quiet import quiet_ir

__all__ = ["GraphFacts"]

# The IR version that lets an initializer be no input.
_OPTIONAL_INPUTS = 4


class GraphFacts:
    """A copy of a model with its shapes inferred, and the questions that readers of dialects ask of it.

    Tensors are shared with the model, and files of external data are not opened but for
    small tensors whose numbers are asked for.

    Args:
        model: The model; it is left as it is.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model.clone()
        self.graph = self.model.graph
        # Before IR version 4 every initializer had to be an input.
        self._axes = Axes(self.graph.inputs if model.ir_version >= _OPTIONAL_INPUTS else ())
        self._names = {node.name for node in self.graph.all_nodes() if node.name}
        self._names |= {value.name for value in _values(self.graph) if value.name}
        self._read: set[str] = set()
        with quiet_ir():
            infer_shapes(self.model)
        for node in self.graph:  # in order, so that no question goes deep into the graph
            for value in node.outputs:
                self._axes.of(value)
        for node in self.graph:  # again, now that every name of a size is known
            self._state_shapes(node)

    @property
    def opset(self) -> int:
        """Operator-set version of the default domain."""
        return self.model.opset_imports.get("", 0)

    def constant_of(self, value: ir.Value | None) -> NDArray[np.generic] | None:
        """The array of a value that follows from constants and static sizes, or None."""
        return self._axes.constants.of(value)

    def is_constant(self, value: ir.Value) -> bool:
        """Whether a value is constant; numbers of tensors are not looked at."""
        return self._axes.constants.is_one(value)

    def scalar_of(self, value: ir.Value | None) -> float | None:
        """The number that every entry of a constant value is, or None."""
        array = self.constant_of(value)
        if array is None or not array.size or array.dtype.kind not in "fiubV":
            return None
        numbers = array.astype(np.float64).ravel()
        return float(numbers[0]) if bool((numbers == numbers[0]).all()) else None

    def sizes_in(self, value: ir.Value | None) -> NDArray[np.generic] | None:
        """An array of whole numbers, with a `SymbolicSize` for each that depends on the size of an axis."""
        return self._axes.sizes_in(value)

    def sizes_of(self, value: ir.Value | None) -> tuple[SizeEntry, ...] | None:
        """Sizes of a value's axes, a `SymbolicSize` where one is not static; None if the rank is unknown."""
        return None if value is None else self._axes.of(value)

    def dims_of(self, value: ir.Value | None) -> tuple[int | None, ...] | None:
        """The same with None where a size is not static."""
        sizes = self.sizes_of(value)
        return None if sizes is None else tuple(size if isinstance(size, int) else None for size in sizes)

    def name_of(self, node: ir.Node) -> str:
        """The node's name; one that has none is called after its operator and first output."""
        if not node.name:
            node.name = self.prefix(f"{node.op_type}/{node.outputs[0].name}")
        return node.name

    def prefix(self, wanted: str) -> str:
        """A name that no node and no value has and that none begins with; it is kept for the caller."""
        for name in itertools.chain([wanted], (f"{wanted}_{number}" for number in itertools.count(1))):
            if name not in self._names:
                self._names.add(name)
                return name
        raise AssertionError("itertools.count ended")

    def attention_name(self, node: ir.Node) -> str:
        """A name for the attention that a node was recognised by: the node's own, made unique."""
        wanted = self.name_of(node)
        name = next(
            name
            for name in itertools.chain([wanted], (f"{wanted}#{number}" for number in itertools.count(1)))
            if name not in self._read
        )
        self._read.add(name)
        return name

    def nodes_for(self, node: ir.Node) -> Nodes:
        """A writer of nodes whose names nothing has, to stand before `node`."""
        return Nodes(self.prefix(f"{self.name_of(node)}/lifted"))

    def insert_before(self, node: ir.Node, nodes: Nodes) -> None:
        """Put what was written into the graph, in its order, before a node of it."""
        if nodes.written:
            self.graph.insert_before(node, nodes.written)
        for written in nodes.written:
            self._state_shapes(written)

    def _state_shapes(self, node: ir.Node) -> None:
        """Give outputs the sizes that are known of them, where they do not say as much."""
        for value in node.outputs:
            sizes = self.sizes_of(value)
            if sizes is None or (value.shape is not None and value.shape.is_static()):
                continue
            old = value.shape or [None] * len(sizes)
            new = [stated(size) for size in sizes]
            value.shape = ir.Shape([old[axis] if size is None else size for axis, size in enumerate(new)])

    def replace_output(self, node: ir.Node, value: ir.Value) -> None:
        """Let a value take the place of a node's only output, its name included, and remove the node.

        Args:
            node: It stands after the producer of `value`.
            value: It computes the same.
        """
        old = node.outputs[0]
        name, value.shape, value.type = old.name, old.shape, old.type
        old.name = self.prefix(f"{name}_replaced")
        value.name = name
        old.replace_all_uses_with(value, replace_graph_outputs=True)
        self.graph.remove(node, safe=True)

    def discard(self, nodes: Nodes) -> None:
        """Let go of what was written and is not inserted, so that nothing counts as read by it."""
        for node in nodes.written:
            for position in range(len(node.inputs)):
                node.replace_input_with(position, None)


def _values(graph: ir.Graph) -> Iterable[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph.all_nodes():
        yield from node.outputs
