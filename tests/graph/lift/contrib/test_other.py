"""Attention operators that are recognised but not read are reported with the reason."""

import onnx_ir as ir
import pytest

from sdpa_onnx.graph.lift.contrib import other as contrib_other
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from tests.graph.lift.taps import read_one


def _model(op_type: str, domain: str = "com.microsoft") -> ir.Model:
    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape((2, 8)))
    node = ir.node(op_type, [value], domain=domain, name="node")
    node.outputs[0].name = "y"
    graph = ir.Graph([value], node.outputs, nodes=[node], opset_imports={"": 18, "com.microsoft": 1})
    return ir.Model(graph, ir_version=10)


@pytest.mark.parametrize(
    ("op_type", "reason"),
    [
        (
            "PackedMultiHeadAttention",
            "its samples are packed without padding, which the standard operator does not support",
        ),
        ("DecoderMaskedMultiHeadAttention", "it decodes one token with a cache that it reorders and shares"),
        ("QAttention", "its weights are quantised"),
        ("SparseAttention", "it attends to a selection of keys by rules that the standard operator does not have"),
        ("PagedAttention", "its cache is stored in pages"),
        ("LinearAttention", "it has no softmax"),
        ("DecoderAttention", "what it computes depends on flags in graph inputs"),
    ],
)
def test_what_is_not_read_says_why(op_type: str, reason: str) -> None:
    """The reason names the node."""
    found, _ = read_one(contrib_other.read, _model(op_type))
    assert found.attention is None
    assert (found.dialect, found.node) == (f"onnxruntime {op_type}", "node")
    assert found.reason == f"{op_type} 'node': {reason}."


def test_all_attentions_of_onnxruntime_have_a_reader() -> None:
    """Every operator of that domain with attention in its name is recognised, except parts of one."""
    import onnxruntime.capi.onnxruntime_pybind11_state as state

    names = {schema.name for schema in state.get_all_operator_schema() if schema.domain == "com.microsoft"}
    read = {"Attention", "MultiHeadAttention", "GroupQueryAttention"}
    # They select keys or gate values for another operator and compute no softmax over scores.
    parts = ("Indexer", "IndexerMerge", "Gate")
    for name in names:
        if "Attention" in name and not name.endswith(parts) and name not in read:
            found = list(contrib_other.read(GraphFacts(_model(name))))
            assert len(found) == 1, name


def test_operators_of_other_domains_are_left_alone() -> None:
    """An operator of another domain with the same name is not recognised."""
    assert list(contrib_other.read(GraphFacts(_model("PackedMultiHeadAttention", domain="other")))) == []
