"""Sizes that the traced code turned into constants, and conditions on sizes, with the line of each.

torch.export says which axis, but in non-strict mode not where; this listens
inside it while it traces. It decides nothing.
"""

import contextlib
import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from sdpa_onnx.torch_export.replace_function import replaced
from sdpa_onnx.torch_export.source_line import SourceLine, innermost_user_line, is_innermost_user

__all__ = ["BakedSizes", "GuardLine", "TracedBakedAxis", "record_baked_sizes"]

_AXIS = re.compile(r"L\['(?P<parameter>\w+)'\](?P<path>(?:\[[^\]]+\])*)\.size\(\)\[(?P<axis>\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedBakedAxis:
    """An axis that was to stay dynamic and got a fixed size.

    Args:
        parameter: Name of the input, as in `BoundInputs.leaves`.
        axis: Its axis.
        size: The size that it was fixed to.
        where: The line that fixed it, if it is known.
    """

    parameter: str
    axis: int
    size: int
    where: SourceLine | None

    def __str__(self) -> str:
        where = self.where or "the module's code"
        return f"axis {self.axis} of '{self.parameter}' is fixed to {self.size} by {where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardLine:
    """The line that asked for a condition on sizes.

    Args:
        where: The line of the user's code, if it is known.
        is_branch: Whether that code itself compares a size; else a function of torch that it calls does.
    """

    where: SourceLine | None
    is_branch: bool


@dataclass(slots=True, kw_only=True)
class BakedSizes:
    """What was heard in one trace; grows while it runs.

    Args:
        lines: The line that first fixed a size, by torch's name of the source.
        numbers: (line, expression) of every number that was computed from a
            dynamic size and then used as a constant.
        guards: The line of each condition on sizes, by its text.
        related: The line that first made a size an expression of others, by the text of that expression.
    """

    lines: dict[str, SourceLine | None] = field(default_factory=dict)
    numbers: list[tuple[SourceLine | None, str]] = field(default_factory=list)
    guards: dict[str, GuardLine] = field(default_factory=dict)
    related: dict[str, SourceLine | None] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget what was heard, before another trace."""
        self.lines.clear()
        self.numbers.clear()
        self.guards.clear()
        self.related.clear()

    def axis(self, source: str, size: int) -> TracedBakedAxis | None:
        """Read torch's name of a size, "L['x'].size()[1]"; None if it is no such name."""
        found = _AXIS.search(source)
        if found is None:
            return None
        steps = re.findall(r"\['?([^\]']+)'?\]", found["path"])
        return TracedBakedAxis(
            parameter="_".join([found["parameter"], *steps]),
            axis=int(found["axis"]),
            size=size,
            where=self.lines.get(found.group()),
        )


@contextlib.contextmanager
def record_baked_sizes() -> Iterator[BakedSizes]:
    """Hear every specialisation that torch.export makes while the context is open.

    Twin to look at when torch changes: `ShapeEnv._set_replacement` (a size became a number or an expression),
    `SymNode.guard_float` and `guard_int` (a number made of sizes became a constant), and `ShapeEnv._log_guard` (a
    condition).
    """
    heard = BakedSizes()
    with contextlib.ExitStack() as stack:
        for owner, name, wrap in (
            (ShapeEnv, "_set_replacement", _hear_sizes),
            (SymNode, "guard_float", _hear_numbers),
            (SymNode, "guard_int", _hear_integers),
            (ShapeEnv, "_log_guard", _hear_guards),
        ):
            original = getattr(owner, name, None)
            if original is not None:
                stack.enter_context(replaced(owner, name, wrap(original, heard)))
        yield heard


def _hear_sizes(original: Callable[..., object], heard: BakedSizes) -> Callable[..., object]:
    def set_replacement(env: ShapeEnv, symbol: object, target: object, *rest: object, **named: object) -> object:
        if getattr(target, "is_number", False):
            where = innermost_user_line(traceback.extract_stack())
            for source in getattr(env, "var_to_sources", {}).get(symbol, []):
                heard.lines.setdefault(str(source.name), where)
        elif not getattr(target, "is_Symbol", True) and str(target) not in heard.related:
            heard.related[str(target)] = innermost_user_line(traceback.extract_stack())
        return original(env, symbol, target, *rest, **named)

    return set_replacement


def _hear_numbers(original: Callable[..., object], heard: BakedSizes) -> Callable[..., object]:
    def guard_float(number: SymNode, *rest: object, **named: object) -> object:
        if number.expr.free_symbols:
            heard.numbers.append((innermost_user_line(traceback.extract_stack()), str(number.expr)))
        return original(number, *rest, **named)

    return guard_float


def _hear_integers(original: Callable[..., object], heard: BakedSizes) -> Callable[..., object]:
    def guard_int(number: SymNode, *rest: object, **named: object) -> object:
        # `int(x.shape[0] / 4)` is a constant from here on; its size becomes one only where the constant meets it.
        symbols = getattr(number.expr, "free_symbols", ())
        if symbols:
            where = innermost_user_line(traceback.extract_stack())
            sources = getattr(number.shape_env, "var_to_sources", {})
            for source in (source for symbol in symbols for source in sources.get(symbol, [])):
                heard.lines.setdefault(str(source.name), where)
        return original(number, *rest, **named)

    return guard_int


def _hear_guards(original: Callable[..., object], heard: BakedSizes) -> Callable[..., object]:
    def log_guard(env: ShapeEnv, prefix: str, guard: object, *rest: object, **named: object) -> object:
        text = str(guard)
        if text not in heard.guards and getattr(guard, "free_symbols", None):
            frames = traceback.extract_stack()
            heard.guards[text] = GuardLine(where=innermost_user_line(frames), is_branch=is_innermost_user(frames))
        return original(env, prefix, guard, *rest, **named)

    return log_guard
