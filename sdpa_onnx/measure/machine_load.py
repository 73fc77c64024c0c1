"""How busy this machine is with other people's work: idle cores, and the CPU time that others took.

Reads /proc/stat, whose clock ticks 100 times a second: windows must be long compared with 10 ms. Time that the
hypervisor gave to others ("steal") counts as theirs. Without /proc/stat nothing is known: None.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["IDLE_TOLERANCE", "OthersLoad", "busy_seconds", "idle_cores", "usable_cores"]

_STAT = Path("/proc/stat")
# Columns of a cpu line after its name; idle and iowait (3, 4) are not work, guest time (8, 9) is within user and nice.
# Source: proc_stat(5).
_WORK_COLUMNS = (0, 1, 2, 5, 6, 7)
# Cores that may be missing from the idle ones: on 2 cores, 0.3 s are 60 ticks, so a reading is good to a few percent,
# and a system without a user takes some percent of a core.
IDLE_TOLERANCE = 0.2


def usable_cores() -> set[int]:
    """Numbers of the cores that this process may use."""
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def busy_seconds(stat: Path = _STAT) -> float | None:
    """CPU time that the usable cores have spent on anything since the start of the system, steal included.

    Args:
        stat: The file to read.
    """
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return None
    names = {f"cpu{core}" for core in usable_cores()}
    rows = [[int(ticks) for ticks in line.split()[1:]] for line in lines if line.partition(" ")[0] in names]
    if not rows:
        return None
    ticks = sum(row[column] for row in rows for column in _WORK_COLUMNS if column < len(row))
    return ticks / os.sysconf("SC_CLK_TCK")


def idle_cores(
    seconds: float = 0.3,
    *,
    busy: Callable[[], float | None] = busy_seconds,
    sleep: Callable[[float], object] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> float | None:
    """Usable cores that nobody uses at this moment, as a number with a fraction.

    Args:
        seconds: How long to look.
        busy: As `busy_seconds`.
        sleep, now: The clock.
    """
    load = OthersLoad(ours=time.process_time, busy=busy, now=now)
    sleep(seconds)
    share = load.share()
    return None if share is None else max(len(usable_cores()) - share, 0.0)


@dataclass(slots=True)
class OthersLoad:
    """How many cores others have used since the last question.

    Args:
        ours: CPU time of our own processes so far, seconds.
        busy: As `busy_seconds`.
        now: Wall clock, seconds.
    """

    ours: Callable[[], float]
    busy: Callable[[], float | None] = busy_seconds
    now: Callable[[], float] = time.monotonic
    _last: tuple[float, float, float | None] = field(init=False)

    def __post_init__(self) -> None:
        self._last = self._read()

    @property
    def seconds(self) -> float:
        """Wall time since the last question."""
        return self.now() - self._last[0]

    def share(self) -> float | None:
        """Cores used by others since the last call, 0 and up; None where the system does not report it."""
        before, self._last = self._last, self._read()
        (start, ours_before, busy_before), (end, ours, busy) = before, self._last
        if busy is None or busy_before is None or end <= start:
            return None
        return max(busy - busy_before - (ours - ours_before), 0.0) / (end - start)

    def _read(self) -> tuple[float, float, float | None]:
        return self.now(), self.ours(), self.busy()
