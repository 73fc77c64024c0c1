"""Measure the overhead of the timing loop per call: its calls are interleaved with the same calls in a bare loop.

Prints microseconds per call. At most 2 are allowed; `--most` turns it into a check with exit code 1.
"""

import argparse
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from sdpa_onnx.measure.arm_settings import arm_settings
from sdpa_onnx.runtimes.worker.engines.onnxruntime import OrtCpu
from sdpa_onnx.runtimes.worker.visit import Turns, visit

# run_with_iobinding and its arguments.
Call: TypeAlias = "partial[object]"


def main() -> int:
    """Run and print the comparison, and check it against `--most`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200, help="calls of one visit")
    parser.add_argument("--rounds", type=int, default=400, help="visits of each loop")
    parser.add_argument("--copies", type=int, default=1, help="sets of inputs in turn")
    parser.add_argument("--most", type=float, help="most microseconds per call")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        calls = _bound_calls(Path(folder), args.copies)
    turns = Turns(list(calls))
    bare: list[float] = []
    timed: list[float] = []
    for index in range(args.rounds):
        order = [(bare, lambda: _bare(calls[0], args.calls)), (timed, lambda: visit(turns, args.calls))]
        for seconds, loop in order if index % 2 else reversed(order):
            start = time.process_time()
            loop()
            seconds.append((time.process_time() - start) / args.calls * 1e6)
    added = statistics.median(timed) - statistics.median(bare)
    print(
        f"bare {statistics.median(bare):.2f}, in a visit {statistics.median(timed):.2f}, added {added:.2f} "
        f"microseconds of CPU time per call (medians of {args.rounds} visits of {args.calls} calls)"
    )
    return int(args.most is not None and added > args.most)


def _bare(call: Call, count: int) -> None:
    run, (binding,) = call.func, call.args
    for _ in range(count):
        run(binding)


def _bound_calls(folder: Path, copies: int) -> list[Call]:
    import onnx
    from onnx import TensorProto, helper

    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "one node", value[:1], value[1:])
    path = folder / "one_node.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    settings = arm_settings("ort-cpu", threads=1)
    arm = OrtCpu().open({"model": str(path), "folder": None, "settings": settings})
    made = [arm.prepare({"x": (np.ones(8, np.float32), 1)}).first_run() for _ in range(copies)]
    return [call for call in made if isinstance(call, partial)]


if __name__ == "__main__":
    sys.exit(main())
