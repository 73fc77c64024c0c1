"""Shared behaviour of the readers of onnxruntime's operators: opsets, names, and an unchanged graph on refusal."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
import pytest

from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.graph.lift.contrib import attention as contrib_attention
from sdpa_onnx.graph.lift.contrib import gqa as contrib_gqa
from sdpa_onnx.graph.lift.contrib import mha as contrib_mha
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.one_node import build_one_node_model
from tests.graph.lift.taps import Array, Reader, contrib_node, flags, random, read_one, tap, whole

_GQA: dict[str, Array] = {
    "query": random(2, 1, 64),
    "key": random(2, 1, 32),
    "value": random(2, 1, 32, seed=1),
    "past_key": random(2, 2, 6, 16),
    "past_value": random(2, 2, 6, 16, seed=1),
    "seqlens_k": whole(6, 3),
    "total_sequence_length": whole(7),
    "cos_cache": random(32, 8),
    "sin_cache": random(32, 8, seed=1),
}
_MHA: dict[str, Array] = {
    "query": random(2, 5, 16),
    "key": random(2, 7, 16),
    "value": random(2, 7, 6),
    "bias": random(38),
    "key_padding_mask": whole(3, 6),
}
_PACKED: dict[str, Array] = {"input": random(2, 5, 7), "weights": random(7, 48), "mask_index": whole(3, 5, 1, 2)}

_OPERATORS: dict[str, tuple[Reader, dict[str, Array], dict[str, int | float | list[int]]]] = {
    "GroupQueryAttention": (contrib_gqa.read, _GQA, {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}),
    "MultiHeadAttention": (contrib_mha.read, _MHA, {"num_heads": 2}),
    "Attention": (contrib_attention.read, _PACKED, {"num_heads": 2}),
}


@pytest.mark.parametrize("op_type", _OPERATORS)
def test_the_lowest_opset_of_the_added_nodes(op_type: str) -> None:
    """The added nodes run at opset 11 or 12; below it, the node is refused because its graph cannot contain them."""
    read, feeds, attributes = _OPERATORS[op_type]
    outputs = ("output", "present_key", "present_value") if op_type.startswith("Group") else ("output",)
    opset = 12 if op_type.startswith("Group") else 11  # it needs the largest of two integers
    lowest = build_one_node_model(contrib_node(op_type, feeds, outputs, attributes, opset=opset), feeds, dynamic=True)
    agreement = tap(read, lowest, feeds).judged()
    assert agreement.verdict is Verdict.OK, agreement.diagnosis
    below = build_one_node_model(contrib_node(op_type, feeds, outputs, attributes, opset=opset - 1), feeds)
    found, grown = read_one(read, below.ir)
    reason = f"it needs added nodes of opset {opset}, but the graph has opset {opset - 1}"
    assert found.reason == f"{op_type} '{op_type.lower()}': {reason}."
    assert len(list(grown.graph)) == 1


def test_a_node_that_needs_nothing_is_read_at_any_opset() -> None:
    """Without bias and mask, all values are the node's own."""
    feeds = {name: _MHA[name] for name in ("query", "key", "value")}
    model = build_one_node_model(
        contrib_node("MultiHeadAttention", feeds, ("output",), {"num_heads": 2}, opset=11), feeds
    )
    found, grown = read_one(contrib_mha.read, model.ir)
    assert found.attention is not None
    assert len(list(grown.graph)) == 1


def test_a_node_without_outputs_is_refused() -> None:
    """onnx.checker does not check nodes of that domain, so the reader must."""
    feeds = {name: _MHA[name] for name in ("query", "key", "value")}
    model = build_one_node_model(contrib_node("MultiHeadAttention", feeds, ("output",), {"num_heads": 2}), feeds).ir
    model.graph.outputs.clear()
    model.graph[0].resize_outputs(0)
    found, _ = read_one(contrib_mha.read, model)
    assert found.reason == "MultiHeadAttention 'multiheadattention': it has no output."


def test_float16_keeps_its_type() -> None:
    """Added masks and rotations have the attention's element type."""
    feeds = {name: array.astype(np.float16) if array.dtype == np.float32 else array for name, array in _GQA.items()}
    feeds["attention_bias"] = random(1, 1, 1, 7).astype(np.float16)
    outputs = ("output", "present_key", "present_value")
    node = contrib_node("GroupQueryAttention", feeds, outputs, _OPERATORS["GroupQueryAttention"][2])
    found, _ = read_one(contrib_gqa.read, build_one_node_model(node, feeds).ir)
    attention = found.attention
    assert attention is not None
    values = (attention.query, attention.key, attention.value, attention.output, attention.attn_mask)
    assert [value.dtype for value in values if value is not None] == [ir.DataType.FLOAT16] * 5
    assert attention.dtype == "float16"


def test_two_nodes_of_one_name_are_two_attentions() -> None:
    """Names of attentions and added values are unique for any names in the file."""
    feeds = {**_MHA, "key_padding_mask": flags(2, 7)}
    model = build_one_node_model(contrib_node("MultiHeadAttention", feeds, ("output",), {"num_heads": 2}), feeds).ir
    node = model.graph[0]
    again = ir.node(node.op_type, node.inputs, attributes={"num_heads": 2}, domain=node.domain, name=node.name)
    again.outputs[0].name = "second"
    model.graph.append(again)
    model.graph.outputs.append(again.outputs[0])
    search = GraphFacts(model)
    first, second = (found.attention for found in contrib_mha.read(search))
    assert first is not None
    assert second is not None
    assert first.name != second.name
    names = [value.name for one in search.graph for value in one.outputs]
    assert len(names) == len(set(names))


def _mutations(op_type: str) -> Iterator[ir.Model]:
    """The operator's model with one mutation: an input missing or of another rank, type or shape, or an attribute."""
    _, feeds, attributes = _OPERATORS[op_type]
    node = contrib_node(op_type, feeds, ("output", "present_key", "present_value"), attributes)
    for place, name in enumerate(feeds):
        for shape, dtype in (((), None), ((3,), None), (None, None), ((0, 0, 0, 0, 0), None), (None, "int")):
            model = build_one_node_model(node, feeds).ir
            value = model.graph.inputs[place]
            value.shape = value.shape if dtype else None if shape is None else ir.Shape(shape)
            value.type = ir.TensorType(ir.DataType.INT8) if dtype else value.type
            yield model
        model = build_one_node_model(node, feeds).ir
        wrong = next(one for one in model.graph.inputs if one.name == name)
        model.graph[0].replace_input_with(list(model.graph[0].inputs).index(wrong), None)
        yield model
    for name in (*attributes, "scale", "softcap", "unidirectional", "qkv_hidden_sizes", "mask_filter_value"):
        for attribute in (ir.AttrString(name, "text"), ir.AttrInt64(name, -1), ir.AttrFloat32(name, float("nan"))):
            model = build_one_node_model(node, feeds).ir
            model.graph[0].attributes[name] = attribute
            yield model


@pytest.mark.slow
@pytest.mark.parametrize("op_type", _OPERATORS)
def test_malformed_nodes_are_refused_or_read_and_never_fail(op_type: str) -> None:
    """Any mutated node gives an attention or a reason that names the node."""
    read = _OPERATORS[op_type][0]
    outcomes = [read_one(read, model)[0] for model in _mutations(op_type)]
    assert all((found.attention is None) == bool(found.reason) for found in outcomes)
    assert all(found.reason.startswith(f"{op_type} '{op_type.lower()}': ") for found in outcomes if found.reason)
    assert len({found.reason for found in outcomes}) > 8
