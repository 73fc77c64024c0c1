"""Models around one Attention whose inner values a runtime rewrites: QDQ at several places, casts, fusions."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.workflows.check.lifted_model import with_lifted_sites

HIDDEN, HEADS = 16, 2
_WIDTH = HIDDEN // HEADS


def _weights(kind: type = np.float32) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    drawn = np.random.default_rng(0).standard_normal((4, HIDDEN, HIDDEN)) / HIDDEN**0.5
    return dict(zip(("wq", "wk", "wv", "wo"), drawn.astype(kind), strict=True))


def _split(name: str) -> list[onnx.NodeProto]:
    """(batch, length, hidden) -> (batch, heads, length, width)."""
    return [
        helper.make_node("Reshape", [name, "split"], [f"{name}_apart"]),
        helper.make_node("Transpose", [f"{name}_apart"], [f"{name}_heads"], perm=[0, 2, 1, 3]),
    ]


def _quantised(name: str, scale: str = "step", zero: str = "zero", axis: int | None = None) -> list[onnx.NodeProto]:
    """name -> name_near, through int8."""
    options = {} if axis is None else {"axis": axis}
    return [
        helper.make_node("QuantizeLinear", [name, scale, zero], [f"{name}_q"], **options),
        helper.make_node("DequantizeLinear", [f"{name}_q", scale, zero], [f"{name}_near"], **options),
    ]


def block(
    quantised: Sequence[str] = (), *, per_channel: bool = False, after: bool = False, element: int = TensorProto.FLOAT
) -> OnnxModel:
    """Project, split heads, attend, join and project.

    Args:
        quantised: Which of "q", "k", "v", and "x" before the projections, pass through int8.
        per_channel: One step for each column of a head.
        after: Whether the attention's output passes through int8 too, behind a reshape.
        element: Element type of all values.
    """
    kind = helper.tensor_dtype_to_np_dtype(element)
    weights = _weights(kind)
    columns = (0.02 + 0.01 * np.arange(_WIDTH)).astype(kind) if per_channel else np.array(0.04, kind)
    weights |= {
        "split": np.array([0, 0, HEADS, _WIDTH], np.int64),
        "join": np.array([0, 0, HIDDEN], np.int64),
        "step": np.array(0.04, kind),
        "zero": np.array(0, np.int8),
        "steps": columns,
        "zeros": np.zeros(columns.shape, np.int8),
    }
    nodes = _quantised("x") if "x" in quantised else []
    source = "x_near" if "x" in quantised else "x"
    inner = []
    for name in ("q", "k", "v"):
        nodes += [helper.make_node("MatMul", [source, f"w{name}"], [name], name=f"project_{name}"), *_split(name)]
        made = f"{name}_heads"
        if name in quantised:
            nodes += _quantised(made, "steps", "zeros", axis=3 if per_channel else None)
            made = f"{made}_near"
        inner.append(made)
    nodes.append(helper.make_node("Attention", inner, ["attended"], name="attend"))
    nodes.append(helper.make_node("Transpose", ["attended"], ["back"], perm=[0, 2, 1, 3]))
    nodes.append(helper.make_node("Reshape", ["back", "join"], ["joined"]))
    if after:
        nodes += _quantised("joined")
    nodes.append(helper.make_node("MatMul", ["joined_near" if after else "joined", "wo"], ["y"], name="project_out"))
    return model_of(nodes, weights, element)


def model_of(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], element: int) -> OnnxModel:  # type: ignore[type-arg]
    """x -> y, (batch, length, hidden); weights that no node reads are left out."""
    read = {name for node in nodes for name in node.input}
    shape = ["batch", "length", HIDDEN]
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", element, shape)],
        [helper.make_tensor_value_info("y", element, shape)],
        [numpy_helper.from_array(array, name) for name, array in weights.items() if name in read],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    return with_lifted_sites(load_model(onnx.shape_inference.infer_shapes(made))).model


def dynamically_quantised() -> OnnxModel:
    """Weights in int8 and inputs quantised as they come: DynamicQuantizeLinear and MatMulInteger."""
    weights = _weights()
    arrays: dict[str, np.ndarray] = {  # type: ignore[type-arg]
        "split": np.array([0, 0, HEADS, _WIDTH], np.int64),
        "join": np.array([0, 0, HIDDEN], np.int64),
        "wo": weights["wo"],
    }
    nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["x_q", "x_step", "x_zero"])]
    inner = []
    for name in ("q", "k", "v"):
        weight = weights[f"w{name}"]
        step = np.float32(np.abs(weight).max() / 127)
        arrays |= {f"w{name}_q": np.rint(weight / step).astype(np.int8), f"w{name}_step": np.array(step)}
        nodes += [
            helper.make_node("MatMulInteger", ["x_q", f"w{name}_q", "x_zero"], [f"{name}_int"]),
            helper.make_node("Cast", [f"{name}_int"], [f"{name}_wide"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["x_step", f"w{name}_step"], [f"{name}_step"]),
            helper.make_node("Mul", [f"{name}_wide", f"{name}_step"], [name]),
            *_split(name),
        ]
        inner.append(f"{name}_heads")
    nodes.append(helper.make_node("Attention", inner, ["attended"], name="attend"))
    nodes.append(helper.make_node("Transpose", ["attended"], ["back"], perm=[0, 2, 1, 3]))
    nodes.append(helper.make_node("Reshape", ["back", "join"], ["joined"]))
    nodes.append(helper.make_node("MatMul", ["joined", "wo"], ["y"]))
    return model_of(nodes, arrays, TensorProto.FLOAT)


def normalised(*, written_out: bool = False) -> OnnxModel:
    """LayerNormalization, MatMul and Add, attention (one node, or MatMul, Softmax and MatMul), MatMul and Add."""
    arrays: dict[str, np.ndarray] = {  # type: ignore[type-arg]
        **_weights(),
        "split": np.array([0, 0, HEADS, _WIDTH], np.int64),
        "join": np.array([0, 0, HIDDEN], np.int64),
        "gain": np.linspace(0.5, 1.5, HIDDEN, dtype=np.float32),
        "bias": np.linspace(-0.5, 0.5, HIDDEN, dtype=np.float32),
        "scale": np.array(_WIDTH**-0.5, np.float32),
    }
    nodes = [helper.make_node("LayerNormalization", ["x", "gain", "bias"], ["n"], axis=-1)]
    for name in ("q", "k", "v"):
        nodes += [
            helper.make_node("MatMul", ["n", f"w{name}"], [f"{name}_product"]),
            helper.make_node("Add", [f"{name}_product", "bias"], [name]),
            *_split(name),
        ]
    if written_out:
        nodes += [
            helper.make_node("Transpose", ["k_heads"], ["k_turned"], perm=[0, 1, 3, 2]),
            helper.make_node("MatMul", ["q_heads", "k_turned"], ["products"]),
            helper.make_node("Mul", ["products", "scale"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
            helper.make_node("MatMul", ["weights", "v_heads"], ["attended"]),
        ]
    else:
        nodes.append(helper.make_node("Attention", ["q_heads", "k_heads", "v_heads"], ["attended"], name="attend"))
    nodes += [
        helper.make_node("Transpose", ["attended"], ["back"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["back", "join"], ["joined"]),
        helper.make_node("MatMul", ["joined", "wo"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["sum"]),
        helper.make_node("Add", ["sum", "x"], ["y"]),
    ]
    return model_of(nodes, arrays, TensorProto.FLOAT)


MODELS = {
    "only K": lambda: block(["k"]),
    "only V": lambda: block(["v"]),
    "only Q": lambda: block(["q"]),
    "all, and the output": lambda: block(["x", "q", "k", "v"], after=True),
    "the output": lambda: block(after=True),
    "per channel": lambda: block(["q", "k", "v"], per_channel=True),
    "float16": lambda: block(element=TensorProto.FLOAT16),
    "float16, only V": lambda: block(["v"], element=TensorProto.FLOAT16),
    "dynamically quantised": dynamically_quantised,
    "normalised": normalised,
    "normalised, written out": lambda: normalised(written_out=True),
}
