"""Which lines of a kind get a chart when there are many targets; draws nothing."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from sdpa_onnx.report.text.number_text import count

__all__ = ["MOST_CHARTS", "drawn_lines", "not_drawn_words"]

# Greatest number of charts of one kind: few people look at more, and each takes a third of a second to draw.
MOST_CHARTS = 4

Line = TypeVar("Line")


def drawn_lines(lines: Sequence[Line], values: Callable[[Line], int]) -> list[Line]:
    """The `MOST_CHARTS` lines with the most values, in their own order."""
    kept = {id(line) for line in sorted(lines, key=values, reverse=True)[:MOST_CHARTS]}
    return [line for line in lines if id(line) in kept]


def not_drawn_words(targets: int) -> list[str]:
    """How many targets have no chart of this kind; empty if all have one."""
    return [f"{count(targets, 'more target')} not drawn"] if targets else []
