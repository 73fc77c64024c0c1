"""Which bodies with attentions the runs of a complete model enter: a branch may be taken in none of them.

Runs nothing: reads conditions and numbers of turns among the values of the runs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.graph.bodies import Body
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.opened_bodies import OpenedBody, opened_bodies
from sdpa_onnx.workflows.check.feeds import Feeds

__all__ = ["EnteredBodies", "deciding_names"]

# A value that decides, and whether the body is entered with its content.
_Decision = tuple[ir.Value, Callable[[NDArray[np.generic]], bool]]


def deciding_names(model: OnnxModel) -> list[str]:
    """Names of the values of the main graph that decide whether a body with attentions is entered."""
    made = {value for node in model.ir.graph for value in node.outputs}
    decisions = (one for body in opened_bodies(model) for step in body.body.path for one in _decisions(step))
    return list(dict.fromkeys(value.name or "" for value, _ in decisions if value in made))


@dataclass(slots=True, kw_only=True)
class EnteredBodies:
    """The bodies of a model, and what its runs so far show of them.

    Args:
        model: Its bodies with attentions are watched.
    """

    model: OnnxModel
    _bodies: tuple[OpenedBody, ...] = field(init=False)
    _seen: dict[str, set[bool | None]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._bodies = tuple(opened_bodies(self.model))

    def note(self, values: Feeds) -> None:
        """Take one run into account.

        Args:
            values: Of the main graph by name, those of `deciding_names` among them.
        """
        for one in self._bodies:
            self._seen.setdefault(one.place, set()).add(_is_entered(one.body, values))

    def remarks(self) -> Iterator[str]:
        """A sentence for each body that no run is known to enter."""
        for place, seen in self._seen.items():
            if seen == {False}:
                yield f"No run of the complete model enters {place}: its attention is proved by itself only."
            elif True not in seen:
                yield f"It is not known whether a run of the complete model enters {place}: it is proved by itself."


def _is_entered(body: Body, values: Feeds) -> bool | None:
    """Whether a run enters a body; None if it is not known."""
    known: bool | None = True
    for step in body.path:
        for value, holds in _decisions(step):
            array = values.get(value.name or "", None if value.const_value is None else value.const_value.numpy())
            if array is None:
                known = None
            elif not holds(array):
                return False
    return known


def _decisions(body: Body) -> Iterator[_Decision]:
    inputs = body.node.inputs
    match body.node.op_type:
        case "If":
            wanted = body.attribute == "then_branch"
            checks: tuple[Callable[[NDArray[np.generic]], bool], ...] = (lambda array: bool(array.all()) is wanted,)
        case "Loop":
            checks = (lambda array: int(array.item()) > 0, lambda array: bool(array.all()))
        case _:
            checks = ()
    yield from ((value, check) for value, check in zip(inputs, checks, strict=False) if value is not None)
