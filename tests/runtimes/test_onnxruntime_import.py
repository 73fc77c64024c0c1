"""ONNX Runtime comes in without its telemetry, unless the user asked for that."""

import os
import subprocess
import sys

import pytest

from tests.packaging.project import ROOT

_PROGRAM = """
import os, sys
import numpy as np
from onnx import helper
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.measure.one_node import one_node_call
from sdpa_onnx.runtimes.base import LoadOptions, get_runtime

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "onnxruntime":
            print(os.environ.get("ORT_DISABLE_TELEMETRY"))

sys.meta_path.insert(0, Watch())
if {first!r} == "session":
    x, y = (helper.make_tensor_value_info(name, 1, [3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with get_runtime("ort-cpu").load(load_model(made), LoadOptions(threads=1)) as session:
        session.run({{"x": np.zeros(3, np.float32)}})
else:
    one_node_call("Relu", {{"x": np.ones(3, np.float32)}}, (3,), 1)()
if sys.platform == "linux":
    print(*(open(f"/proc/self/task/{{task}}/comm").read().strip() for task in os.listdir("/proc/self/task")))
"""


@pytest.mark.parametrize(("first", "told"), [("session", None), ("ceiling", None), ("session", "0")])
def test_no_thread_of_its_own(first: str, told: str | None) -> None:
    """The variable stands before the import, whoever imports first, so no thread sends; the user's own value stays."""
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    if told is not None:
        environment["ORT_DISABLE_TELEMETRY"] = told
    command = [sys.executable, "-c", _PROGRAM.format(first=first)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    variable, *threads = done.stdout.splitlines()
    assert variable == (told or "1")
    if told is None and threads:
        assert len(threads[0].split()) == 1
