"""The parts of the work of `verify` on one runtime, and what is reported while they run. Runs nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sdpa_onnx.workflows.verify.axis_links import SETS

__all__ = ["VerifyPart", "VerifyParts", "planned_parts"]


class VerifyPart(StrEnum):
    """A part of the work on one runtime, in its order; its value is what is shown."""

    AXES = "other sizes"
    OUTPUTS = "outputs"
    ALONE = "each attention alone"
    FAULTS = "planted faults"
    STATE = "runs after runs"


# What they take, in runs at one size. Measured on three models; see tests/workflows/verify/test_verify_parts.py.
_SIZE_RUNS = {VerifyPart.AXES: float(SETS), VerifyPart.OUTPUTS: 1.5, VerifyPart.ALONE: 1.5, VerifyPart.STATE: 2.0}


def planned_parts(*, is_drawn: bool, proves: bool, has_axes: bool) -> tuple[VerifyPart, ...]:
    """The parts that will run; a disagreement may end them earlier.

    Args:
        is_drawn: Whether the inputs are drawn, not given.
        proves: Whether faults are planted.
        has_axes: Whether the axes are proved.
    """
    runs = {
        VerifyPart.AXES: has_axes,
        VerifyPart.OUTPUTS: True,
        VerifyPart.ALONE: is_drawn or proves,
        VerifyPart.FAULTS: proves,
        VerifyPart.STATE: is_drawn,
    }
    return tuple(part for part, applies in runs.items() if applies)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyParts:
    """Reports where the work is.

    Args:
        of: The parts that will run.
        on_step: Called with a description.
        on_share: Called with the share of the work that is done.
    """

    of: Sequence[VerifyPart]
    on_step: Callable[[str], None]
    on_share: Callable[[float], None]

    def reach(self, part: VerifyPart) -> None:
        """Report that a part begins."""
        number = self.of.index(part)
        self.on_share(_size_runs(self.of[:number]) / _size_runs(self.of))
        self.on_step(f"step {number + 1} of {len(self.of)}, {part}")

    def reach_size(self, done: int, sizes: int) -> None:
        """Report that so many sizes are done of those that are planned now."""
        after = _size_runs(self.of) - _SIZE_RUNS[VerifyPart.AXES]
        self.on_share(done / (sizes + after))
        self.on_step(f"step 1 of {len(self.of)}, {VerifyPart.AXES}, {done} of {sizes}")


def _size_runs(parts: Sequence[VerifyPart]) -> float:
    return sum(_SIZE_RUNS.get(part, 0.0) for part in parts)
