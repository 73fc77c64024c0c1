"""The ceilings of this machine: matrix product, softmax and memory, measured in the same run.

On the CPU by ONNX Runtime, with the threads of the comparison.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.roofline import Ceilings
from sdpa_onnx.measure.bandwidth import measure_bandwidth, working_set_bandwidth
from sdpa_onnx.measure.caches import last_level_bytes
from sdpa_onnx.measure.one_node import one_node_call

__all__ = ["CEILING_SECONDS", "measure_ceilings", "with_memory"]

# Time for each measurement: hundreds of the small products below, three reads of twice a large cache.
CEILING_SECONDS = 0.2

# Products (rows, inner, columns) of the kind that attention makes: QK^T and weights x value at d_k 64, and a square
# one for projections. The fastest counts: a ceiling must not be passed by what it is the ceiling of.
_GEMM_SHAPES = ((512, 64, 512), (512, 512, 64), (384, 384, 384))
# Rows that fit the second-level cache.
_SOFTMAX_SHAPE = (512, 512)


def measure_ceilings(*, threads: int, seconds: float = CEILING_SECONDS, memory: bool = True) -> Ceilings:
    """Measure how fast this machine multiplies matrices, takes softmaxes and reads memory beyond its caches.

    The tenth percentile of the CPU time on one thread, the smallest wall time
    on several (METHOD C.2).

    Args:
        threads: Threads inside one operator.
        seconds: Time spent on each of the eight measurements.
        memory: Whether memory is measured, twice the size of the last-level cache. A comparison measures it only for a
            case that may be bound by it.
    """
    best = 0.0
    for rows, inner, columns in _GEMM_SHAPES:
        inputs = {"x": _drawn(rows, inner), "z": _drawn(inner, columns)}
        call = one_node_call("MatMul", inputs, (rows, columns), threads)
        best = max(best, 2.0 * rows * inner * columns / _fastest(call, threads, seconds))
    softmax = one_node_call("Softmax", {"x": _drawn(*_SOFTMAX_SHAPE)}, _SOFTMAX_SHAPE, threads)
    elements = _SOFTMAX_SHAPE[0] * _SOFTMAX_SHAPE[1]
    compute = Ceilings(gemm_flops_per_second=best, exps_per_second=elements / _fastest(softmax, threads, seconds))
    if not memory:
        return compute
    bandwidth = measure_bandwidth(size_bytes=2 * last_level_bytes(), threads=threads, seconds=seconds)
    return replace(compute, bytes_per_second=bandwidth)


def with_memory(ceilings: Ceilings, threads: int) -> Ceilings:
    """The ceilings with the memory bandwidth beyond the caches, measured now if the run did not."""
    if ceilings.bytes_per_second > 0:
        return ceilings
    return replace(ceilings, bytes_per_second=working_set_bandwidth(2 * last_level_bytes(), threads))


def _drawn(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def _fastest(call: Callable[[], object], threads: int, seconds: float) -> float:
    """Seconds per call, undisturbed."""
    for _ in range(3):
        call()
    wall: list[int] = []
    cpu: list[int] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(wall) < 5:
        cpu_start, wall_start = time.process_time_ns(), time.perf_counter_ns()
        call()
        wall.append(time.perf_counter_ns() - wall_start)
        cpu.append(time.process_time_ns() - cpu_start)
    return float(np.percentile(cpu, 10) if threads == 1 else min(wall)) * 1e-9
