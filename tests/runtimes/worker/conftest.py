from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sdpa_onnx.runtimes.array_files import write_arrays
from tests.runtimes.worker.environments import NUMPY, environment


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two nodes, inputs for it at two sizes, and inputs that do not fit."""
    folder = tmp_path_factory.mktemp("worker")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "x"], ["y"]), helper.make_node("Softmax", ["y"], ["z"], name="scores")],
        "two nodes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "n"])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", "n"])],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), folder / "model.onnx"
    )
    rng = np.random.default_rng(0)
    for name, shape in (("inputs", (24, 24)), ("longer", (40, 40)), ("unfit", (3, 4))):
        write_arrays(folder / name, {"x": rng.standard_normal(shape).astype(np.float32)})
    return folder


@pytest.fixture(scope="session")
def faulty_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment whose onnxruntime does what it is told to, such as to crash."""
    return environment(tmp_path_factory.mktemp("faulty"), NUMPY, faulty=True)
