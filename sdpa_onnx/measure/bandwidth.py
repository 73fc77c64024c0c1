"""How fast this machine reads memory, for working sets of the requested size: the ceiling of decoding.

One token reads the whole cache once and computes little. Measured by ONNX Runtime and numpy, on the CPU.
"""

import functools
import time
from collections.abc import Callable, Iterator

import numpy as np

from sdpa_onnx.measure.one_node import one_node_call

__all__ = ["measure_bandwidth", "working_set_bandwidth"]

_FLOAT32_BYTES = 4
# Width of a row of the matrix that a vector is multiplied with, as of one head.
_ROW = 64
# Calls that are timed even if they take longer than the time for them: the fastest is seldom the first.
_LEAST_CALLS = 3
# For one case of many: the fastest call of this long is within some percent of that of three times as long.
_SHORT_SECONDS = 0.1


def measure_bandwidth(*, size_bytes: int, threads: int, seconds: float = 0.3) -> float:
    """Measure how fast float32 numbers are read.

    The fastest of several readers counts: a ceiling must not be passed by what
    it is the ceiling of. A small working set stays in a cache of the processor.

    Args:
        size_bytes: Of the working set.
        threads: Threads inside one operator.
        seconds: Time spent on each reader.

    Returns:
        Bytes per second.
    """
    return max(size_bytes / _fastest(call, seconds) for call in _readers(size_bytes, threads))


def working_set_bandwidth(size_bytes: int, threads: int) -> float:
    """`measure_bandwidth` for working sets of about this size, measured once in a process.

    Args:
        size_bytes: Of the working set; rounded to a power of two.
        threads: Threads inside one operator.
    """
    return _measured_once(max(size_bytes, 1).bit_length(), threads)


@functools.cache
def _measured_once(bits: int, threads: int) -> float:
    return measure_bandwidth(size_bytes=max(2**bits, _FLOAT32_BYTES * _ROW), threads=threads, seconds=_SHORT_SECONDS)


def _readers(size_bytes: int, threads: int) -> Iterator[Callable[[], object]]:
    rows = max(1, size_bytes // (_FLOAT32_BYTES * _ROW))
    # One array for all readers: twice a large cache takes seconds to fill. Ones, because zeros would all be one page.
    memory = np.ones(rows * _ROW, dtype=np.float32)
    matrix, column, row = memory.reshape(rows, _ROW), np.ones((_ROW, 1), np.float32), np.ones((1, rows), np.float32)
    yield one_node_call("MatMul", {"x": matrix, "z": column}, (rows, 1), threads)
    yield one_node_call("MatMul", {"x": row, "z": matrix}, (1, _ROW), threads)
    yield one_node_call("ReduceMax", {"x": memory}, (1,), threads)
    if threads == 1:
        halves = np.split(memory, 2)
        yield lambda: np.dot(*halves)  # its library's own threads are pinned by the caller, as everywhere


def _fastest(call: Callable[[], object], seconds: float) -> float:
    """Seconds of the fastest call; those that warm up are among them."""
    best, count = float("inf"), 0
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end or count < _LEAST_CALLS:
        call()
        best, count = min(best, time.perf_counter() - start), count + 1
    return best
