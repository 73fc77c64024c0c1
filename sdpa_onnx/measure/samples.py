"""Raw samples of an arm over several launches, and one number a visit made of them.

Measures nothing and judges nothing.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

__all__ = ["CLONE", "ArmSamples", "Clock"]

Float64 = NDArray[np.float64]
Clock = str  # "wall" or "cpu", as records have it

# Name of the second process of the baseline.
CLONE = "clone of the baseline"

# A call is disturbed if its wall time exceeds its CPU time by 3 % and 3 us. Source: METHOD B.4.
_DISTURBED_SHARE, _DISTURBED_SECONDS = 0.03, 3e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSamples:
    """What one arm took; block k of launch j of every arm was measured in the same stretch of time.

    Args:
        wall_seconds: (launches, blocks, calls), wall time of every call; on a GPU the time between its events.
        cpu_seconds: (launches, blocks, calls), CPU time of its process over the same call.
        steady: Whether warm-up reached a steady state in every launch.
        switches: Involuntary context switches over all visits; None where the system does not count them.
        faults: Page faults over all visits; None likewise.
        quiet: (launches, blocks), whether nobody else used the machine; None where that was not asked.
    """

    wall_seconds: Float64
    cpu_seconds: Float64
    steady: bool = True
    switches: int | None = None
    faults: int | None = None
    quiet: NDArray[np.bool_] | None = None

    @property
    def arrays(self) -> dict[str, Float64]:
        """The raw numbers by name, as a run keeps them."""
        return {"wall_seconds": self.wall_seconds, "cpu_seconds": self.cpu_seconds}

    @property
    def launches(self) -> int:
        """Processes measured."""
        return int(self.wall_seconds.shape[0])

    @property
    def disturbed(self) -> float:
        """Share of calls that lost time to other processes; means something for one thread on a CPU only."""
        lost = self.wall_seconds - self.cpu_seconds
        return float(np.mean(lost > _DISTURBED_SHARE * self.cpu_seconds + _DISTURBED_SECONDS))

    def first(self, launches: int) -> "ArmSamples":
        """The same with the first launches only; counts over all visits are left as they are."""
        quiet = None if self.quiet is None else self.quiet[:launches]
        return replace(
            self, wall_seconds=self.wall_seconds[:launches], cpu_seconds=self.cpu_seconds[:launches], quiet=quiet
        )

    def per_visit(self, clock: Clock) -> Float64:
        """(launches, blocks), one number a visit: the least wall time, or the median CPU time, seconds.

        Source: METHOD B.4.
        """
        if clock == "cpu":
            return np.asarray(np.median(self.cpu_seconds, axis=2))
        return np.asarray(self.wall_seconds.min(axis=2))
