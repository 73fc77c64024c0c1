"""Sizes that the traced code turned into constants, with the line that did it.

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
from sdpa_onnx.torch_export.source_line import SourceLine, innermost_user_line

__all__ = ["BakedSizes", "TracedBakedAxis", "record_baked_sizes"]

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


@dataclass(slots=True, kw_only=True)
class BakedSizes:
    """What was heard in one trace; grows while it runs.

    Args:
        lines: The line that first fixed a size, by torch's name of the source.
        numbers: (line, expression) of every number that was computed from a
            dynamic size and then used as a constant.
    """

    lines: dict[str, SourceLine | None] = field(default_factory=dict)
    numbers: list[tuple[SourceLine | None, str]] = field(default_factory=list)

    def clear(self) -> None:
        """Forget what was heard, before another trace."""
        self.lines.clear()
        self.numbers.clear()

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

    Twin to look at when torch changes: `ShapeEnv._set_replacement` (a size became
    a number) and `SymNode.guard_float` (a number made of sizes became a constant).
    """
    heard = BakedSizes()
    with contextlib.ExitStack() as stack:
        for owner, name, wrap in (
            (ShapeEnv, "_set_replacement", _hear_sizes),
            (SymNode, "guard_float", _hear_numbers),
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
        return original(env, symbol, target, *rest, **named)

    return set_replacement


def _hear_numbers(original: Callable[..., object], heard: BakedSizes) -> Callable[..., object]:
    def guard_float(number: SymNode, *rest: object, **named: object) -> object:
        if number.expr.free_symbols:
            heard.numbers.append((innermost_user_line(traceback.extract_stack()), str(number.expr)))
        return original(number, *rest, **named)

    return guard_float
