"""What each integer input of a graph means, and which numbers are legal at given sizes.

The table of `rules` says what an operator accepts. Where numbers are computed from an input (plus the number of new
tokens, say), the graph is evaluated with the input all 0 and all 1, which shows what is added. Comparisons with
positions, casts to boolean and sines say less: only what the input is. Draws no numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.graph.integers.allowed import Allowed, IntegerKind, IntegerMeaning, IntegerRule, NodeView
from sdpa_onnx.graph.integers.hints import exact, hinted, named
from sdpa_onnx.graph.integers.rules import input_names, rules_for
from sdpa_onnx.graph.integers.uses import IntegerUse, uses_of
from sdpa_onnx.graph.lift.size_trial import MisfitError, NodeEvaluators, SizeTrial

__all__ = ["IntegerGraph"]

Array = NDArray[np.generic]

_INDEXING = frozenset({"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "OneHot"})


class IntegerGraph:
    """The integer inputs of a graph at one choice of sizes.

    Args:
        model: The graph.
        shapes: Shape of every graph input by name.
        sizes: Size of every named axis.
    """

    def __init__(self, model: ir.Model, shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int]) -> None:
        self._evaluators = NodeEvaluators(model.opset_imports)
        self._opsets = model.opset_imports
        self._inputs = {value: shapes[value.name or ""] for value in model.graph.inputs}
        self._sizes = sizes
        self._drawn: dict[ir.Value, Array] = {}
        integers = [one for one in self._inputs if one.dtype is not None and one.dtype.is_integer()]
        self._uses = {value: list(uses_of(value)) for value in integers}

    @property
    def in_order(self) -> tuple[ir.Value, ...]:
        """The integer inputs; those on which the limits of others depend come first."""
        total = ("total_sequence_length", "depth")
        first = [value for value, uses in self._uses.items() if any(self._name(use) in total for use in uses)]
        return (*first, *(value for value in self._uses if value not in first))

    def draw(self, value: ir.Value, array: Array) -> None:
        """State the numbers of an input; the limits of the others may depend on them."""
        self._drawn[value] = array

    def meaning(self, value: ir.Value) -> IntegerMeaning:
        """What an input is, given the numbers that are stated so far."""
        trials = tuple(self._trial(value, number) for number in (0, 1))
        # The readers of operators add nodes that index what they built themselves, so an operator's own rule decides.
        own = [use for use in self._uses[value] if use.node.op_type not in _INDEXING]
        indexing = [use for use in self._uses[value] if use.node.op_type in _INDEXING]
        chosen = self._by_rules(own, trials, value) or self._by_rules(indexing, trials, value)
        chosen = chosen or list(hinted(self._uses[value], trials[0], self._inputs[value]))
        by_name = list(named(value.name or ""))
        joined = _joined(chosen or by_name)
        if joined.kind is IntegerKind.INDEX and any(one.kind is IntegerKind.POSITIONS for one in by_name):
            return replace(joined, kind=IntegerKind.POSITIONS)
        return joined

    def broken(self) -> Iterator[str]:
        """The constraints of the table that the stated numbers break, one sentence each."""
        trial = self._trial(None, 0)
        for uses in self._uses.values():
            for use in uses:
                for rule, view in self._rules(use, trial):
                    array = view.arrays.get(rule.name)
                    allowed = rule.allowed(view)
                    if array is not None and allowed is not None and not _holds(rule, allowed, array):
                        yield f"{rule.operator}'s {rule.name} is {array.reshape(-1)[:8].tolist()}: {rule.says}."

    def _trial(self, value: ir.Value | None, number: int) -> SizeTrial:
        contents = dict(self._drawn)
        if value is not None and value.dtype is not None:
            contents[value] = np.full(self._inputs[value], number, value.dtype.numpy())
        return SizeTrial(self._evaluators, self._sizes, self._inputs, contents=contents)

    def _name(self, use: IntegerUse) -> str:
        names = input_names(use.node, self._opsets.get(use.node.domain, 1))
        return names[use.position] if use.position < len(names) else ""

    def _rules(self, use: IntegerUse, trial: SizeTrial) -> Iterator[tuple[IntegerRule, NodeView]]:
        name, opset = self._name(use), self._opsets.get(use.node.domain, 1)
        rules = list(rules_for(use.node, name))
        if rules:
            names = input_names(use.node, opset)
            view = _view(use.node, opset, names, trial)
            yield from ((rule, view) for rule in rules if rule.covers(view))

    def _by_rules(
        self, uses: Sequence[IntegerUse], trials: Sequence[SizeTrial], value: ir.Value
    ) -> list[IntegerMeaning]:
        return [one for use in uses for one in self._by_rule(use, trials, self._inputs[value])]

    def _by_rule(
        self, use: IntegerUse, trials: Sequence[SizeTrial], shape: tuple[int, ...]
    ) -> Iterator[IntegerMeaning]:
        for rule, view in self._rules(use, trials[0]):
            where = (f"{rule.operator} {rule.name}",)
            allowed = rule.allowed(view)
            if allowed is None or use.value.is_graph_input():
                yield IntegerMeaning(kind=rule.kind, allowed=allowed, where=where)
                continue
            values = [exact(trial, use.value) for trial in trials]
            moved = _moved(rule.kind, allowed, values, shape)
            if moved is not None:
                yield replace(moved, where=where)


def _holds(rule: IntegerRule, allowed: Allowed, array: Array) -> bool:
    if rule.kind is IntegerKind.BOUNDS:  # what follows the lengths are starts or offsets
        return int(array.min(initial=0)) >= 0
    return allowed.holds(array)


def _view(node: ir.Node, opset: int, names: Sequence[str], trial: SizeTrial) -> NodeView:
    shapes: dict[str, tuple[int, ...]] = {}
    arrays: dict[str, Array] = {}
    for name, value in zip(names, node.inputs, strict=False):
        if value is None:
            continue
        try:
            shape = trial.sizes(value)
            dtype = None if shape is None else trial.dtype(value)
            array = exact(trial, value) if dtype is not None and dtype.kind in "iu" else None
        except MisfitError:
            continue
        if shape is not None:
            shapes[name] = shape
        if array is not None:
            arrays[name] = array
    return NodeView(node=node, opset=opset, shapes=shapes, arrays=arrays)


def _moved(
    kind: IntegerKind, allowed: Allowed, values: Sequence[Array | None], shape: tuple[int, ...]
) -> IntegerMeaning | None:
    """The limits of an input whose numbers are changed before an operator gets them."""
    zero, one = values
    if zero is None or one is None or zero.shape != one.shape or not zero.size:
        return None
    base = zero.astype(np.int64)
    steps = one.astype(np.int64) - base
    if len(shape) == 2 and shape[1] > 1 and bool((steps == shape[1]).all()) and kind is IntegerKind.LENGTH:
        # The sum of each row is what counts: the input is a mask.
        start = int(base.max())
        rows = Allowed(low=max(1, allowed.low - start), high=allowed.high - start, is_reached=allowed.is_reached)
        return IntegerMeaning(kind=IntegerKind.PREFIX, allowed=rows)
    if not bool(((steps == 1) | (steps == 0)).all()) or not steps.any():
        return None
    offsets = base[steps == 1]
    least, most = int(offsets.min()), int(offsets.max())
    choices = tuple(one - most for one in allowed.choices)
    moved = Allowed(low=allowed.low - least, high=allowed.high - most, is_reached=allowed.is_reached, choices=choices)
    return IntegerMeaning(kind=kind, allowed=replace(moved, low=max(0, moved.low)))


def _joined(found: Sequence[IntegerMeaning]) -> IntegerMeaning:
    """What all uses say together; the strictest kind wins, which is the first in the list of `_ORDER`."""
    if not found:
        return IntegerMeaning(kind=IntegerKind.UNKNOWN, allowed=None)
    allowed: Allowed | None = None
    for one in found:
        if one.allowed is not None:
            allowed = one.allowed.of(allowed)
    kind = min((one.kind for one in found), key=_ORDER.index)
    return IntegerMeaning(kind=kind, allowed=allowed, where=tuple(dict.fromkeys(w for one in found for w in one.where)))


_ORDER = (
    IntegerKind.PREFIX,
    IntegerKind.BOUNDS,
    IntegerKind.START,
    IntegerKind.LENGTH,
    IntegerKind.SLOTS,
    IntegerKind.POSITIONS,
    IntegerKind.INDEX,
    IntegerKind.MASK,
    IntegerKind.UNKNOWN,
)
