"""Access attributes, inputs and widths of an onnxruntime operator, and turn refusals into unread attentions.

Shared by the readers; knows no single operator. Each reader interprets its own inputs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from sdpa_onnx.core.attention.spec import Dtype, ScaleRule
from sdpa_onnx.errors import CaseError, ModelError
from sdpa_onnx.graph.element_types import DTYPES
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lift.found import FoundAttention
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["ContribNode", "ContribReading", "NotReadError", "dtype_of", "is_read", "read_each"]

# Operators whose output has the last axis of the first input.
_KEEP_WIDTH = frozenset(
    {"Add", "Cast", "Dropout", "Identity", "LayerNormalization", "Mul", "RotaryEmbedding", "SkipLayerNormalization"}
)
# A chain of such operators before a projection is short.
_STEPS = 8

# Seen in onnxruntime 1.32.0 for MultiHeadAttention and GroupQueryAttention.
_NO_PRESENT = (
    "It has a past but no present outputs. Without them onnxruntime's CPU kernel ignores the past and reads beyond "
    "its keys. It is read as the operator's specification says."
)

# From this opset on there are all operators that the added nodes use; from the next on, Max and Min of integers.
_NODES_OPSET = 11
_OF_INTEGERS = ("Max", "Min")


class NotReadError(ModelError):
    """A node that cannot be read; its text becomes the reason of a `FoundAttention`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContribReading:
    """An attention that was read, with its warnings and replaced outputs.

    Args:
        attention: Its values belong to the graph or to `ContribNode.nodes`.
        warnings: Warnings for the user.
        replaced: Outputs of the node, each with the added value that replaces it: the same numbers
            in a shape that the attention's own outputs do not have.
    """

    attention: GraphAttention
    warnings: tuple[str, ...] = ()
    replaced: tuple[tuple[ir.Value, ir.Value], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContribNode:
    """One node and its graph.

    Args:
        search: The graph.
        node: The node.
        formal: Names of the operator's inputs, in order.
        nodes: Builder of additional nodes.
    """

    search: GraphFacts
    node: ir.Node
    formal: tuple[str, ...]
    nodes: Nodes

    def get(self, name: str) -> ir.Value | None:
        """An input by its name in the operator's specification; None if it is absent."""
        position = self.formal.index(name)
        return self.node.inputs[position] if position < len(self.node.inputs) else None

    def need(self, name: str) -> ir.Value:
        value = self.get(name)
        if value is None:
            raise NotReadError(f"it has no {name}")
        return value

    def of_rank(self, name: str, rank: int) -> ir.Value | None:
        """An input, whose rank must be `rank` if it is known; None if the input is absent."""
        value = self.get(name)
        dims = self.search.dims_of(value)
        if dims is not None and len(dims) != rank:
            raise NotReadError(f"its {name} has {len(dims)} axes, expected {rank}")
        return value

    def past(self) -> tuple[ir.Value | None, ir.Value | None]:
        """past_key and past_value, of rank 4; both or neither."""
        key, value = self.of_rank("past_key", 4), self.of_rank("past_value", 4)
        if (key is None) != (value is None):
            raise NotReadError("it has only one of past_key and past_value")
        return key, value

    def past_warnings(self) -> tuple[str, ...]:
        """A warning if there is a past and the outputs 1 and 2, the present keys and values, are not both there."""
        presents = self.node.outputs[1:3]
        is_complete = len(presents) == 2 and all(value.name for value in presents)
        return () if is_complete or self.get("past_key") is None else (_NO_PRESENT,)

    def output(self, position: int) -> ir.Value | None:
        """An output, or None if nothing reads it."""
        value = self.node.outputs[position] if position < len(self.node.outputs) else None
        return value if value is not None and is_read(value) else None

    def integer(self, name: str, default: int = 0) -> int:
        attribute = self.node.attributes.get(name)
        if attribute is None:
            return default
        if attribute.type is not ir.AttributeType.INT:
            raise NotReadError(f"its attribute {name} is not an integer")
        return attribute.as_int()

    def number(self, name: str, default: float = 0.0) -> float:
        attribute = self.node.attributes.get(name)
        if attribute is None:
            return default
        if attribute.type is not ir.AttributeType.FLOAT:
            raise NotReadError(f"its attribute {name} is not a number")
        return attribute.as_float()

    def positive(self, name: str) -> int:
        value = self.integer(name)
        if value < 1:
            raise NotReadError(f"its attribute {name} is {value}, expected at least 1")
        return value

    @property
    def scale(self) -> float | ScaleRule:
        """The attribute `scale`; 0 and absent mean 1/sqrt(head_dim)."""
        return self.number("scale") or ScaleRule.INVERSE_SQRT

    def refuse(self, *names: str, why: str = "which is not read") -> None:
        """Raise `NotReadError` if the node has one of these inputs."""
        for name in names:
            if self.get(name) is not None:
                raise NotReadError(f"it has an input {name}, {why}")

    def rank(self, value: ir.Value, name: str) -> int:
        """Rank of a value; the output of a projection has rank 3."""
        dims = self.search.dims_of(value)
        if dims is not None:
            return len(dims)
        if self._width(value, _STEPS) is not None:
            return 3
        raise NotReadError(f"the shape of its {name} is unknown")

    def size(self, value: ir.Value, axis: int, name: str) -> int:
        """A static size of a value."""
        dims = self.search.dims_of(value)
        found = dims[axis] if dims is not None and -len(dims) <= axis < len(dims) else None
        if found is None and axis == -1:
            found = self._width(value, _STEPS)
        if found is None:
            raise NotReadError(f"the width of its {name} is unknown")
        return found

    def same_size(self, left: ir.Value, left_axis: int, right: ir.Value, right_axis: int) -> bool:
        """Whether two axes provably have the same size."""
        one, other = self.search.sizes_of(left), self.search.sizes_of(right)
        return one is not None and other is not None and one[left_axis] == other[right_axis]

    def heads_width(self, value: ir.Value, heads: int, name: str) -> int:
        """Width of one head of a value whose last axis contains all heads."""
        return self.part(self.size(value, -1, name), heads, name)

    def part(self, width: int, heads: int, name: str) -> int:
        if width % heads or width == 0:
            raise NotReadError(f"the width of its {name} is {width}, not a multiple of its {heads} heads")
        return width // heads

    def _width(self, value: ir.Value | None, steps: int) -> int | None:
        """Last axis of a value of unknown shape, from the weights of the projection that computes it.

        Shape inference stops at onnxruntime's own operators, so without this only the first of many
        attentions could be read.
        """
        dims = self.search.dims_of(value)
        if dims and dims[-1] is not None:
            return dims[-1]
        if value is None or steps == 0:
            return None
        producer = value.producer()
        if producer is None or value.index() != 0:
            return None
        if producer.op_type == "MatMul" and producer.domain == "":
            weights = self.search.dims_of(producer.inputs[1])
            return weights[-1] if weights is not None and len(weights) == 2 else None
        if producer.op_type not in _KEEP_WIDTH:
            return None
        known = (self._width(one, steps - 1) for one in producer.inputs)
        return max((width for width in known if width is not None), default=None)


def dtype_of(value: ir.Value, name: str) -> Dtype:
    """Element type of an attention's input."""
    dtype = None if value.dtype is None else DTYPES.get(value.dtype)
    if dtype is None:
        element = "unknown" if value.dtype is None else value.dtype.name
        raise NotReadError(f"the element type of its {name} is {element}")
    return dtype


def is_read(value: ir.Value) -> bool:
    """Whether a value has consumers or is a graph output."""
    return bool(value.name) and (bool(value.uses()) or value.is_graph_output())


def read_each(
    search: GraphFacts,
    operator: tuple[str, str],
    dialect: str,
    formal: tuple[str, ...],
    read: Callable[[ContribNode], ContribReading],
) -> Iterator[FoundAttention]:
    """Read every node of one operator; a node that cannot be read leaves the graph unchanged.

    Args:
        search: The graph.
        operator: Domain and operator type.
        dialect: Name of the dialect, as shown to the user.
        formal: Names of the operator's inputs.
        read: Reads one node, or raises `NotReadError` or `CaseError`.
    """
    for node in search.nodes:
        if (node.domain, node.op_type) != operator:
            continue
        name = search.name_of(node)
        one = ContribNode(search=search, node=node, formal=formal, nodes=search.nodes_for(node))
        try:
            if not node.outputs:
                raise NotReadError("it has no output")
            reading = read(one)
            _require_opset(search, one.nodes)
        except (NotReadError, CaseError) as error:
            search.discard(one.nodes)
            reason = f"{node.op_type} '{name}': {str(error.args[0]).rstrip('.')}."
            yield FoundAttention(dialect=dialect, node=name, reason=reason)
            continue
        search.insert_before(node, one.nodes)
        for old, new in () if search.keeps_outputs else reading.replaced:
            _replace(old, new)
        yield FoundAttention(dialect=dialect, node=name, attention=reading.attention, warnings=reading.warnings)


def _require_opset(search: GraphFacts, nodes: Nodes) -> None:
    needed = _NODES_OPSET + any(node.op_type in _OF_INTEGERS for node in nodes.written)
    if nodes.written and search.opset < needed:
        raise NotReadError(f"it needs added nodes of opset {needed}, but the graph has opset {search.opset}")


def _replace(old: ir.Value, new: ir.Value) -> None:
    """Replace all uses of a value by another, which takes over the name of a graph output."""
    if old.is_graph_output():
        old.name, new.name = f"{new.name}/old", old.name
    new.shape = new.shape if new.shape is not None else old.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
