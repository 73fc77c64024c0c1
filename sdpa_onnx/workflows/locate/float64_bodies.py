"""Run If, Loop and Scan in float64: the bodies node by node, each node as in the main graph.

ONNX's own evaluator runs a body as one node: it rounds inside (Erf is float32 there) and joins what turns return along
the wrong axis. Computes no node itself.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.workflows.locate.reference_nodes import NoReference, widened

__all__ = ["BodyRun", "Scope"]

Array = NDArray[np.generic]
# Of one run of a node: about 1 ms for each of a small one.
_MOST_NODES = 20_000
# The first opset in which the inputs of Scan are states and scanned values alone.
_SCAN_OPSET = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Values that nodes of a graph can read.

    Args:
        values: By name; constants of the main graph are not among them.
        sized: Names of those that depend on sizes and constants alone.
    """

    values: dict[str, Array]
    sized: set[str] = field(default_factory=set)

    def inner(self) -> "Scope":
        """A copy to which a body adds its own values."""
        return Scope(values=dict(self.values), sized=set(self.sized))


class _UnknownError(Exception):
    """A node of a body, or what it needs, has no reference."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A value that a body returns, and whether it depends on sizes and constants alone."""

    array: Array
    is_sized: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyRun:
    """Runs the bodies of nodes.

    Args:
        compute: Computes the outputs of one node in a scope.
        constant: The array of a constant of the main graph, or None.
        opset: Of the default domain.
    """

    compute: Callable[[ir.Node, Scope], "dict[str, Array] | NoReference"]
    constant: Callable[[str], Array | None]
    opset: int

    def outputs(self, node: ir.Node, scope: Scope) -> "dict[str, Array] | NoReference":
        """The outputs of an If, Loop or Scan; names of sized ones are added to the scope."""
        rules = {"If": self._branch, "Loop": self._turns, "Scan": self._steps}
        rule = rules.get(node.op_type)
        if rule is None or node.domain not in ("", "ai.onnx"):
            return NoReference(f"{node.op_type} is no If, Loop or Scan")
        try:
            made = rule(node, scope)
        except _UnknownError as error:
            return NoReference(str(error))
        named = {value.name: one for value, one in zip(node.outputs, made, strict=True) if value.name}
        scope.sized.update(name for name, one in named.items() if one.is_sized)
        return {name: one.array for name, one in named.items()}

    def _branch(self, node: ir.Node, scope: Scope) -> list[_Made]:
        holds = self._read(node.inputs[0], scope)
        graph = node.attributes["then_branch" if holds.array.all() else "else_branch"].as_graph()
        made = self._body(graph, [], scope)
        return [_Made(one.array, one.is_sized and holds.is_sized) for one in made]

    def _turns(self, node: ir.Node, scope: Scope) -> list[_Made]:
        graph = node.attributes["body"].as_graph()
        count, go, *carried = (None if value is None else self._read(value, scope) for value in node.inputs)
        last = None if count is None else int(count.array.item())
        holds = go is None or bool(go.array.all())
        states = [one for one in carried if one is not None]
        kept: list[list[_Made]] = [[] for _ in graph.outputs[1 + len(carried) :]]
        turn = 0
        while holds and (last is None or turn < last):
            if turn * len(graph) > _MOST_NODES:
                raise _UnknownError(f"it takes more than {turn} turns")
            own = [_Made(np.asarray(turn, np.int64), True), _Made(np.asarray(holds), True)]
            condition, *made = self._body(graph, [*own, *states], scope)
            holds, states = bool(condition.array.all()), made[: len(carried)]
            for parts, one in zip(kept, made[len(carried) :], strict=True):
                parts.append(one)
            turn += 1
        return [*states, *(_stacked(parts) for parts in kept)]

    def _steps(self, node: ir.Node, scope: Scope) -> list[_Made]:
        if self.opset < _SCAN_OPSET:
            raise _UnknownError(f"Scan of opset {self.opset} has other inputs")
        graph = node.attributes["body"].as_graph()
        given = [self._read(value, scope) for value in node.inputs]
        scanned = node.attributes["num_scan_inputs"].as_int()
        states, slices = given[:-scanned], given[-scanned:]
        axes, back = (_ints(node, f"scan_input_{name}", scanned) for name in ("axes", "directions"))
        parts = [list(_along(one, axis, bool(is_back))) for one, axis, is_back in zip(slices, axes, back, strict=True)]
        kept: list[list[_Made]] = [[] for _ in graph.outputs[len(states) :]]
        for number, step in enumerate(zip(*parts, strict=True)):
            if number * len(graph) > _MOST_NODES:
                raise _UnknownError(f"it takes more than {number} steps")
            made = self._body(graph, [*states, *step], scope)
            states = made[: len(states)]
            for outputs, one in zip(kept, made[len(states) :], strict=True):
                outputs.append(one)
        axes, back = (_ints(node, f"scan_output_{name}", len(kept)) for name in ("axes", "directions"))
        stacked = [
            _stacked(outputs[::-1] if is_back else outputs, axis)
            for outputs, axis, is_back in zip(kept, axes, back, strict=True)
        ]
        return [*states, *stacked]

    def _body(self, graph: ir.Graph, inputs: Sequence[_Made], outer: Scope) -> list[_Made]:
        scope = outer.inner()
        for value in graph.initializers.values():
            if value.const_value is not None:
                _add(scope, value, _Made(value.const_value.numpy(), True))
        for value, one in zip(graph.inputs, inputs, strict=True):
            _add(scope, value, one)
        for node in graph:
            made = self.compute(node, scope)
            if isinstance(made, NoReference):
                raise _UnknownError(f"its node {node.op_type}: {made.reason}")
            scope.values.update(made)
        return [self._read(value, scope) for value in graph.outputs]

    def _read(self, value: ir.Value | None, scope: Scope) -> _Made:
        name = "" if value is None else value.name or ""
        array = scope.values.get(name)
        if array is not None:
            return _Made(array, name in scope.sized)
        array = self.constant(name)
        if array is None:
            raise _UnknownError(f"its input '{name}' has no value")
        return _Made(array, True)


def _add(scope: Scope, value: ir.Value, one: _Made) -> None:
    name = value.name or ""
    scope.values[name] = one.array
    scope.sized.discard(name)
    if one.is_sized:
        scope.sized.add(name)


def _stacked(parts: Sequence[_Made], axis: int = 0) -> _Made:
    if not parts:
        raise _UnknownError("no turn shows the shape of what it stacks")
    is_sized = all(one.is_sized for one in parts)
    arrays = [one.array if is_sized else widened(one.array) for one in parts]
    return _Made(np.stack(arrays, axis=axis), is_sized)


def _along(one: _Made, axis: int, is_back: bool) -> Iterator[_Made]:  # noqa: FBT001  # a direction of the operator
    slices = np.moveaxis(one.array, axis, 0)
    return (_Made(np.asarray(part), one.is_sized) for part in (slices[::-1] if is_back else slices))


def _ints(node: ir.Node, name: str, count: int) -> Sequence[int]:
    attribute = node.attributes.get(name)
    return attribute.as_ints() if attribute is not None else [0] * count
