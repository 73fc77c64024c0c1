"""Small graphs and specs shared by the tests of several packages."""

import onnx
from onnx import TensorProto, helper, numpy_helper

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, Layout, MaskKind, ScaleRule
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import OnnxModel, load_model

FLOAT = TensorProto.FLOAT
# An IR version that allows opset 23 and that every runtime here reads.
_IR_VERSION = 11

# One spec per feature of the operator, and one with nearly all features.
SPECS = {
    "plain": AttentionSpec(q_num_heads=4, kv_num_heads=4, head_dim=8),
    "gqa": AttentionSpec(q_num_heads=8, kv_num_heads=2, head_dim=8),
    "mqa": AttentionSpec(q_num_heads=3, kv_num_heads=1, head_dim=5),
    "dv": AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, v_head_dim=3),
    "causal": AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, is_causal=True),
    "window": AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, left_window=3, right_window=0),
    "bool-mask": AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, mask=MaskKind.BOOL),
    "float-mask": AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, mask=MaskKind.FLOAT),
    "lengths": AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, mask=MaskKind.LENGTHS),
    "softcap": AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, softcap=2.0),
    "scale": AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, scale=0.25),
    "past": AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, has_past=True),
    "bsh": AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=6, v_head_dim=5, layout=Layout.BSH),
    "much": AttentionSpec(
        q_num_heads=6,
        kv_num_heads=3,
        head_dim=4,
        v_head_dim=7,
        is_causal=True,
        left_window=5,
        mask=MaskKind.BOOL,
        softcap=1.5,
        scale=0.5,
        has_past=True,
    ),
}

RULED = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, scale=ScaleRule.INVERSE)


def bare(spec: AttentionSpec = SPECS["plain"], *, opset: int = 23, dtype: Dtype = Dtype.FLOAT32) -> OnnxModel:
    """One Attention node."""
    return load_model(build_attention_model(spec, opset=opset, dtype=dtype))


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str | None]],
    outputs: dict[str, list[int | str | None]],
    constants: dict[str, object] | None = None,
    *,
    opset: int = 23,
) -> onnx.ModelProto:
    """A float32 graph of the passed nodes; constants are numpy arrays by name."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=_IR_VERSION)


def product(*, width: int = 4) -> onnx.ModelProto:
    """A MatMul with a constant weight, and no attention."""
    import numpy as np

    weight = np.arange(width * width, dtype=np.float32).reshape(width, width)
    return model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        {"x": ["batch_size", width]},
        {"y": ["batch_size", width]},
        {"w": weight},
    )


def inner_attention() -> onnx.ModelProto:
    """A projection, an Attention on its output, and a second output; intermediate values are not outputs."""
    import numpy as np

    weight = np.eye(8, dtype=np.float32)
    size = ["batch_size", 2, "q_seq_len", 8]
    model = model_of(
        [
            helper.make_node("MatMul", ["x", "w"], ["q"], name="project"),
            helper.make_node("Attention", ["q", "x", "x"], ["inner"], name="attend"),
            helper.make_node("Add", ["inner", "x"], ["y"], name="residual"),
        ],
        {"x": size},
        {"y": size},
        {"w": weight},
    )
    return onnx.shape_inference.infer_shapes(model)


def fixed_batch() -> onnx.ModelProto:
    """A graph whose Reshape fixes the batch to 2 although its axis is declared dynamic."""
    import numpy as np

    size = ["batch_size", "q_seq_len", 16]
    model = model_of(
        [
            helper.make_node("Reshape", ["x", "shape"], ["split"], name="node_view", allowzero=0),
            helper.make_node("Transpose", ["split"], ["heads"], name="turn", perm=[0, 2, 1, 3]),
            helper.make_node("Attention", ["heads", "heads", "heads"], ["y"], name="attend"),
        ],
        {"x": size},
        {"y": ["batch_size", 2, "q_seq_len", 8]},
        {"shape": np.array([2, -1, 2, 8], dtype=np.int64)},
    )
    return onnx.shape_inference.infer_shapes(model)


def fixed_length(*, size: int = 7) -> onnx.ModelProto:
    """A graph whose Reshape fixes the length, as torch's older exporter writes it; -1 = it does not.

    It contains no attention that can be verified.
    """
    import numpy as np

    model = model_of(
        [
            helper.make_node("Reshape", ["x", "shape"], ["split"], name="node_view"),
            helper.make_node("Transpose", ["split"], ["heads"], name="turn", perm=[0, 2, 1, 3]),
            helper.make_node("Transpose", ["split"], ["across"], name="turn_key", perm=[0, 2, 3, 1]),
            helper.make_node("MatMul", ["heads", "across"], ["scores"], name="score"),
            helper.make_node("Softmax", ["scores"], ["weights"], name="softmax", axis=-1),
            helper.make_node("MatMul", ["weights", "heads"], ["y"], name="mix"),
        ],
        {"x": ["batch_size", "q_seq_len", 16]},
        {"y": [None, 2, None, 8]},
        {"shape": np.array([0, size, 2, 8], dtype=np.int64)},
    )
    return onnx.shape_inference.infer_shapes(model)


def fixed_mask(*, size: int = 7) -> onnx.ModelProto:
    """A graph that adds a causal mask of a fixed length to its scores; 0 = none.

    The lengths of queries and keys have different names.
    """
    import numpy as np

    later = np.triu(np.ones((size, size), dtype=np.float32), k=1) * np.float32(-1e9)
    hide = helper.make_node("Add", ["scores", "later"], ["hidden"], name="hide")
    if not size:
        hide = helper.make_node("Identity", ["scores"], ["hidden"], name="hide")
    return model_of(
        [
            helper.make_node("Transpose", ["K"], ["across"], name="turn_key", perm=[0, 1, 3, 2]),
            helper.make_node("MatMul", ["Q", "across"], ["scores"], name="score"),
            hide,
            helper.make_node("Softmax", ["hidden"], ["weights"], name="softmax", axis=-1),
            helper.make_node("MatMul", ["weights", "K"], ["y"], name="mix"),
        ],
        {"Q": ["batch_size", 2, "q_seq_len", 8], "K": ["batch_size", 2, "kv_seq_len", 8]},
        {"y": [None, 2, None, 8]},
        {"later": later},
    )
