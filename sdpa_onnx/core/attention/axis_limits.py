"""Sizes that a traced program or a file allows: expressions of named axes, ranges, multiples, and sizes that obey them.

Pure arithmetic. `graph.model_facts` reads the limits of a file; the exporter and `workflows.verify` find and test them.
"""

import ast
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

__all__ = [
    "AxisExpression",
    "AxisLimit",
    "broken_limit",
    "edge_sizes",
    "fit_sizes",
    "limits_of_axis",
    "read_expression",
]

Sizes = Mapping[str, int]

# A longer text is a name: no exporter writes such an expression, and a parser would spend stack on it.
_LONGEST_TEXT = 200
# Beyond it no size is searched for.
_LONGEST_SIZE = 1 << 12
# Of two allowed sizes next to each other.
_WIDEST_STEP = 128
_LONGEST_COUNTED = 257
# As Python writes them, and sympy.
_FUNCTIONS: Mapping[str, Callable[[Iterable[int]], int]] = {"max": max, "min": min, "Max": max, "Min": min}
_EXACT: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_DIVIDING: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisExpression:
    """The size of an axis as whole-number arithmetic of named axes, such as "4*images" or "32 - x_seq_len".

    Args:
        text: As the file states it.
        names: The axes in it, in order of appearance.
    """

    text: str
    names: tuple[str, ...]

    @property
    def is_name(self) -> bool:
        """Whether it is one axis by itself."""
        return self.names == (self.text,)

    def at(self, sizes: Sizes) -> int:
        """Its value at these sizes; negative where they are not allowed.

        Raises:
            KeyError: If an axis has no size.
        """
        return sizes[self.text] if self.is_name else _value(_parsed(self.text), sizes)

    def solved(self, value: int, sizes: Sizes) -> dict[str, int]:
        """The size of its one axis that is not in `sizes`, where the expression has this value; empty if there is none.

        Example:
            >>> read_expression("4*images + 2").solved(14, {})
            {'images': 3}
        """
        unknown = [name for name in self.names if name not in sizes]
        if len(unknown) != 1:
            return {}
        at_zero, at_one = (self.at({**sizes, unknown[0]: size}) for size in (0, 1))
        slope = at_one - at_zero
        if not slope or (value - at_zero) % slope:
            return {}
        found = {unknown[0]: (value - at_zero) // slope}
        return found if found[unknown[0]] >= 0 and self.at({**sizes, **found}) == value else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisLimit:
    """The values that an axis, or an expression of axes, may have: a range, and the multiples of a step in it.

    Args:
        size: A name, or an expression such as "x_seq_len + past_seq_len".
        smallest: The smallest value.
        largest: The largest value; None without one.
        step, offset: Values are offset, offset + step, ...; a step of 1 allows every value.
        source: What states it, one clause: the line of the module, or what was run.
        tested: Values at its edges that were run and are right.

    Raises:
        ValueError: If the step is below 1, or the range is empty.
    """

    size: str
    smallest: int = 0
    largest: int | None = None
    step: int = 1
    offset: int = 0
    source: str = ""
    tested: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.step < 1 or (self.largest is not None and self.largest < self.smallest):
            raise ValueError(f"the sizes of '{self.size}' cannot be {self.smallest} to {self.largest} by {self.step}")

    @property
    def names(self) -> tuple[str, ...]:
        """The axes that it limits."""
        return read_expression(self.size).names

    def allows(self, sizes: Sizes) -> bool:
        """Whether these sizes are inside; a limit of an axis without a size allows every size.

        Example:
            >>> windows = AxisLimit(size="batch", step=4)
            >>> [size for size in range(1, 10) if windows.allows({"batch": size})]
            [4, 8]
        """
        if any(name not in sizes for name in self.names):
            return True
        value = read_expression(self.size).at(sizes)
        above = self.largest is not None and value > self.largest
        return value >= self.smallest and not above and (value - self.offset) % self.step == 0

    def __str__(self) -> str:
        """The condition, as a reader of a report needs it.

        Example:
            >>> print(AxisLimit(size="x", largest=300), "|", AxisLimit(size="m", smallest=2, step=16, offset=2))
            x <= 300 | m >= 2, m = 16*n + 2
        """
        parts = []
        if self.smallest > 0 and self.largest is not None:
            parts.append(f"{self.smallest} <= {self.size} <= {self.largest}")
        elif self.largest is not None:
            parts.append(f"{self.size} <= {self.largest}")
        elif self.smallest > 0 or self.step == 1:
            parts.append(f"{self.size} >= {self.smallest}")
        if self.step > 1:
            parts.append(f"{self.size} = {self.step}*n{f' + {self.offset}' if self.offset else ''}")
        return ", ".join(parts)


@lru_cache(maxsize=4096)
def read_expression(text: str) -> AxisExpression:
    """Read the text of an axis; one that is no arithmetic of names and whole numbers, or holds no name, is one name.

    Example:
        >>> read_expression("past + 2*new").names, read_expression("p2o.DynamicDimension.0").names
        (('past', 'new'), ('p2o.DynamicDimension.0',))
    """
    tree = _parsed(text)
    if tree is None:
        return AxisExpression(text=text, names=(text,))
    functions = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in functions]
    names.sort(key=lambda node: (node.lineno, node.col_offset))
    return AxisExpression(text=text, names=tuple(dict.fromkeys(node.id for node in names)) or (text,))


def limits_of_axis(text: str, source: str) -> tuple[AxisLimit, ...]:
    """What the text of an axis implies: a size is not negative.

    Args:
        text: The axis.
        source: What states it.

    Example:
        >>> print(*limits_of_axis("32 - x", "a file"), *limits_of_axis("y - 2*x", "a file"), sep="; ")
        x <= 32; y - 2*x >= 0
    """
    expression = read_expression(text)
    tree = _parsed(text)
    if tree is None or not any(isinstance(node, ast.Sub | ast.USub) for node in ast.walk(tree)):
        return ()
    if len(expression.names) == 1:
        name = expression.names[0]
        first, *_, before, last = (expression.at({name: size}) for size in (0, 1, _LONGEST_SIZE - 1, _LONGEST_SIZE))
        slope = last - before
        if slope < 0 <= first and last == first + slope * _LONGEST_SIZE:
            return (AxisLimit(size=name, largest=first // -slope, source=source),)
    return (AxisLimit(size=text, source=source),)


def broken_limit(limits: Iterable[AxisLimit], sizes: Sizes) -> AxisLimit | None:
    """The first limit that these sizes do not obey."""
    return next((limit for limit in limits if not limit.allows(sizes)), None)


def fit_sizes(limits: Sequence[AxisLimit], sizes: Sizes, *, keep: Collection[str] = ()) -> dict[str, int]:
    """Change sizes until they obey the limits; sizes that obey them stay, and others stay different if they can.

    Args:
        limits: Of the file.
        sizes: Chosen without them.
        keep: Axes that must not change.

    Returns:
        Allowed sizes; where none are found, the nearest.

    Example:
        >>> fit_sizes([AxisLimit(size="x", largest=40)], {"x": 128, "batch": 3})
        {'x': 8, 'batch': 3}
        >>> fit_sizes([AxisLimit(size="m", step=16, offset=2)], {"m": 13})
        {'m': 194}
        >>> fit_sizes([AxisLimit(size="m", step=16, offset=2)], {"m": 97})
        {'m': 82}
    """
    found = dict(sizes)
    free = [axis for axis in sorted(found, key=lambda name: -found[name]) if axis not in keep]
    # First each axis as if the other ones were short: of x + y <= 32, neither x 64 nor y 64 can be mended alone.
    for others in (1, _LONGEST_SIZE):
        for axis in free:
            own = [limit for limit in limits if axis in limit.names]
            short = {name: min(size, others) if name in free else size for name, size in found.items()}
            short[axis] = found[axis]
            size = None if broken_limit(own, short) is None else _allowed_size(own, axis, short)
            found[axis] = found[axis] if size is None else size
    return found


def edge_sizes(
    limits: Sequence[AxisLimit], sizes: Sizes, *, longest: int
) -> list[tuple[AxisLimit, int, dict[str, int]]]:
    """Sizes at the edges of each limit, and one step inside.

    Args:
        limits: Of the file.
        sizes: Of every axis, for those that a limit leaves free.
        longest: No larger size is chosen.

    Returns:
        Each limit with a value of it, and the sizes that give this value.

    Example:
        >>> [sizes for _, _, sizes in edge_sizes([AxisLimit(size="x", largest=300)], {"x": 5, "b": 2}, longest=1024)]
        [{'x': 299, 'b': 2}, {'x': 300, 'b': 2}]
    """
    found = []
    base = fit_sizes(limits, sizes)
    for limit in limits:
        axis = next((name for name in reversed(limit.names) if name in base), None)
        for value in _edge_values(limit) if axis is not None else ():
            others = {name: size for name, size in base.items() if name != axis}
            solved = read_expression(limit.size).solved(value, others)
            chosen = fit_sizes(limits, {**base, **solved}, keep=limit.names)
            if solved and max(solved.values()) <= longest and broken_limit(limits, chosen) is None:
                found.append((limit, value, chosen))
    return found


def _edge_values(limit: AxisLimit) -> list[int]:
    """The allowed values at both ends of a limit, and those next to them; an axis by itself is not empty."""
    is_axis = limit.names == (limit.size,)
    least = max(limit.smallest, int(is_axis))
    lowest = least + (limit.offset - least) % limit.step
    is_bounded_below = limit.smallest > 0 or limit.step > 1 or (limit.largest is None and not is_axis)
    low = [lowest, lowest + limit.step] if is_bounded_below else []
    if limit.largest is None:
        return low
    highest = limit.largest - (limit.largest - limit.offset) % limit.step
    return sorted({value for value in (*low, highest - limit.step, highest) if lowest <= value <= highest})


def _allowed_size(limits: Sequence[AxisLimit], axis: str, sizes: Sizes) -> int | None:
    """An allowed size of one axis instead of one that is not: the n-th allowed one for n, or near n if that is long.

    One that is too long is folded; 0 only if there is no other.
    """

    def allowed(candidates: Iterable[int]) -> Iterator[int]:
        return (size for size in candidates if broken_limit(limits, {**sizes, axis: size}) is None)

    wanted = sizes[axis]
    top = next(allowed(range(min(wanted, _LONGEST_SIZE), 0, -1)), None)
    above = next(allowed(range(wanted + 1, min(2 * wanted + _WIDEST_STEP, _LONGEST_SIZE) + 1)), None)
    if above is None and top is not None:
        folded = 1 + (wanted - 1) % top
        return next(allowed([*range(folded, 0, -1), *range(folded, top + 1)]), None)
    counted = next(itertools.islice(allowed(range(1, _LONGEST_COUNTED)), max(wanted - 1, 0), None), None)
    near = (size for size in (counted, top, above) if size is not None)
    return next(near, None) or next(allowed([*range(wanted + 1, _LONGEST_SIZE + 1), 0]), None)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr | None:
    """The arithmetic of a text; None if it is none."""
    if len(text) > _LONGEST_TEXT:
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return tree if _is_arithmetic(tree) else None


def _is_arithmetic(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=value):
            return type(value) is int
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_arithmetic(operand)
        case ast.BinOp(op=op, left=left, right=right):
            is_known = type(op) in _EXACT or (type(op) in _DIVIDING and _is_divisor(right))
            return is_known and _is_arithmetic(left) and _is_arithmetic(right)
        case ast.Call(func=ast.Name(id="Mod"), args=[left, right], keywords=[]):
            return _is_divisor(right) and _is_arithmetic(left)
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as values, keywords=[]):
            return name in _FUNCTIONS and all(map(_is_arithmetic, values))
        case _:
            return isinstance(node, ast.Name)


def _is_divisor(node: ast.expr) -> bool:
    """A positive number; of a divisor that is an axis, 0 would have no value."""
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value > 0


def _value(node: ast.expr | None, sizes: Sizes) -> int:
    match node:
        case ast.Name(id=name):
            found = sizes[name]
        case ast.Constant(value=int(value)):
            found = value
        case ast.UnaryOp(operand=operand):
            found = -_value(operand, sizes)
        case ast.Call(func=ast.Name(id="Mod"), args=[left, right]):
            found = _value(left, sizes) % _value(right, sizes)
        case ast.Call(func=ast.Name(id=name), args=values):
            found = _FUNCTIONS[name](_value(value, sizes) for value in values)
        case ast.BinOp(op=op, left=left, right=right):
            found = {**_EXACT, **_DIVIDING}[type(op)](_value(left, sizes), _value(right, sizes))
        case _:
            raise KeyError(str(node))
    return found
