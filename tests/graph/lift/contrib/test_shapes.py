"""Shapes inferred through onnxruntime's own operators are those of its kernels' outputs."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from sdpa_onnx.graph.lift.contrib.shapes import contrib_types
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.node_shapes import KnownInput
from sdpa_onnx.graph.model import OnnxModel
from tests.graph.lift.taps import random, run

_CONTRIB = "com.microsoft"
_SIZES = {"batch_size": 2, "seq_len": 5}


def _node(op_type: str, inputs: list[str], outputs: list[str], **attributes: float) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, outputs, domain=_CONTRIB, **attributes)


def _graph() -> ir.Model:
    """Embeddings, two attentions, and what onnxruntime's optimiser writes between them."""
    constants = {
        "table": random(20, 16),
        "places": random(5, 16),
        "ones": np.ones(16, np.float32),
        "square": random(16, 16),
        "wide": random(16, 24),
        "bias": random(24),
        "packed": random(24, 24),
    }
    nodes = [
        _node(
            "EmbedLayerNormalization",
            ["ids", "", "table", "places", "", "ones", "ones", "seen"],
            ["rows", "ends"],
            mask_index_type=1,
        ),
        helper.make_node("MatMul", ["rows", "square"], ["q"]),
        helper.make_node("MatMul", ["rows", "wide"], ["v"]),
        _node("MultiHeadAttention", ["q", "q", "v", "", "ends"], ["first"], num_heads=2),
        _node("BiasGelu", ["first", "bias"], ["gelu"]),
        _node("Attention", ["gelu", "packed", "", "ends"], ["second"], num_heads=2),
        _node("FusedMatMul", ["second", "back"], ["narrow"], alpha=0.5),
        _node("SkipLayerNormalization", ["narrow", "rows", "ones"], ["normed", "", "", "total"]),
        helper.make_node("Add", ["normed", "total"], ["y"]),
    ]
    constants["back"] = random(8, 16)
    sizes = list(_SIZES)
    whole = [helper.make_tensor_value_info(name, TensorProto.INT32, sizes) for name in ("ids", "seen")]
    graph = helper.make_graph(
        nodes,
        "test",
        whole,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid(_CONTRIB, 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=domains, ir_version=8))


def _values(model: ir.Model) -> dict[str, ir.Value]:
    return {value.name: value for node in GraphFacts(model).graph for value in node.outputs if value.name}


def test_shapes_are_those_that_a_run_gives() -> None:
    """Every value between two attentions has its element type, named dynamic axes and static widths."""
    model = _graph()
    values = _values(model)
    feeds = {"ids": np.arange(10, dtype=np.int32).reshape(2, 5), "seen": np.ones((2, 5), np.int32)}
    arrays = run(OnnxModel(ir=model, sites=()).tapped(list(values)), feeds)
    for name, value in values.items():
        assert value.dtype is not None, name
        assert value.shape is not None, name
        assert value.dtype.numpy() == arrays[name].dtype
        known = [size if isinstance(size, int) else _SIZES[str(size)] for size in value.shape]
        assert known == list(arrays[name].shape), name
    assert len(values) == 11


def _known(dtype: ir.DataType, *sizes: int) -> KnownInput:
    return KnownInput(dtype=dtype, sizes=sizes)


_FLOAT, _BYTE = ir.DataType.FLOAT16, ir.DataType.UINT8
# Operator, inputs, attributes, and the type and sizes of its first output.
_OUTPUTS = {
    "transposed": (
        "FusedMatMul",
        [_known(_FLOAT, 3, 5, 4), _known(_FLOAT, 6, 5)],
        {"transA": 1, "transB": 1},
        (3, 4, 6),
    ),
    "broadcast": ("FusedMatMul", [_known(_FLOAT, 5, 4), _known(_FLOAT, 2, 1, 4, 6)], {}, (2, 1, 5, 6)),
    "heads-apart": (
        "MultiHeadAttention",
        [_known(_FLOAT, 2, 5, 8), _known(_FLOAT, 2, 2, 7, 4), _known(_FLOAT, 2, 2, 7, 3)],
        {"num_heads": 2},
        (2, 5, 6),
    ),
    "stated-widths": (
        "Attention",
        [_known(_FLOAT, 2, 5, 8), _known(_FLOAT, 8, 20)],
        {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]},
        (2, 5, 4),
    ),
    "few-bits": ("MatMulNBits", [_known(_FLOAT, 2, 5, 8), _known(_BYTE, 12, 1, 4)], {"K": 8, "N": 12}, (2, 5, 12)),
    "dequantised": ("DequantizeLinear", [_known(_BYTE, 2, 5), _known(_FLOAT)], {}, (2, 5)),
    "rotated": ("RotaryEmbedding", [_known(_FLOAT, 2, 5, 8)], {}, (2, 5, 8)),
}


@pytest.mark.parametrize("name", _OUTPUTS)
def test_outputs_of_single_operators(name: str) -> None:
    """In the element type of the operands, or of the scale."""
    op_type, inputs, attributes, sizes = _OUTPUTS[name]
    node = ir.node(op_type, [ir.Value(name=f"i{at}") for at, _ in enumerate(inputs)], attributes, domain=_CONTRIB)
    node.outputs[0].name = "y"
    (found,) = contrib_types(node, inputs)
    assert found is not None
    assert (found.dtype, found.sizes) == (_FLOAT, sizes)
    elsewhere = ir.node(op_type, list(node.inputs), attributes, domain="com.example")
    assert contrib_types(elsewhere, inputs) == [None]


def test_the_graph_itself_stays_as_it_was() -> None:
    """Only types and shapes change, of a copy."""
    model, untouched = _graph(), _graph()
    found = GraphFacts(model).model
    names = [
        [(node.domain, node.op_type, [value.name for value in node.outputs]) for node in one.graph]
        for one in (model, untouched, found)
    ]
    assert names[0] == names[1] == names[2]
    assert [value.shape for node in model.graph for value in node.outputs] == [
        value.shape for node in untouched.graph for value in node.outputs
    ]


def test_what_no_shape_follows_from_stays_unknown() -> None:
    """Shapes where batch axes are moved stay unknown, and what follows from them."""
    model = _graph()
    for node in model.graph:
        if node.op_type == "FusedMatMul":
            node.attributes["transBatchA"] = ir.AttrInt64("transBatchA", 1)
    values = _values(model)
    assert values["second"].shape is not None
    assert values["narrow"].shape is None
    assert values["normed"].shape is None
