"""Analyse how a mask depends on positions, to find the sequence length beyond which it no longer changes (its reach).

Only comparisons of positions are understood. Positions may be added, subtracted, negated, clamped and shifted, but not
multiplied, divided or rounded, so a comparison changes only where a position passes a sum of the constants that it is
compared with. Every other value counts as unknown. A mask that is uniform up to its reach, the sum of all those
constants, is then uniform everywhere, because entry (i, j) does not depend on the number of queries and keys. Does not
evaluate masks; `masks.mask_bands` does.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from sdpa_onnx.graph.domains import is_standard
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.path_kinds import (
    PATTERN,
    UNKNOWN,
    PathFacts,
    PathKind,
    added_up,
    either,
    largest,
    moved,
    picked,
)
from sdpa_onnx.graph.lift.sizes import SizeEntry, SymbolicSize
from sdpa_onnx.graph.lift.spans import SPAN_OPERATORS

__all__ = ["EXTENTS", "IndexPaths"]

# Inputs that decide only the size of the output, not its entries.
EXTENTS: Mapping[str, tuple[int, ...]] = {
    "Reshape": (1,),
    "Expand": (1,),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
    "Tile": (1,),
    "ConstantOfShape": (0,),
    "Range": (1,),
    "Slice": (2,),
}
# Larger tables are not read; a mask table for 2048 queries and keys has half as many entries.
_MOST_ENTRIES = 2**23
# Types that represent every position exactly; in others a position wraps around or is rounded.
_HOLDS_POSITIONS = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE)


# Positions in a comparison of a query with a key.
_PAIR = 2
_PAST = PathFacts(kind=PathKind.PAST, is_constant=True)

_Rule = Callable[["IndexPaths", ir.Node, list["PathFacts"]], PathFacts]


@dataclass(slots=True)
class IndexPaths:
    """Analyses the values of one graph, each once.

    Args:
        search: The graph.
        batches: Names of axes that are tried with few entries only; positions along them count as unknown.
        longest: The largest constant in a comparison that can be tried.
        pasts: The number of cached keys, as each of these sizes; empty without a cache.
    """

    search: GraphFacts
    batches: frozenset[str]
    longest: float
    pasts: frozenset[SizeEntry] = frozenset()
    _known: dict[ir.Value, PathFacts] = field(default_factory=dict)

    def is_unknown(self, value: ir.Value) -> bool:
        """Whether a value must count as unknown, even if it can be computed at some sizes."""
        return self._of(value).kind is PathKind.UNKNOWN

    def reach(self, value: ir.Value) -> float:
        """The position beyond which a value no longer changes."""
        return sum(self.thresholds(value))

    def thresholds(self, value: ir.Value) -> list[float]:
        """The thresholds that add up to the reach."""
        return [path.threshold for path in self._met(value) if path.threshold]

    def mixes_positions(self, value: ir.Value) -> bool:
        """Whether some pairs of positions are compared with the cached keys counted, and others without."""
        return len({path.has_past for path in self._met(value) if path.positions == _PAIR}) > 1

    def _met(self, value: ir.Value) -> list[PathFacts]:
        """Everything that is understood on the paths to a value."""
        found, seen, stack = [], {value}, [value]
        while stack:
            reached = stack.pop()
            path = self._of(reached)
            if path.kind is PathKind.UNKNOWN:
                continue
            found.append(path)
            entered = [] if path.is_constant else _entered(reached.producer())
            new = [one for one in dict.fromkeys(entered) if one not in seen]
            seen.update(new)
            stack += new
        return found

    def _of(self, goal: ir.Value) -> PathFacts:
        stack = [goal]  # not by recursion: a path through a deep model is longer than Python's stack
        while stack:
            value = stack[-1]
            if value in self._known:
                stack.pop()
                continue
            node = value.producer()
            literal = _PAST if self.is_past(value) else self._literal(value)
            if literal is not None or node is None or not _is_readable(node):
                self._known[value] = literal or UNKNOWN
                continue
            entered = _entered(node)
            missing = [one for one in entered if one not in self._known]
            if missing:
                stack += missing
                continue
            self._known[value] = self._read(node, [self._known[one] for one in entered])
        return self._known[goal]

    def _read(self, node: ir.Node, paths: list[PathFacts]) -> PathFacts:
        if {PathKind.SAMPLE, PathKind.INDICES} & {path.kind for path in paths} and node.op_type not in _TAKES_SAMPLES:
            return UNKNOWN
        if PathKind.PAST in {path.kind for path in paths} and node.op_type not in _TAKES_PAST:
            return UNKNOWN
        rule = _RULES.get(node.op_type, _pattern)
        path = rule(self, node, paths)
        number = path.number if path.kind in (PathKind.POSITION, PathKind.SAMPLE, PathKind.INDICES) else 0.0
        return UNKNOWN if max(number, path.threshold) > self.longest else path

    def is_past(self, value: ir.Value) -> bool:
        """Whether every entry of a value is the number of cached keys."""
        known = self.search.sizes_in(value) if self.pasts else None
        return known is not None and known.size > 0 and all(size in self.pasts for size in known.ravel().tolist())

    def _literal(self, value: ir.Value) -> PathFacts | None:
        sizes = self.search.sizes_of(value)
        if sizes is None or math.prod(size if isinstance(size, int) else 1 for size in sizes) > _MOST_ENTRIES:
            return None
        array = self.search.constant_of(value)
        if array is None:
            known = self.search.sizes_in(value)
            if known is None or not all(isinstance(size, int) for size in known.ravel().tolist()):
                return None
            array = known.astype(np.int64)
        if array.size > _MOST_ENTRIES:
            return None
        size = max(array.shape, default=0) if array.size > 1 else 0
        return PathFacts(kind=PathKind.LITERAL, number=largest(array), threshold=float(size), is_constant=True)

    def _range(self, node: ir.Node, paths: list[PathFacts]) -> PathFacts:
        start, _ = paths
        along = self.search.sizes_in(node.inputs[1])
        if along is None:
            return UNKNOWN
        names = {name for size in along.ravel().tolist() for name in _names(size)}
        if start.kind not in (PathKind.LITERAL, PathKind.PAST) or self.search.scalar_of(node.inputs[2]) != 1:
            return UNKNOWN
        kind, is_past = PathKind.SAMPLE if names & self.batches else PathKind.POSITION, start.kind is PathKind.PAST
        if is_past and kind is PathKind.SAMPLE:
            return UNKNOWN
        return PathFacts(kind=kind, positions=1, number=start.number, has_past=is_past)

    def _product(self, node: ir.Node, paths: list[PathFacts]) -> PathFacts:
        if PathKind.POSITION not in {path.kind for path in paths}:
            return PATTERN
        for position, path in enumerate(paths):
            if path.kind is PathKind.POSITION and self.search.scalar_of(node.inputs[1 - position]) in (-1, 0, 1):
                return moved(path, 0.0)
        return UNKNOWN

    def _slice(self, node: ir.Node, paths: list[PathFacts]) -> PathFacts:
        data, *numbers = paths
        steps = self.search.scalar_of(node.inputs[4]) if len(node.inputs) > 4 else 1
        if steps == 1 and numbers[0].kind is PathKind.PAST:
            return self._from_past(data)
        starts = self.search.sizes_in(node.inputs[1])
        if steps != 1 or starts is None or not all(isinstance(s, int) and s >= 0 for s in starts.ravel().tolist()):
            return UNKNOWN
        return moved(data, numbers[0].number)

    def _from_past(self, data: PathFacts) -> PathFacts:
        """The entries from the first new position on."""
        match data.kind:
            case PathKind.POSITION if data.positions == 1 and not data.has_past:
                return PathFacts(kind=PathKind.POSITION, positions=1, number=data.number, has_past=True)
            case PathKind.LITERAL | PathKind.PATTERN:
                return PathFacts(kind=PathKind.PATTERN, positions=_PAIR, has_past=True)
            case _:
                return UNKNOWN

    def _gather(self, _: ir.Node, paths: list[PathFacts]) -> PathFacts:
        data, index = paths
        if index.kind is PathKind.LITERAL:
            return moved(data, index.number)
        if data.kind is PathKind.LITERAL:  # for any index, the result is an entry of the table
            by = index.number if index.kind is PathKind.POSITION else 0.0
            return PathFacts(kind=PathKind.LITERAL, number=data.number, threshold=by)
        return picked(data, index)

    def _gather_nd(self, node: ir.Node, paths: list[PathFacts]) -> PathFacts:
        """GatherND whose first index may be a sample, if all samples have the same entries."""
        data, index = paths
        written = node.inputs[1].producer() if node.inputs[1] is not None else None
        if index.kind is not PathKind.INDICES or written is None or written.op_type != "Concat" or _batch_dims(node):
            return UNKNOWN
        parts = [self._known[one] for one in written.inputs if one is not None]
        if PathKind.SAMPLE in {part.kind for part in parts[1:]}:
            return UNKNOWN
        if parts[0].kind is PathKind.SAMPLE and not self._is_spread(node.inputs[0]):
            return UNKNOWN
        return picked(data, index)

    def _is_spread(self, goal: ir.Value | None) -> bool:
        """Whether a value is the same for every index along the first axis."""
        sizes = self.search.sizes_of(goal)
        stack = [goal]
        while stack and sizes is not None:
            value = stack.pop()
            own = self.search.sizes_of(value)
            if value is None or own is None or len(own) > len(sizes):
                return False
            if len(own) < len(sizes) or own[0] == 1:
                continue
            node = value.producer()
            if (
                node is None
                or node.op_type not in _SAME_FOR_SAMPLES
                or (node.op_type == "Concat" and _axis_of(node) == 0)
            ):
                return False
            stack += node.inputs[:1] if node.op_type in ("Expand", "Tile", "Slice", "CumSum") else node.inputs
        return sizes is not None

    def _concat(self, node: ir.Node, paths: list[PathFacts]) -> PathFacts:
        """Concat of single indices along the last axis, or of parts of which only the last has a dynamic length."""
        axis, sizes = _axis_of(node), [self.search.sizes_of(value) for value in node.inputs]
        kinds = {path.kind for path in paths}
        long = [size[axis] if size is not None else None for size in sizes]
        are_last = all(size is not None and axis in (-1, len(size) - 1) for size in sizes)
        number = sum(path.number for path in paths)
        if are_last and set(long) == {1} and kinds <= {PathKind.LITERAL, PathKind.POSITION, PathKind.SAMPLE}:
            positions = sum(path.positions for path in paths if path.kind is PathKind.POSITION)
            return PathFacts(kind=PathKind.INDICES, positions=positions, number=number)
        before = [size for size in long[:-1] if isinstance(size, int)]
        if len(before) < len(long) - 1:
            return UNKNOWN
        joined = either(paths)
        return moved(joined, float(sum(before))) if joined.kind is not PathKind.UNKNOWN else UNKNOWN

    def _tile(self, node: ir.Node, paths: list[PathFacts]) -> PathFacts:
        """Tile along axes of size 1 only; along other axes, the entry at a position depends on the length."""
        before, times = self.search.sizes_of(node.inputs[0]), self.search.sizes_in(node.inputs[1])
        if before is None or times is None or len(before) != times.size:
            return UNKNOWN
        is_spread = all(1 in (size, time) for size, time in zip(before, times.tolist(), strict=True))
        return moved(paths[0], 0.0) if is_spread else UNKNOWN

    def _cast(self, node: ir.Node, paths: list[PathFacts]) -> PathFacts:
        (path,) = paths
        target = ir.DataType(node.attributes["to"].as_int())
        if path.kind is PathKind.PAST:
            return path if target in _HOLDS_POSITIONS else UNKNOWN
        if path.kind is not PathKind.POSITION:
            return moved(path, 0.0) if path.kind is PathKind.LITERAL and target in _HOLDS_POSITIONS else PATTERN
        if target is ir.DataType.BOOL:
            return _compared(self, node, paths)
        return moved(path, 0.0) if target in _HOLDS_POSITIONS else UNKNOWN


def _compared(_: IndexPaths, __: ir.Node, paths: list[PathFacts]) -> PathFacts:
    """The constants of both sides add up to the difference at which the comparison changes."""
    total = added_up(paths)
    if total.kind is PathKind.PAST or (total.has_past and total.positions != _PAIR):
        return UNKNOWN
    if total.kind is PathKind.POSITION:
        return PathFacts(
            kind=PathKind.PATTERN, threshold=total.number + 1, positions=total.positions, has_past=total.has_past
        )
    return total


def _added(_: IndexPaths, __: ir.Node, paths: list[PathFacts]) -> PathFacts:
    return added_up(paths)


def _chosen(_: IndexPaths, __: ir.Node, paths: list[PathFacts]) -> PathFacts:
    """Where: one of two values."""
    return either(paths[1:])


def _limited(_: IndexPaths, __: ir.Node, paths: list[PathFacts]) -> PathFacts:
    """Min and Max: a comparison, and one of the two operands."""
    return UNKNOWN if added_up(paths).kind is PathKind.UNKNOWN else either(paths)


def _triangle(_: IndexPaths, __: ir.Node, paths: list[PathFacts]) -> PathFacts:
    data, *diagonal = paths
    numbers = [path.number for path in diagonal if path.kind in (PathKind.LITERAL, PathKind.PAST)]
    if data.kind in (PathKind.POSITION, PathKind.PAST) or len(numbers) < len(diagonal):
        return UNKNOWN
    has_past = PathKind.PAST in {path.kind for path in diagonal}
    return PathFacts(kind=PathKind.PATTERN, threshold=sum(numbers) + 1, positions=_PAIR, has_past=has_past)


def _filled(_: IndexPaths, node: ir.Node, __: list[PathFacts]) -> PathFacts:
    value = node.attributes.get("value")
    return PathFacts(kind=PathKind.LITERAL, number=largest(value.as_tensor().numpy()) if value is not None else 0.0)


def _same(_: IndexPaths, __: ir.Node, paths: list[PathFacts]) -> PathFacts:
    (path,) = paths
    return moved(path, 0.0)


def _pattern(_: IndexPaths, __: ir.Node, paths: list[PathFacts]) -> PathFacts:
    """Elementwise operators: a pattern stays a pattern; the result for a position is unknown."""
    return UNKNOWN if PathKind.POSITION in {path.kind for path in paths} else PATTERN


def _axis_of(node: ir.Node) -> int:
    attribute = node.attributes.get("axis")
    return 0 if attribute is None else attribute.as_int()


def _batch_dims(node: ir.Node) -> int:
    attribute = node.attributes.get("batch_dims")
    return 0 if attribute is None else attribute.as_int()


def _names(size: object) -> set[object]:
    """Every operator, axis name and number in a size."""
    terms = size.terms if isinstance(size, SymbolicSize) else None
    return {size} if terms is None else {name for term in terms for name in _names(term)}


def _is_readable(node: ir.Node) -> bool:
    if not is_standard(node) or node.op_type not in SPAN_OPERATORS:
        return False
    return node.op_type in _RULES or node.op_type in _POINTWISE


def _entered(node: ir.Node | None) -> list[ir.Value]:
    """Inputs that decide the entries of the output."""
    if node is None:
        return []
    extents = EXTENTS.get(node.op_type, ())
    return [one for position, one in enumerate(node.inputs) if one is not None and position not in extents]


# Operators whose output is the same for every sample if their inputs are.
_SAME_FOR_SAMPLES = frozenset(
    ["Expand", "Tile", "Slice", "CumSum", "Concat", "Identity", "Cast", "Add", "Sub", "Equal", "Not"]
)
# Operators that move samples and indices, or gather by them.
_TAKES_SAMPLES = frozenset(["Identity", "Expand", "Unsqueeze", "Squeeze", "Concat", "GatherND"])
# Operators that move the number of cached keys, add it to positions, or begin with it.
_TAKES_PAST = frozenset(
    [
        *("Identity", "Expand", "Unsqueeze", "Squeeze", "Reshape", "Cast", "Add", "Sub", "Range", "Slice", "Trilu"),
        *("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"),
    ]
)
_POINTWISE = frozenset(
    [
        *("And", "Or", "Xor", "Not", "Div", "Mod", "Sqrt", "Reciprocal", "Pow", "Floor", "Ceil", "Round", "Exp", "Log"),
        # CumSum of zeros only, see `SizeTrial`.
        "CumSum",
        *("Clip", "Sign", "IsInf", "IsNaN", "BitwiseAnd", "BitwiseOr", "BitwiseNot"),
    ]
)
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"), _compared),
    **dict.fromkeys(("Add", "Sub"), _added),
    **dict.fromkeys(("Min", "Max"), _limited),
    **dict.fromkeys(("Neg", "Abs", "Identity", "Expand", "Unsqueeze", "Squeeze", "Reshape", "Transpose"), _same),
    "ConstantOfShape": _filled,
    "Where": _chosen,
    "Trilu": _triangle,
    "Range": IndexPaths._range,  # noqa: SLF001
    "Mul": IndexPaths._product,  # noqa: SLF001
    "Slice": IndexPaths._slice,  # noqa: SLF001
    "GatherND": IndexPaths._gather_nd,  # noqa: SLF001
    "Concat": IndexPaths._concat,  # noqa: SLF001
    "Tile": IndexPaths._tile,  # noqa: SLF001
    "Gather": IndexPaths._gather,  # noqa: SLF001
    "Cast": IndexPaths._cast,  # noqa: SLF001
}
