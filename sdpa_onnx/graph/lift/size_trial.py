"""Interval arithmetic over a graph: bounds of its values when the inputs have given sizes and unknown contents.

The bounds of a value are two arrays of its shape, the least and the greatest number that each entry can be. They are
equal where the entry depends on sizes and constants alone. Contents are computed on demand, so weights are not read;
shapes come from ONNX shape inference, node by node. Does not enter subgraphs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.graph.domains import is_standard, standard_schema
from sdpa_onnx.graph.lift.index_paths import EXTENTS
from sdpa_onnx.graph.lift.node_shapes import node_as_proto
from sdpa_onnx.graph.lift.spans import MISFIT, SPAN_OPERATORS, Call, Span, unknown_span
from sdpa_onnx.graph.nodes_apart import has_subgraph

__all__ = ["MisfitError", "NodeEvaluators", "SizeTrial"]

Array = NDArray[Any]

# A mask of 2048 queries and keys has half as many entries; bounds in float32 then take 64 MiB.
_MOST_ELEMENTS = 2**23
# Inputs whose contents decide the shape of the output.
# Source: the operators' specifications, ONNX opset 13 to 25.
_DECIDES_SHAPE: Mapping[str, tuple[int, ...]] = {
    "Reshape": (1,),
    "Expand": (1,),
    "Slice": (1, 2, 3, 4),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
    "Tile": (1,),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
    "Pad": (1, 3),
    "Split": (1,),
    "TopK": (1,),
    "OneHot": (1,),
    "Resize": (2, 3),
}
# Operators whose operands have one type.
_OF_ONE_TYPE = frozenset(
    ["Add", "Sub", "Mul", "Min", "Max", "Concat", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"]
)
_REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceSumSquare")


class MisfitError(Exception):
    """The graph is invalid at these sizes."""


class _Property(Enum):
    """What is computed of a value.

    CONTENT respects `is_unknown`; NUMBERS does not, because shapes depend on them.
    """

    TYPE = auto()
    CONTENT = auto()
    NUMBERS = auto()


_Query = tuple[ir.Value, _Property]
# Element type and shape.
_Type = tuple[int, tuple[int, ...]]


class NodeEvaluators:
    """ONNX's reference evaluator for single nodes; each evaluator is created once for all trials of a graph.

    Args:
        opsets: Opset version by domain.
    """

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self.opset = opsets.get("", 1)
        self.imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        self._protos: dict[ir.Node, onnx.NodeProto] = {}
        self._evaluators: dict[tuple[ir.Node, int], onnx.reference.ReferenceEvaluator] = {}

    def proto(self, node: ir.Node) -> onnx.NodeProto:
        """The node as a proto, see `node_as_proto`."""
        if node not in self._protos:
            self._protos[node] = node_as_proto(node)
        return self._protos[node]

    def evaluate(self, node: ir.Node, position: int, arrays: "Sequence[Array | None]") -> Array:
        """Compute one output of the node from arrays, one for each input."""
        key = node, position
        if key not in self._evaluators:
            proto, nothing = self.proto(node), onnx.TypeProto()
            inputs = [onnx.helper.make_value_info(name, nothing) for name in proto.input if name]
            output = onnx.helper.make_value_info(f"o{position}", nothing)
            model = onnx.helper.make_model(
                onnx.helper.make_graph([proto], "one", inputs, [output]), opset_imports=self.imports
            )
            self._evaluators[key] = onnx.reference.ReferenceEvaluator(model)
        feeds = {f"i{at}": array for at, array in enumerate(arrays) if array is not None}
        with np.errstate(all="ignore"):
            (array,) = self._evaluators[key].run(None, feeds)
        return np.asarray(array)


class SizeTrial:
    """The graph at one choice of sizes.

    Args:
        evaluators: Evaluators of the graph's nodes.
        sizes: Size by axis name.
        inputs: Shape of each graph input.
        is_unknown: Whether the contents of a value must count as unknown even if they can be computed.
        contents: Numbers of graph inputs that are known.
        is_size: Whether a value is known to depend on sizes alone, so that its numbers are its contents.
    """

    def __init__(
        self,
        evaluators: NodeEvaluators,
        sizes: Mapping[str, int],
        inputs: Mapping[ir.Value, tuple[int, ...]],
        is_unknown: Callable[[ir.Value], bool] = lambda _: False,
        contents: "Mapping[ir.Value, Array] | None" = None,
        is_size: Callable[[ir.Value], bool] = lambda _: False,
    ) -> None:
        self._is_unknown = is_unknown
        self._is_size = is_size
        self._evaluators = evaluators
        self._sizes = sizes
        self._inputs = inputs
        self._given = contents or {}
        self._types: dict[ir.Value, _Type | None] = {}
        self._contents: dict[_Query, Span | None] = {}

    def span(self, value: ir.Value) -> Span | None:
        """The bounds of every entry; None if the shape is unknown.

        Raises:
            MisfitError: If the graph is invalid at these sizes.
        """
        self._answer((value, _Property.CONTENT))
        return self._contents[value, _Property.CONTENT]

    def sizes(self, value: ir.Value) -> tuple[int, ...] | None:
        """The value's shape, or None if it is unknown.

        Raises:
            MisfitError: If the graph is invalid at these sizes.
        """
        self._answer((value, _Property.TYPE))
        known = self._types[value]
        return None if known is None else known[1]

    def dtype(self, value: ir.Value) -> "np.dtype[Any] | None":
        """Element type of a value whose span or sizes were computed before."""
        known = self._types[value]
        return None if known is None else ir.DataType(known[0]).numpy()

    def _answer(self, goal: _Query) -> None:
        stack = [goal]  # no recursion: a path through a deep model exceeds Python's recursion limit
        while stack:
            query = stack[-1]
            open_ones = [] if self._is_answered(query) else [q for q in self._needs(query) if not self._is_answered(q)]
            if open_ones:
                stack += open_ones
                continue
            stack.pop()
            if not self._is_answered(query):
                self._compute(query)

    def _is_answered(self, query: _Query) -> bool:
        value, of = query
        return value in self._types if of is _Property.TYPE else query in self._contents

    def _compute(self, query: _Query) -> None:
        value, of = query
        try:
            if of is _Property.TYPE:
                self._types[value] = self._type(value)
            else:
                self._contents[query] = self._content(value, of)
        except (*MISFIT, onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
            raise MisfitError(str(error)) from error

    def _needs(self, query: _Query) -> list[_Query]:
        value, of = query
        node = value.producer()
        if node is None:
            return [] if of is _Property.TYPE else [(value, _Property.TYPE)]
        inputs = [one for one in node.inputs if one is not None]
        if of is _Property.TYPE:
            if self._stated(value) is not None:
                return []
            positions = _DECIDES_SHAPE.get(node.op_type, (1,) if node.op_type in _REDUCTIONS else ())
            deciding = [node.inputs[at] for at in positions if at < len(node.inputs)]
            return [(one, _Property.TYPE) for one in inputs] + [
                (one, _Property.NUMBERS) for one in deciding if one is not None
            ]
        needs = [(value, _Property.TYPE)]
        if of is _Property.CONTENT and self._is_unknown(value):
            return needs
        if of is _Property.CONTENT and self._is_size(value):
            return [*needs, (value, _Property.NUMBERS)]
        if node.op_type in ("Shape", "Size"):
            needs += [(one, _Property.TYPE) for one in inputs]
        elif is_standard(node) and node.op_type in SPAN_OPERATORS:
            needs += [one for one in _contents_of(node, of) if one is not None]
        return needs

    def _stated(self, value: ir.Value) -> _Type | None:
        """The type and shape that the graph states, if each axis is static or has a name with a chosen size."""
        if value in self._inputs and value.dtype is not None:
            return value.dtype.value, self._inputs[value]
        if value.const_value is not None:
            return value.const_value.dtype.value, tuple(value.const_value.shape.numpy())
        if value.dtype is None or value.shape is None:
            return None
        sizes = [size if isinstance(size, int) else self._sizes.get(str(size.value)) for size in value.shape]
        known = tuple(size for size in sizes if size is not None)
        return (value.dtype.value, known) if len(known) == len(sizes) else None

    def _type(self, value: ir.Value) -> _Type | None:
        stated = self._stated(value)
        node = value.producer()
        if stated is not None or node is None or not is_standard(node):
            return stated
        if any(one is not None and self._types[one] is None for one in node.inputs):
            return None
        return self._inferred(node, list(node.outputs).index(value))

    def _inferred(self, node: ir.Node, position: int) -> _Type | None:
        types, data = {}, {}
        for at, one in enumerate(node.inputs):
            if one is None or (known := self._types[one]) is None:
                continue
            types[f"i{at}"] = onnx.helper.make_tensor_type_proto(*known)
            span = self._contents.get((one, _Property.NUMBERS))
            if span is not None and span.is_exact and span.low.size <= 64:
                data[f"i{at}"] = onnx.numpy_helper.from_array(span.low, f"i{at}")
        schema = standard_schema(node, self._evaluators.opset)
        if schema is None or has_subgraph(node):
            return None
        proto = self._evaluators.proto(node)
        inferred = onnx.shape_inference.infer_node_outputs(
            schema, proto, types, data, opset_imports=self._evaluators.imports
        ).get(f"o{position}")
        if inferred is None or not inferred.tensor_type.HasField("shape"):
            return None
        dims = inferred.tensor_type.shape.dim
        if not all(dim.HasField("dim_value") for dim in dims):
            return None
        return inferred.tensor_type.elem_type, tuple(dim.dim_value for dim in dims)

    def _content(self, value: ir.Value, of: _Property) -> Span | None:
        known = self._types[value]
        node = value.producer()
        if of is _Property.CONTENT and self._is_unknown(value):
            return None if known is None else unknown_span(ir.DataType(known[0]).numpy(), known[1])
        if of is _Property.CONTENT and self._is_size(value):
            return self._contents[value, _Property.NUMBERS]
        if node is not None and node.op_type in ("Shape", "Size"):
            return self._sizes_of(node)
        found = self._constant(value, node)
        if found is None and node is not None and is_standard(node) and node.op_type in SPAN_OPERATORS:
            inputs = [None if one is None else self._contents[one] for one in _contents_of(node, of)]
            is_complete = all(
                span is not None for one, span in zip(node.inputs, inputs, strict=True) if one is not None
            )
            if (
                is_complete
                and self._keeps_places(node, of)
                and (known is None or math.prod(known[1]) <= _MOST_ELEMENTS)
            ):
                found = self._computed(node, list(node.outputs).index(value), inputs)
        if found is None and known is not None and math.prod(known[1]) <= _MOST_ELEMENTS:
            return unknown_span(ir.DataType(known[0]).numpy(), known[1])
        return found

    def _keeps_places(self, node: ir.Node, of: _Property) -> bool:
        """Whether entries keep their position along each axis; a Reshape may merge two axes."""
        if of is not _Property.CONTENT or node.op_type not in ("CumSum", "Reshape") or node.inputs[0] is None:
            return True
        if node.op_type == "CumSum":  # of anything but zeros, a sum depends on all entries before it
            summed = self._contents[node.inputs[0], of]
            return summed is not None and summed.is_exact and not summed.low.any()
        before, after = self._types.get(node.inputs[0]), self._types[node.outputs[0]]
        if before is None or after is None:
            return False
        long = [[size for size in shape if size != 1] for _, shape in (before, after)]
        return long[0] == long[1] or (len(before[1]) > 1 and before[1][-2:] == after[1][-2:])

    def _sizes_of(self, node: ir.Node) -> Span | None:
        source = node.inputs[0]
        known = None if source is None else self._types[source]
        if known is None:
            return None
        if node.op_type == "Size":
            return Span.exactly(np.asarray(math.prod(known[1]), np.int64))
        start, end = node.attributes.get("start"), node.attributes.get("end")
        part = slice(start.as_int() if start else 0, end.as_int() if end else None)
        return Span.exactly(np.asarray(known[1][part], np.int64))

    def _constant(self, value: ir.Value, node: ir.Node | None) -> Span | None:
        if value in self._given:
            return Span.exactly(self._given[value])
        tensor = value.const_value if node is None and value not in self._inputs else None
        if tensor is not None:
            return Span.exactly(tensor.numpy()) if math.prod(tensor.shape.numpy()) <= _MOST_ELEMENTS else None
        return None

    def _computed(self, node: ir.Node, position: int, inputs: "list[Span | None]") -> Span | None:
        def evaluate(*arrays: "Array | None") -> Array:
            alike = _of_one_type(arrays) if node.op_type in _OF_ONE_TYPE else arrays
            return self._evaluators.evaluate(node, position, alike)

        present = [span for span in inputs if span is not None]
        if all(span.is_exact for span in present):
            return Span.exactly(evaluate(*(None if span is None else span.low for span in inputs)))
        return SPAN_OPERATORS[node.op_type](Call(node=node, inputs=inputs, evaluate=evaluate))


def _of_one_type(arrays: "Sequence[Array | None]") -> "Sequence[Array | None]":
    """Bounds of unknown integers are in float64, see `unknown_span`; so are then those of the other operands."""
    kinds = {array.dtype.kind for array in arrays if array is not None}
    if not (kinds & {"i", "u"} and "f" in kinds):
        return arrays
    return [None if array is None else array.astype(np.float64) for array in arrays]


def _contents_of(node: ir.Node, of: _Property) -> "list[_Query | None]":
    """The query for each input of a node whose content is computed; NUMBERS for inputs that decide a length."""
    extents = EXTENTS.get(node.op_type, ())
    return [
        None if one is None else (one, _Property.NUMBERS if position in extents else of)
        for position, one in enumerate(node.inputs)
    ]
