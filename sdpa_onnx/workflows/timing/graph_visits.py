"""How often each graph of a model runs in one call, and the shapes in it: the main graph, the bodies of If, Loop, Scan.

Follows shapes, constants and the contents of integer and boolean inputs; runs nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.bodies import Body, bodies_of
from sdpa_onnx.graph.lift.size_trial import MisfitError, NodeEvaluators, SizeTrial
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.check.feeds import resolve_shape

__all__ = ["GraphVisit", "UncountedError", "visits"]

# Of turns whose shapes differ, as with a cache that grows: each is followed by itself, at about 10 ms.
_MOST_TURNS = 100
_Shape = tuple[int, ...]


class UncountedError(Exception):
    """How often a body runs is not known; the text is a clause about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphVisit:
    """A graph that runs.

    Args:
        graph: The main graph or a body.
        times: How often, with these shapes.
        level: Its shapes.
    """

    graph: ir.Graph
    times: int
    level: "_Level"

    def shape(self, value: ir.Value) -> _Shape:
        """The shape of a value that the graph computes or reads.

        Raises:
            ModelError: If it is not known.
        """
        found = self.level.shape(value)
        if found is None:
            raise ModelError(f"The shape of '{value.name}' is not known.")
        return found

    def shape_of(self, name: str) -> _Shape:
        """The shape of the value of that name, see `shape`.

        Raises:
            ModelError: If it is not known.
        """
        value = self.level.named.get(name)
        if value is None:
            raise ModelError(f"Value '{name}' is not in the graph.")
        return self.shape(value)


@dataclass(slots=True, kw_only=True)
class _Level:
    """The shapes in one graph in one turn, and those around it."""

    evaluators: NodeEvaluators
    sizes: Mapping[str, int]
    shapes: dict[ir.Value, _Shape]
    named: Mapping[str, ir.Value]
    contents: "Mapping[ir.Value, NDArray[Any]]"
    trial: SizeTrial = field(init=False)

    def __post_init__(self) -> None:
        # It reads `shapes` when a value is first queried, so those of a node with bodies can be added before.
        self.trial = SizeTrial(self.evaluators, self.sizes, self.shapes, contents=self.contents)

    def inner(self, shapes: Mapping[ir.Value, _Shape], contents: "Mapping[ir.Value, NDArray[Any]]") -> "_Level":
        return _Level(
            evaluators=self.evaluators,
            sizes=self.sizes,
            shapes={**self.shapes, **shapes},
            named=self.named,
            contents={**self.contents, **contents},
        )

    def shape(self, value: ir.Value) -> _Shape | None:
        try:
            return resolve_shape(value, self.sizes) if value not in self.shapes else self.shapes[value]
        except ModelError:
            pass
        try:
            return self.trial.sizes(value)
        except MisfitError:
            return None

    def number(self, value: ir.Value | None) -> "NDArray[Any] | None":
        """The contents of a value where they follow from sizes, constants and known inputs."""
        if value is None:
            return None
        try:
            span = self.trial.span(value)
        except MisfitError:
            return None
        return span.low if span is not None and span.is_exact else None


def visits(
    model: OnnxModel, sizes: Mapping[str, int], feeds: "Mapping[str, NDArray[np.generic]] | None" = None
) -> Iterator[GraphVisit]:
    """The main graph, then the bodies that one call runs.

    Args:
        model: The model.
        sizes: Of its axes.
        feeds: Arrays by input name; only those of integers and booleans are read.

    Raises:
        UncountedError: If it is not known how often a body with an attention runs.
    """
    graph = model.ir.graph
    contents = {
        value: array
        for value in graph.inputs
        if (array := (feeds or {}).get(value.name or "")) is not None and array.dtype.kind in "iub"
    }
    shapes: dict[ir.Value, _Shape] = {}
    for value in graph.inputs:
        try:
            shapes[value] = contents[value].shape if value in contents else resolve_shape(value, sizes)
        except ModelError:
            continue
    level = _Level(
        evaluators=NodeEvaluators(model.ir.opset_imports),
        sizes=sizes,
        shapes=shapes,
        named={value.name or "": value for value in _values(graph)},
        contents=contents,
    )
    attended = {site.output for site in model.body_sites}
    yield GraphVisit(graph=graph, times=1, level=level)
    yield from _inside([body for body in bodies_of(graph) if body.outer is None], level, 1, attended)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    for one in (graph, *graph.subgraphs()):
        yield from (*one.inputs, *one.initializers.values())
        for node in one:
            yield from node.outputs


def _inside(bodies: Sequence[Body], level: _Level, times: int, attended: set[str]) -> Iterator[GraphVisit]:
    """Visits of bodies of one graph, and of those inside them."""
    for node in dict.fromkeys(body.node for body in bodies):
        own = [body for body in bodies if body.node is node]
        try:
            turns = list(_turns(node, own, level))
        except UncountedError as error:
            if any(value.name in attended for body in own for one in body.graph.all_nodes() for value in one.outputs):
                raise UncountedError(f"{error}, so the attention in {own[0].place} is not counted") from None
            continue
        for body, inner, count in turns:
            yield GraphVisit(graph=body.graph, times=times * count, level=inner)
            within = [one for one in bodies_of(body.graph, body) if one.outer is body]
            yield from _inside(within, inner, times * count, attended)
        _note_outputs(node, turns, level)


def _turns(node: ir.Node, bodies: Sequence[Body], level: _Level) -> Iterator[tuple[Body, _Level, int]]:
    """Each body that runs, its shapes, and how often it runs with these."""
    match node.op_type:
        case "If":
            holds = level.number(node.inputs[0])
            if holds is None:
                raise UncountedError("it is not known which branch runs")
            wanted = "then_branch" if holds.all() else "else_branch"
            yield from ((body, level.inner({}, {}), 1) for body in bodies if body.attribute == wanted)
        case "Loop":
            yield from _loop_turns(node, bodies[0], level)
        case "Scan":
            yield from _scan_turns(node, bodies[0], level)
        case _:
            raise UncountedError(f"it is not known how often the body of {node.op_type} runs")


def _loop_turns(node: ir.Node, body: Body, level: _Level) -> Iterator[tuple[Body, _Level, int]]:
    inputs, outputs = body.graph.inputs, body.graph.outputs
    count = level.number(node.inputs[0])
    goes_on = _is_always_true(outputs[0], inputs[1]) and (
        node.inputs[1] is None or ((go := level.number(node.inputs[1])) is not None and bool(go.all()))
    )
    if count is None or not goes_on:
        raise UncountedError("the number of its turns is not known")
    last, states = int(count.item()), [None if one is None else level.shape(one) for one in node.inputs[2:]]
    turn = 0
    while turn < last:
        own = {value: shape for value, shape in zip(inputs[2:], states, strict=True) if shape is not None}
        # With a turn that is like the one before it, all are; one by one the number of the turn is known.
        numbers = {inputs[0]: np.asarray(turn, np.int64), inputs[1]: np.True_}
        first: dict[ir.Value, _Shape] = dict.fromkeys(inputs[:2], ())
        inner = level.inner(first | own, {value: np.asarray(number) for value, number in numbers.items()})
        after = [inner.shape(value) for value in outputs[1 : 1 + len(states)]]
        if after == states or last == turn + 1:
            yield body, inner, last - turn
            return
        if turn > _MOST_TURNS:
            raise UncountedError(f"its shapes change for more than {_MOST_TURNS} turns")
        yield body, inner, 1
        states, turn = after, turn + 1


def _scan_turns(node: ir.Node, body: Body, level: _Level) -> Iterator[tuple[Body, _Level, int]]:
    scanned = node.attributes["num_scan_inputs"].as_int()
    axes = node.attributes.get("scan_input_axes")
    cut = list(axes.as_ints()) if axes is not None else [0] * scanned
    given = [None if one is None else level.shape(one) for one in node.inputs]
    lengths = {shape[axis] for shape, axis in zip(given[-scanned:], cut, strict=True) if shape is not None}
    if len(lengths) != 1:
        raise UncountedError("the number of its steps is not known")
    own: dict[ir.Value, _Shape] = {}
    for number, (value, shape) in enumerate(zip(body.graph.inputs, given, strict=True)):
        axis = None if number < len(given) - scanned else cut[number - len(given) + scanned] % len(shape or (0,))
        if shape is not None:
            own[value] = shape if axis is None else (*shape[:axis], *shape[axis + 1 :])
    if (times := lengths.pop()) > 0:
        yield body, level.inner(own, {}), times


def _note_outputs(node: ir.Node, turns: Sequence[tuple[Body, _Level, int]], level: _Level) -> None:
    """State the shapes of a node's outputs that its last turn shows; those of stacked ones have a new first axis."""
    if not turns:
        return
    body, inner, _ = turns[-1]
    total = sum(count for _, _, count in turns)
    made = list(body.graph.outputs)[1 if node.op_type == "Loop" else 0 :]
    states = {"If": len(made), "Loop": len(node.inputs) - 2}.get(node.op_type, 0)
    if node.op_type == "Scan":
        states = len(node.inputs) - node.attributes["num_scan_inputs"].as_int()
    for number, (value, output) in enumerate(zip(node.outputs, made, strict=False)):
        shape = inner.shape(output)
        is_stacked_apart = node.op_type == "Scan" and "scan_output_axes" in node.attributes
        if shape is not None and not (number >= states and is_stacked_apart):
            level.shapes[value] = shape if number < states else (total, *shape)


def _is_always_true(value: ir.Value, condition: ir.Value) -> bool:
    """Whether the condition that a turn returns is that which it got."""
    while (node := value.producer()) is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        value = node.inputs[0]
    constant = value.const_value
    if node is not None and node.op_type == "Constant" and "value" in node.attributes:
        constant = node.attributes["value"].as_tensor()
    return value is condition or (constant is not None and bool(constant.numpy().all()))
