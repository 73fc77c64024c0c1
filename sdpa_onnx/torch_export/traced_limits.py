"""Read the sizes that a trace allows out of the guards of torch.export: ranges, multiples, sums, with the line of each.

A guard is a condition on sizes that the traced code asked for, such as `length <= 300`, and that every other size
must answer alike. Does not trace; `baked` hears the lines.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import sympy  # type: ignore[import-untyped]  # a dependency of torch; it ships no types
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from sdpa_onnx.core.attention.axis_limits import AxisLimit, limits_of_axis, read_expression
from sdpa_onnx.torch_export.baked import BakedSizes, GuardLine

__all__ = ["named_limits", "traced_limits"]

# Sizes that a condition on multiples is tried at.
_TRIED = 2049
# torch.export assumes that a size of 0 or 1 is special, and states 2 where the code states nothing.
_ASSUMED_SMALLEST = 2
# torch writes its largest integer where a size has no limit.
_UNLIMITED = 1 << 40
_STATES = "; torch.export states "


def traced_limits(program: ExportedProgram, heard: BakedSizes) -> tuple[AxisLimit, ...]:
    """The limits of a traced module, in the symbols of its trace.

    Args:
        program: As traced.
        heard: The lines that asked for its conditions.
    """
    found: dict[tuple[str, str], AxisLimit] = {}
    env = _shape_env(program)
    known = {} if env is None else env.replacements
    for guard in () if env is None else env.guards:
        expression = guard.expr.xreplace(known)
        for limit in _of_guard(expression, heard.guards.get(str(guard.expr))):
            _keep(found, limit)
    for text in _input_expressions(program):
        line = heard.related.get(text)
        source = f"{'the traced code' if line is None else line}{_STATES}an axis of {text}"
        for limit in limits_of_axis(text, source):
            _keep(found, limit)
    stated = _stated_ranges(program)
    # The range of one symbol also follows from a relation of two, which is a limit by itself.
    related = {name for limit in found.values() if len(limit.names) > 1 for name in limit.names}
    related |= {name for text in _input_expressions(program) for name in read_expression(text).names}
    for symbol, (_, largest) in stated.items():
        if largest is not None and symbol not in related:
            _keep(found, AxisLimit(size=symbol, largest=largest, source="torch.export"))
    return tuple(_with_stated(limit, stated) for limit in found.values())


def named_limits(limits: Sequence[AxisLimit], names: Mapping[str, str]) -> tuple[AxisLimit, ...]:
    """The limits in the names of the axes; one of a symbol without a name is left out.

    Args:
        limits: In symbols.
        names: The name of each symbol.
    """
    found = []
    for limit in limits:
        if set(limit.names) <= set(names):
            code, states, figures = limit.source.partition(_STATES)
            found.append(replace(limit, size=_named(limit.size, names), source=code + states + _named(figures, names)))
    return tuple(found)


def _named(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"\b[A-Za-z_]\w*", lambda match: names.get(match.group(), match.group()), text)


def _with_stated(limit: AxisLimit, stated: Mapping[str, tuple[int, int | None]]) -> AxisLimit:
    """The limit with the range as torch.export states it, which begins at 2 where the code states nothing."""
    lower, upper = stated.get(limit.size, (0, None))
    if limit.largest is None or upper != limit.largest:
        return limit
    return replace(limit, source=f"{limit.source}{_STATES}{lower} <= {limit.size} <= {upper}")


def _keep(found: dict[tuple[str, str], AxisLimit], limit: AxisLimit) -> None:
    """Keep the stricter one of two limits of a kind."""
    kind = limit.size, "step" if limit.step > 1 else "largest" if limit.largest is not None else "smallest"
    known = found.get(kind)
    looser = known is None or (
        (limit.largest is not None and known.largest is not None and limit.largest < known.largest)
        or (limit.largest is None and limit.smallest > known.smallest)
        or (limit.step > known.step and limit.step % known.step == 0)
    )
    if looser:
        found[kind] = limit


def _of_guard(guard: sympy.Basic, line: "GuardLine | None") -> Iterator[AxisLimit]:
    source = str(line.where) if line is not None and line.where is not None else "torch.export"
    match guard:
        case sympy.Le() | sympy.Lt() | sympy.Ge() | sympy.Gt():
            yield from _bounds(guard, source, is_branch=line is not None and line.is_branch)
        case sympy.Eq() if len(guard.free_symbols) == 1 and not guard.rhs.is_Symbol:
            yield from _multiples(str(next(iter(guard.free_symbols))), str(guard.lhs), str(guard.rhs), source)
        case sympy.Eq() if guard.rhs == 0 and (found := _remainder(guard.lhs)) is not None:
            yield AxisLimit(size=found[0], step=found[1], source=source)
        case sympy.Ne() if guard.rhs == 0 and line is not None and line.is_branch:
            found = _remainder(guard.lhs)
            if found is not None:
                size = found[0] if found[0].isidentifier() else f"({found[0]})"
                yield AxisLimit(size=f"{size} % {found[1]}", smallest=1, source=source)


def _bounds(guard: sympy.Basic, source: str, *, is_branch: bool) -> Iterator[AxisLimit]:
    """A linear inequality. A lower bound counts only where the module's own code asks for it.

    torch asks for others, to know how a tensor lies in memory.
    """
    small, large = (guard.lhs, guard.rhs) if isinstance(guard, sympy.Le | sympy.Lt) else (guard.rhs, guard.lhs)
    strict = int(isinstance(guard, sympy.Lt | sympy.Gt))
    symbols = sorted(guard.free_symbols, key=str)
    difference = sympy.expand(large - small - strict)  # >= 0
    if not symbols or not all(difference.coeff(symbol).is_Integer for symbol in symbols):
        return
    constant = difference - sum(difference.coeff(symbol) * symbol for symbol in symbols)
    if not constant.is_Integer:
        return
    factors = {symbol: int(difference.coeff(symbol)) for symbol in symbols}
    if all(factor < 0 for factor in factors.values()):
        if len(factors) == 1:
            yield AxisLimit(size=str(symbols[0]), largest=int(constant) // -factors[symbols[0]], source=source)
        else:
            yield AxisLimit(size=_sum({s: -f for s, f in factors.items()}), largest=int(constant), source=source)
    elif all(factor > 0 for factor in factors.values()):
        smallest = -(int(constant) // factors[symbols[0]]) if len(factors) == 1 else -int(constant)
        if is_branch and smallest > _ASSUMED_SMALLEST:
            size = str(symbols[0]) if len(factors) == 1 else _sum(factors)
            yield AxisLimit(size=size, smallest=smallest, source=source)
    elif is_branch:
        yield AxisLimit(size=_sum(factors), smallest=-int(constant), source=source)


def _remainder(expression: sympy.Basic) -> tuple[str, int] | None:
    """Both arguments of a remainder of sizes; None of another expression."""
    found = re.fullmatch(r"Mod\(([^,]+), (\d+)\)", str(expression))
    if found is None or set(read_expression(found[1]).names) != {str(symbol) for symbol in expression.free_symbols}:
        return None
    return found[1], int(found[2])


def _sum(factors: Mapping[sympy.Symbol, int]) -> str:
    """The text of a sum, its positive terms first."""
    text = ""
    for symbol, factor in sorted(factors.items(), key=lambda item: item[1] < 0):
        term = str(symbol) if abs(factor) == 1 else f"{abs(factor)}*{symbol}"
        text += f" {'-' if factor < 0 else '+'} {term}" if text else f"{'-' if factor < 0 else ''}{term}"
    return text


def _multiples(symbol: str, left: str, right: str, source: str) -> Iterator[AxisLimit]:
    """The sizes at which two expressions of one symbol are equal, if they are the multiples of a step."""
    if "Mod(" not in left + right and "//" not in left + right:
        return
    difference = read_expression(f"({left}) - ({right})")
    if difference.names != (symbol,):
        return  # a function that is not read
    allowed = [size for size in range(_TRIED) if difference.at({symbol: size}) == 0]
    steps = {later - size for size, later in itertools.pairwise(allowed)}
    if len(allowed) > 1 and len(steps) == 1 and (step := steps.pop()) > 1:
        yield AxisLimit(size=symbol, step=step, offset=allowed[0] % step, source=source)


def _shape_env(program: ExportedProgram) -> ShapeEnv | None:
    values = [node.meta.get("val") for node in program.graph.nodes]
    modes = [value.fake_mode for value in values if hasattr(value, "fake_mode")]
    return modes[0].shape_env if modes else None


def _input_expressions(program: ExportedProgram) -> Iterator[str]:
    """Axes of the inputs that are no symbol of their own."""
    for node in program.graph.find_nodes(op="placeholder"):
        for size in getattr(node.meta.get("val"), "shape", ()):
            if not isinstance(size, int) and not size.node.expr.is_Symbol:
                yield str(size.node.expr)


def _stated_ranges(program: ExportedProgram) -> dict[str, tuple[int, int | None]]:
    """The range constraints of torch.export; None without a largest size."""
    found: dict[str, tuple[int, int | None]] = {}
    for symbol, stated in program.range_constraints.items():
        lower, upper = stated.lower, stated.upper
        if symbol.is_Symbol and lower.is_Integer:
            is_finite = upper.is_Integer and int(upper) < _UNLIMITED
            found[str(symbol)] = int(lower), int(upper) if is_finite else None
    return found
