"""A time limit on a command: the seconds that are left of it. Stops nothing by itself."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Deadline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """The moment at which a command must end, on the clock that it was made with.

    Args:
        budget_seconds: The whole time, counted from `start`; None = no limit.
        now: Clock, seconds.
        start: The time on that clock at which the command began.

    Example:
        >>> deadline = Deadline(budget_seconds=60.0, now=lambda: 50.0, start=0.0)
        >>> deadline.seconds_left, deadline.allows(20.0)
        (10.0, False)
    """

    budget_seconds: float | None = None
    now: Callable[[], float] = time.monotonic
    start: float = field(default=math.nan)

    def __post_init__(self) -> None:
        if math.isnan(self.start):
            object.__setattr__(self, "start", self.now())

    @property
    def seconds_left(self) -> float:
        """Seconds until the end, 0 after it; infinite without a limit."""
        if self.budget_seconds is None:
            return math.inf
        return max(self.budget_seconds - (self.now() - self.start), 0.0)

    @property
    def is_past(self) -> bool:
        """Whether no time is left."""
        return self.seconds_left <= 0.0

    def share(self, of: float) -> "Deadline":
        """The deadline of a part of what is left, on the same clock.

        Args:
            of: Share, from 0 to 1.
        """
        left = self.seconds_left
        return Deadline(budget_seconds=None if math.isinf(left) else of * left, now=self.now)

    def turn(self, parts: int) -> float:
        """Seconds for the next of so many parts that are left, all alike; infinite without a limit."""
        return self.seconds_left / parts

    def allows(self, seconds: float) -> bool:
        """Whether something that takes so many seconds would end in time."""
        return seconds <= self.seconds_left
