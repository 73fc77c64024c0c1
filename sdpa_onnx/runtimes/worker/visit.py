"""The loop that is timed: call after call, both clocks read between them.

The end of one call is the start of the next, so that two readings and one jump are all that a call costs beyond
itself. System counters are read once per visit.
"""

from __future__ import annotations

import gc
import itertools
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

__all__ = ["Turns", "visit"]


class Turns:
    """Calls taken in turn, over many visits."""

    def __init__(self, calls: list[Callable[[], object]]) -> None:
        self._cycle = itertools.cycle(calls)
        self._only = calls[0] if len(calls) == 1 else None

    def take(self, count: int) -> Iterator[Callable[[], object]]:
        """The next calls."""
        if self._only is not None:
            return itertools.repeat(self._only, count)
        return itertools.islice(self._cycle, count)


def visit(turns: Turns, count: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Call so many times.

    Returns:
        Counters ("switches", "faults") and arrays ("wall_ns", "cpu_ns": (count,), int64).
    """
    wall: list[int] = []
    cpu: list[int] = []
    add_wall, add_cpu = wall.append, cpu.append
    wall_now, cpu_now = time.perf_counter_ns, time.process_time_ns
    calls = turns.take(count)
    collects = gc.isenabled()
    gc.disable()
    try:
        before = resource.getrusage(resource.RUSAGE_SELF)
        add_wall(wall_now())
        add_cpu(cpu_now())
        for call in calls:
            call()
            add_wall(wall_now())
            add_cpu(cpu_now())
        after = resource.getrusage(resource.RUSAGE_SELF)
    finally:
        if collects:
            gc.enable()
    counters = {
        "switches": after.ru_nivcsw - before.ru_nivcsw,
        "faults": after.ru_minflt + after.ru_majflt - before.ru_minflt - before.ru_majflt,
    }
    return counters, {"wall_ns": np.diff(np.array(wall, np.int64)), "cpu_ns": np.diff(np.array(cpu, np.int64))}
