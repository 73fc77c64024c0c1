"""The model of a random graph: one Attention node with dynamic sizes and every requested output."""

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import ONNX_INPUT_NAMES, numpy_dtype
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.random_cases import RandomGraph
from sdpa_onnx.core.attention.spec import AttentionCase, Dtype
from sdpa_onnx.graph.attention_node import attributes_of
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.one_node import OneNode, build_one_node_model

__all__ = ["SOFTMAX_ELEMENTS", "fuzz_model"]

# Values of softmax_precision. Source: TensorProto.DataType.
SOFTMAX_ELEMENTS = {Dtype.FLOAT32: 1, Dtype.FLOAT16: 10, Dtype.FLOAT64: 11, Dtype.BFLOAT16: 16}

# Any size but 1, which the model would keep as a fixed size.
_OPEN = 2


def fuzz_model(graph: RandomGraph) -> OnnxModel:
    """Build the model; mask axes that are broadcast are 1, all other lengths are dynamic."""
    spec = graph.spec
    outputs = ["Y", "present_key", "present_value"] if spec.has_past else ["Y"]
    if graph.qk_mode is not None:
        outputs = [*outputs, *[""] * (3 - len(outputs)), OutputRole.QK.value]
    feeds = _typical_feeds(graph)
    node = OneNode(
        opset=graph.opset,
        attributes=_attributes(graph),
        inputs=tuple(name if name in feeds else "" for name in ONNX_INPUT_NAMES.values()),
        outputs=tuple(outputs),
    )
    return build_one_node_model(node, feeds, dynamic=True)


def _typical_feeds(graph: RandomGraph) -> dict[str, NDArray[np.generic]]:
    """Arrays with the types and ranks of the model's inputs."""
    spec = graph.spec
    past = _OPEN if spec.has_past else 0
    case = AttentionCase(spec=spec, batch_size=_OPEN, q_seq_len=_OPEN, past_seq_len=past, dtype=graph.dtype)
    dtypes = {"nonpad_kv_seqlen": np.dtype(np.int64)}
    feeds: dict[str, NDArray[np.generic]] = {}
    for name, shape in case.input_shapes().items():
        feeds[ONNX_INPUT_NAMES[name]] = np.zeros(shape, dtypes.get(name, numpy_dtype(graph.dtype)))
    if graph.mask_form:
        sizes = {"1": 1, "H": spec.q_num_heads}
        shape = tuple(sizes.get(axis, _OPEN) for axis in graph.mask_form)
        feeds["attn_mask"] = np.zeros(shape, np.bool_ if graph.mask_is_bool else numpy_dtype(graph.dtype))
    return feeds


def _attributes(graph: RandomGraph) -> dict[str, int | float]:
    attributes = attributes_of(graph.spec)
    if graph.qk_mode is not None:
        attributes["qk_matmul_output_mode"] = int(graph.qk_mode)
    if graph.softmax_precision is not None:
        attributes["softmax_precision"] = SOFTMAX_ELEMENTS[graph.softmax_precision]
    return attributes
