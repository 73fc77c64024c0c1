"""Every input of every operator that is read: a runtime that reads it wrongly is found by the inputs of `verify`."""

import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as ort_state
import pytest

from sdpa_onnx.graph.lift.find import find_attentions
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.graph.one_node import FORMAL_INPUTS
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.lifted_model import with_lifted_sites
from sdpa_onnx.workflows.verify.plant_inputs import operator_inputs, prove_inputs
from tests.graph.integers.graphs import graph

_GQA = """g (float[b,s,64] query, float[b,s,32] key, float[b,s,32] value, float[b,2,p,16] past_key,
   float[b,2,p,16] past_value, int32[b] seqlens_k, int32[1] total_sequence_length, float[32,8] cos_cache,
   float[32,8] sin_cache, int64[b,s] position_ids{more}) => (float[b,s,64] y, float[b,2,r,16] present_key,
   float[b,2,r,16] present_value)
{{ y, present_key, present_value = com.microsoft.GroupQueryAttention
       <num_heads: int = 4, kv_num_heads: int = 2, do_rotary: int = 1>
       (query, key, value, past_key, past_value, seqlens_k, total_sequence_length, cos_cache, sin_cache,
        position_ids{names}) }}"""
_MHA = """g (float[b,s,32] query, float[b,t,32] key, float[b,t,32] value, float[96] bias,
   int32[{shape}] key_padding_mask, float[b,4,s,{keys}] attention_bias{past}) => (float[b,s,32] y{outputs})
{{ y{presents} = com.microsoft.MultiHeadAttention <num_heads: int = 4>
       (query, key, value, bias, key_padding_mask, attention_bias{names}) }}"""
_OWN = """g (float[b,s,16] input, float[16,48] weights, float[48] bias, int32[{shape}] mask_index{past})
   => (float[b,s,16] y, float[2,b,2,u,8] present)
{{ y, present = com.microsoft.Attention <num_heads: int = 2>
       (input, weights, bias, mask_index{names}) }}"""
_OWN_PAST = ", float[2,b,2,p,8] past"
_STANDARD = """g (float[b,4,s,8] Q, float[b,2,t,8] K, float[b,2,t,8] V, {mask}[b,4,s,u] attn_mask{more})
   => (float[b,4,s,8] Y{outputs})
{{ Y{presents} = Attention{attributes} (Q, K, V, attn_mask{names}) }}"""
_PAST = {
    "more": ", float[b,2,p,8] past_key, float[b,2,p,8] past_value",
    "outputs": ", float[b,2,u,8] present_key, float[b,2,u,8] present_value",
    "presents": ", present_key, present_value",
    "names": ", past_key, past_value",
    "attributes": "",
}
_LENGTHS = {"more": ", int64[b] nonpad_kv_seqlen", "names": ", , , nonpad_kv_seqlen", "outputs": "", "presents": ""}

# Body, opset and sizes of graphs that together have every input that is read.
_MODELS: dict[str, tuple[str, int, dict[str, int]]] = {
    "gqa-decode": (_GQA.format(more="", names=""), 23, {"b": 3, "s": 1, "p": 9}),
    "gqa-prompt": (_GQA.format(more="", names=""), 23, {"b": 3, "s": 6, "p": 0}),
    "gqa-bias": (
        _GQA.format(more=", float[b,4,s,t] attention_bias", names=", attention_bias"),
        23,
        {"b": 3, "s": 1, "p": 9, "t": 10},
    ),
    "mha-lengths": (
        _MHA.format(shape="b", keys="t", past="", names="", outputs="", presents=""),
        23,
        {"b": 3, "s": 5, "t": 9},
    ),
    "mha-past": (
        _MHA.format(
            shape="b,u",
            keys="u",
            past=", float[b,4,p,8] past_key, float[b,4,p,8] past_value",
            names=", past_key, past_value",
            outputs=", float[b,4,u,8] a, float[b,4,u,8] c",
            presents=", a, c",
        ),
        23,
        {"b": 3, "s": 5, "t": 5, "p": 4, "u": 9},
    ),
    "own": (_OWN.format(shape="b,u", past=_OWN_PAST, names=", past"), 23, {"b": 3, "s": 5, "p": 4, "u": 9}),
    "own-bias": (
        _OWN.format(shape="b", past=", float[b,2,s,u] attention_bias", names=", , attention_bias"),
        23,
        {"b": 3, "s": 5, "u": 5},
    ),
    "attention-23": (_STANDARD.format(mask="float", **_PAST), 23, {"b": 3, "s": 5, "t": 5, "p": 4, "u": 9}),
    "attention-24-bool": (_STANDARD.format(mask="bool", **_PAST), 24, {"b": 3, "s": 5, "t": 5, "p": 4, "u": 9}),
    "attention-24-lengths": (
        _STANDARD.format(mask="float", attributes="", **_LENGTHS),
        24,
        {"b": 3, "s": 5, "t": 9, "u": 9},
    ),
}
# Inputs that the readers refuse, each with the words of its reason.
_REFUSED = {
    ("MultiHeadAttention", "past_sequence_length"): "one buffer for past and present keys",
    ("MultiHeadAttention", "cache_indirection"): "for beam search",
    ("GroupQueryAttention", "head_sink"): "a term in the sum of the softmax",
    ("GroupQueryAttention", "k_scale"): "its cache is quantised",
    ("GroupQueryAttention", "v_scale"): "its cache is quantised",
    ("GroupQueryAttention", "q_norm_weight"): "a norm of queries and keys",
    ("GroupQueryAttention", "k_norm_weight"): "a norm of queries and keys",
    ("GroupQueryAttention", "query_seqlens"): "may leave out queries",
    ("Attention", "past_sequence_length"): "one buffer for past and present keys",
}
# Inputs that cannot be read wrongly there: without a past there is nothing in it, and onnxruntime refuses another total
# or only makes the buffer longer by it.
_HARMLESS = {
    ("gqa-decode", "total_sequence_length"),
    ("gqa-bias", "total_sequence_length"),
    ("gqa-prompt", "total_sequence_length"),
    ("gqa-prompt", "past_key"),
    ("gqa-prompt", "past_value"),
}


def _model(name: str) -> OnnxModel:
    body, opset, _ = _MODELS[name]
    return with_lifted_sites(graph(body, opset)).model


@pytest.mark.slow
@pytest.mark.parametrize("name", _MODELS)
def test_every_wrongly_read_input_is_found(name: str) -> None:
    """Ignored, of the next or first sample, head, query or column, or off by one: what changes an output is found."""
    model = _model(name)
    found = prove_inputs(model, get_runtime("ort-cpu"), CheckOptions(sizes=_MODELS[name][2]))
    harmless = {formal for which, formal in _HARMLESS if which == name}
    missed = [
        f"{one.formal} {one.fault.says}"
        for one in found
        if one.shows and not one.caught_by and one.formal not in harmless
    ]
    assert missed == []
    inputs = {formal for _, formal, _ in operator_inputs(model)}
    caught = {one.formal for one in found if one.caught_by}
    assert inputs - caught == harmless


def test_wrongly_read_lengths_are_found() -> None:
    """The quick part of the test above: lengths of GroupQueryAttention."""
    check = CheckOptions(sizes=_MODELS["gqa-decode"][2])
    found = prove_inputs(_model("gqa-decode"), get_runtime("ort-cpu"), check, formals=("seqlens_k",))
    assert {one.fault.name: bool(one.caught_by) for one in found if one.shows} == dict.fromkeys(
        ("ignored", "next-of-axis-0", "first-of-axis-0", "one-more"), True
    )


def test_every_input_of_a_read_operator_is_planted_or_refused() -> None:
    """The inputs of the operators' own schemas: none is left without a planted fault or a reason of its reader."""
    covered = {
        (node.op_type, node.domain, formal)
        for name in _MODELS
        for node in _model(name).ir.graph
        if (node.domain, node.op_type) in FORMAL_INPUTS
        for _, formal, _ in operator_inputs(_model(name))
    }
    contrib = {one.name: one for one in ort_state.get_all_operator_schema() if one.domain == "com.microsoft"}
    for domain, operator in FORMAL_INPUTS:
        schemas = [contrib[operator]] if domain else [onnx.defs.get_schema(operator, opset) for opset in (23, 24, 25)]
        for formal in {one.name for schema in schemas for one in schema.inputs}:
            refused = bool(domain) and (operator, formal) in _REFUSED
            assert refused or (operator, domain, formal) in covered, f"nobody plants a fault of {operator}'s {formal}"


@pytest.mark.parametrize(("operator", "formal"), _REFUSED)
def test_refused_input_has_a_reason(operator: str, formal: str) -> None:
    """An input that no fault is planted for makes its reader refuse the node, and name the input."""
    schemas = ort_state.get_all_operator_schema()
    schema = next(one for one in schemas if (one.domain, one.name) == ("com.microsoft", operator))
    at = [one.name for one in schema.inputs].index(formal)
    which = {"MultiHeadAttention": "mha-past", "GroupQueryAttention": "gqa-decode", "Attention": "own"}[operator]
    proto = onnx.load_from_string(graph(*_MODELS[which][:2]).to_bytes())
    proto.graph.input.append(onnx.helper.make_tensor_value_info("extra", onnx.TensorProto.INT32, ["b"]))
    (node,) = proto.graph.node
    node.input.extend([""] * (at + 1 - len(node.input)))
    node.input[at] = "extra"
    (found,) = find_attentions(load_model(proto).ir).found
    assert found.attention is None
    assert _REFUSED[operator, formal] in found.reason
