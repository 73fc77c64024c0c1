"""The times of all forms of one attention at one set of sizes. Measures nothing: `race` does, which imports more."""

from collections.abc import Mapping
from dataclasses import dataclass

from sdpa_onnx.core.attention.form_choice import RacedArm

__all__ = ["FormRace", "RaceTime"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceTime:
    """The time of one arm.

    Args:
        seconds: Median of a call; if it was only roughly measured, its best call.
        ratio, ratio_low, ratio_high: Ratio to the fastest arm, paired unless it was only roughly measured.
        is_rough: Whether only its first calls were measured.
        failure: The runtime's error at these sizes, or "".
    """

    seconds: float = 0.0
    ratio: float = 0.0
    ratio_low: float = 0.0
    ratio_high: float = 0.0
    is_rough: bool = False
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormRace:
    """All arms at one set of sizes, by name, in the order given."""

    sizes: Mapping[str, int]
    times: Mapping[str, RaceTime]

    @property
    def raced(self) -> tuple[RacedArm, ...]:
        """The arms that ran, as input of the choice."""
        ran = {name: time for name, time in self.times.items() if not time.failure}
        return tuple(RacedArm(arm=name, ratio=time.ratio, ratio_low=time.ratio_low) for name, time in ran.items())
