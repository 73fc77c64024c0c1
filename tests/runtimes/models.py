"""Small models and the float64 formula that the runtime tests compare with; independent of the product's oracle."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from sdpa_onnx.graph.model import OnnxModel, load_model

Array = NDArray[np.generic]

ELEMENTS = {
    "float64": TensorProto.DOUBLE,
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
}
# IR versions that may hold the opset; the newest that every runtime here reads.
_IR_VERSION = 10


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Sizes of one bare attention."""

    q_num_heads: int = 2
    kv_num_heads: int = 2
    q_seq_len: int = 5
    kv_seq_len: int = 5
    head_dim: int = 8
    v_head_dim: int = 8
    is_causal: bool = False
    masked: bool = False
    dtype: str = "float32"
    opset: int = 23
    attributes: Mapping[str, int | float] = field(default_factory=dict)


PROBLEMS = {
    "plain": Problem(),
    "q3-kv7": Problem(q_seq_len=3, kv_seq_len=7),
    "gqa-8-2": Problem(q_num_heads=8, kv_num_heads=2),
    "dv4": Problem(v_head_dim=4),
    "causal-q7-kv4": Problem(q_seq_len=7, kv_seq_len=4, is_causal=True),
    "bool-mask": Problem(q_seq_len=4, kv_seq_len=6, masked=True),
    "f16": Problem(dtype="float16", kv_seq_len=9),
    "opset25": Problem(opset=25, is_causal=True, q_seq_len=6, kv_seq_len=6),
}

# Largest error allowed on outputs below 4 in size: 4 units in the last place of the type at 4. A wrong head, key or
# causal offset is off by a tenth or more.
LIMITS = {"float32": 4 * 2.0**-21, "float16": 4 * 2.0**-8, "bfloat16": 4 * 2.0**-5}


def proto_of(problem: Problem) -> onnx.ModelProto:
    """One Attention node with dynamic batch and lengths."""
    element = ELEMENTS[problem.dtype]
    shapes = {
        "Q": ["batch", problem.q_num_heads, "q_len", problem.head_dim],
        "K": ["batch", problem.kv_num_heads, "kv_len", problem.head_dim],
        "V": ["batch", problem.kv_num_heads, "kv_len", problem.v_head_dim],
    }
    inputs = [helper.make_tensor_value_info(name, element, shape) for name, shape in shapes.items()]
    if problem.masked:
        inputs.append(helper.make_tensor_value_info("attn_mask", TensorProto.BOOL, ["q_len", "kv_len"]))
    attributes = {**problem.attributes, **({"is_causal": 1} if problem.is_causal else {})}
    node = helper.make_node("Attention", [value.name for value in inputs], ["Y"], name="attend", **attributes)
    output_shape = ["batch", problem.q_num_heads, "q_len", problem.v_head_dim]
    output = helper.make_tensor_value_info("Y", element, output_shape)
    return model_of([node], inputs, [output], opset=problem.opset)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    *,
    opset: int,
    constants: tuple[onnx.TensorProto, ...] = (),
) -> onnx.ModelProto:
    """Put nodes into a model."""
    graph = helper.make_graph(nodes, "test", inputs, outputs, list(constants))
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=_IR_VERSION)


def model(problem: Problem) -> OnnxModel:
    """The problem as a loaded model."""
    return load_model(proto_of(problem))


def decomposed(dtype: str = "float32", *, head_dim: int = 8, opset: int = 18) -> OnnxModel:
    """Transpose, MatMul, Mul, Softmax, MatMul: no Attention node."""
    element = ELEMENTS[dtype]
    lengths = {"Q": "q_len", "K": "kv_len", "V": "kv_len"}
    inputs = [helper.make_tensor_value_info(n, element, ["batch", 2, size, head_dim]) for n, size in lengths.items()]
    nodes = [
        helper.make_node("Transpose", ["K"], ["KT"], name="turn", perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["Q", "KT"], ["scores"], name="scores"),
        helper.make_node("Mul", ["scores", "factor"], ["scaled"], name="scale"),
        helper.make_node("Softmax", ["scaled"], ["probs"], name="softmax", axis=-1),
        helper.make_node("MatMul", ["probs", "V"], ["Y"], name="mix"),
    ]
    factor = helper.make_tensor("factor", element, [], [head_dim**-0.5])
    output = helper.make_tensor_value_info("Y", element, ["batch", 2, "q_len", head_dim])
    return load_model(model_of(nodes, inputs, [output], opset=opset, constants=(factor,)))


def draw(problem: Problem, *, batch_size: int = 2, seed: int = 0) -> dict[str, Array]:
    """Inputs of unit variance; a mask hides every key of the last query."""
    import ml_dtypes

    rng = np.random.default_rng(seed)
    dtype = np.dtype(ml_dtypes.bfloat16 if problem.dtype == "bfloat16" else problem.dtype)
    shapes = {
        "Q": (batch_size, problem.q_num_heads, problem.q_seq_len, problem.head_dim),
        "K": (batch_size, problem.kv_num_heads, problem.kv_seq_len, problem.head_dim),
        "V": (batch_size, problem.kv_num_heads, problem.kv_seq_len, problem.v_head_dim),
    }
    feeds: dict[str, Array] = {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    if problem.masked:
        mask = rng.random((problem.q_seq_len, problem.kv_seq_len)) < 0.6
        mask[0, 0], mask[-1] = True, False
        feeds["attn_mask"] = mask
    return feeds


def formula(problem: Problem, feeds: Mapping[str, Array]) -> NDArray[np.float64]:
    """softmax(QK^T / sqrt(head_dim)) V in float64; causal and window from the upper left; a masked row is zero."""
    query, key, value = (np.asarray(feeds[name], np.float64) for name in "QKV")
    repeats = problem.q_num_heads // problem.kv_num_heads
    key, value = np.repeat(key, repeats, axis=1), np.repeat(value, repeats, axis=1)
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(problem.head_dim)
    visible = np.ones(scores.shape[-2:], dtype=bool)
    if problem.is_causal:
        visible = np.tri(*visible.shape, dtype=bool)
    if (window := problem.attributes.get("left_window_size", -1)) >= 0:
        visible = visible & ~np.tri(*visible.shape, k=-int(window) - 1, dtype=bool)
    if problem.masked:
        visible = visible & feeds["attn_mask"].astype(bool)
    weights = np.exp(scores) * visible
    sums = weights.sum(-1, keepdims=True)
    return (weights / np.where(sums == 0, 1, sums)) @ value
