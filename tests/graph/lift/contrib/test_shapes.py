"""Shapes inferred through onnxruntime's own operators are those of its kernels' outputs."""

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from sdpa_onnx.graph.lift.contrib.shapes import infer_shapes
from sdpa_onnx.graph.model import OnnxModel
from tests.graph.lift.taps import random, run
from tests.graph.models import bare

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


def test_shapes_are_those_that_a_run_gives() -> None:
    """Every value between two attentions has its element type, named dynamic axes and static widths."""
    model = _graph()
    infer_shapes(model)
    values = {value.name: value for node in model.graph for value in node.outputs if value.name}
    feeds = {"ids": np.arange(10, dtype=np.int32).reshape(2, 5), "seen": np.ones((2, 5), np.int32)}
    arrays = run(OnnxModel(ir=model, sites=()).tapped(list(values)), feeds)
    for name, value in values.items():
        assert value.dtype is not None, name
        assert value.shape is not None, name
        assert value.dtype.numpy() == arrays[name].dtype
        known = [size if isinstance(size, int) else _SIZES[str(size)] for size in value.shape]
        assert known == list(arrays[name].shape), name
    assert len(values) == 11


def test_the_graph_itself_stays_as_it_was() -> None:
    """Only types and shapes change; no substitute node is left, and the names are those of the file."""
    model, untouched = _graph(), _graph()
    infer_shapes(model)
    assert [(node.domain, node.op_type) for node in model.graph] == [
        (node.domain, node.op_type) for node in untouched.graph
    ]
    names = [[value.name for node in graph for value in node.outputs] for graph in (model.graph, untouched.graph)]
    assert names[0] == names[1]


def test_what_no_shape_follows_from_stays_unknown() -> None:
    """Shapes for transposed operands and packed queries stay unknown."""
    model = _graph()
    for node in model.graph:
        if node.op_type == "FusedMatMul":
            node.attributes["transA"] = ir.AttrInt64("transA", 1)
    infer_shapes(model)
    values = {value.name: value for node in model.graph for value in node.outputs}
    assert values["second"].shape is not None
    assert values["narrow"].shape is None
    assert values["normed"].shape is None


def test_a_graph_without_such_operators_is_inferred_as_ever() -> None:
    """Without such operators, only the standard inference pass runs."""
    model = bare().ir
    model.graph.outputs[0].shape = None
    infer_shapes(model)
    assert model.graph.outputs[0].shape is not None
    assert len(model.graph.outputs[0].shape) == 4
