"""The two ceilings of this machine: matrix product and softmax, measured in the same run.

On the CPU, with the threads of the comparison; needs torch and onnxruntime.
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from sdpa_onnx.core.roofline import Ceilings

__all__ = ["measure_ceilings"]

# Square products of these sizes; the best one counts. Larger ones gain nothing (METHOD C.2).
_GEMM_SIZES = (512, 1024)
# A softmax over rows that fit the second-level cache.
_SOFTMAX_SHAPE = (128, 1024)


def measure_ceilings(*, threads: int, seconds: float = 0.5) -> Ceilings:
    """Measure how fast this machine multiplies matrices and takes softmaxes.

    The tenth percentile of the CPU time on one thread, the smallest wall time
    on several (METHOD C.2).

    Args:
        threads: Threads inside one operator.
        seconds: Time spent on each of the three measurements.
    """
    import torch

    torch.set_num_threads(threads)
    best = 0.0
    with torch.inference_mode():
        for size in _GEMM_SIZES:
            left, right, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
            elapsed = _fastest(partial(torch.mm, left, right, out=out), threads, seconds)
            best = max(best, 2.0 * size**3 / elapsed)
    softmax = _ort_softmax(threads)
    elements = _SOFTMAX_SHAPE[0] * _SOFTMAX_SHAPE[1]
    return Ceilings(gemm_flops_per_second=best, exps_per_second=elements / _fastest(softmax, threads, seconds))


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


def _ort_softmax(threads: int) -> Callable[[], object]:
    import onnx
    import onnxruntime as ort
    from onnx import TensorProto, helper

    def value(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(_SOFTMAX_SHAPE))

    graph = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["y"], axis=-1)], "softmax", [value("x")], [value("y")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.random.default_rng(0).standard_normal(_SOFTMAX_SHAPE, dtype=np.float32))
    binding.bind_ortvalue_output(
        "y", ort.OrtValue.ortvalue_from_shape_and_type(list(_SOFTMAX_SHAPE), np.float32, "cpu")
    )
    return lambda: session.run_with_iobinding(binding)
