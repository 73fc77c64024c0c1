"""A visit on a GPU: the time between events on the stream, never that of the host around launches.

Source: METHOD B.5.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from .cuda_library import CudaRuntime, SmClock
from .visit import Turns

__all__ = ["CudaVisits"]

# Events resolve half a microsecond, so a sample is ten replays, or a whole visit of fewer: such calls are long. The
# number of calls decides, not their time: all processes of an arm must have as many samples. Source: METHOD B.5.
_MOST_REPLAYS = 10
# A buffer larger than the cache by this factor leaves nothing of what was there.
_FLUSH_FACTOR = 2


class CudaVisits:
    """Samples on one stream; each is the mean over some replays.

    Args:
        cuda: The library.
        stream: On which the calls run.
        clock: Of the GPU, logged once per visit.
        flushes: Whether each replay shall find a cold cache.
    """

    def __init__(self, cuda: CudaRuntime, stream: int, clock: SmClock, *, flushes: bool) -> None:
        self._cuda = cuda
        self._stream = stream
        self._clock = clock
        self._start, self._end = cuda.event(), cuda.event()
        self._flush_bytes = _FLUSH_FACTOR * cuda.cache_bytes() if flushes else 0
        self._flush = cuda.memory(self._flush_bytes) if self._flush_bytes else None

    def visit(self, turns: Turns, calls: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make so many calls, less what does not fill a sample.

        Returns:
            Counters and arrays as `visit.visit` has them, one entry per sample: the mean over ten calls, or all of a
            smaller visit. "wall_ns" is the time on the GPU of one replay, "cpu_ns" the host's wall time for one.
        """
        replays = min(calls, _MOST_REPLAYS)
        pairs = [self._sample(turns, replays) for _ in range(calls // replays)]
        device, host = zip(*pairs)
        arrays = {"wall_ns": _nanoseconds(device), "cpu_ns": _nanoseconds(host)}
        return {"switches": 0, "faults": 0, "clock_mhz": self._clock.mhz()}, arrays

    def _sample(self, turns: Turns, replays: int) -> tuple[float, float]:
        self._cuda.wait(self._stream)
        start = time.perf_counter()
        device = self._cold(turns, replays) if self._flush is not None else self._warm(turns, replays)
        return device / replays, (time.perf_counter() - start) / replays

    def _warm(self, turns: Turns, replays: int) -> float:
        self._cuda.record(self._start, self._stream)
        for call in turns.take(replays):
            call()
        self._cuda.record(self._end, self._stream)
        return self._cuda.seconds(self._start, self._end)

    def _cold(self, turns: Turns, replays: int) -> float:
        """Events around every replay, so that emptying the cache between them is not timed."""
        total = 0.0
        for call in turns.take(replays):
            self._cuda.overwrite(self._flush, self._flush_bytes, self._stream)
            self._cuda.record(self._start, self._stream)
            call()
            self._cuda.record(self._end, self._stream)
            total += self._cuda.seconds(self._start, self._end)
        return total


def _nanoseconds(seconds: Any) -> Any:
    return np.round(np.array(seconds) * 1e9).astype(np.int64)
