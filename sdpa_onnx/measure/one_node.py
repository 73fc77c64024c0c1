"""A session of one operator on bound buffers, for measuring what the machine itself can do. Times nothing."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.runtimes.worker.onnxruntime_import import import_onnxruntime

__all__ = ["one_node_call"]


def one_node_call(
    operator: str, inputs: Mapping[str, NDArray[np.float32]], output: tuple[int, ...], threads: int
) -> Callable[[], object]:
    """A one-node session on bound buffers.

    Args:
        operator: Of the default domain.
        inputs: Its inputs by name, float32; several calls may share them.
        output: Shape of its output.
        threads: Threads inside the operator.
    """
    from onnx import TensorProto, helper

    ort = import_onnxruntime()
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, list(array.shape)) for name, array in inputs.items()
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, list(output))
    graph = helper.make_graph([helper.make_node(operator, list(inputs), ["y"])], operator, values, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_cpu_input(name, array)
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_shape_and_type(list(output), np.float32, "cpu"))
    return lambda: session.run_with_iobinding(binding)
