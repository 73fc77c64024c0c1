"""Attention as the operator's own function body, and in functions of a model, is read like any other."""

import re

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.graph.attention_node import spec_of_node
from sdpa_onnx.graph.lift.find import find_attentions
from tests.core.attention.test_node_cases import NODE_CASES, every_case
from tests.graph.lift.judged import judge_all

_CASES = every_case()
_EXPANDED = sorted(name for name in _CASES if name.endswith("_expanded"))
_FEW = _EXPANDED[::9]


def _check(name: str) -> None:
    case, plain = _CASES[name], _CASES[name.removesuffix("_expanded")]
    findings = find_attentions(ir.from_proto(case.model))
    (found,) = findings.found
    assert found.attention is not None, found.reason
    assert not any("also read" in text for text in found.warnings if "output" not in text)
    spec, wanted = found.attention.spec, spec_of_node(ir.from_proto(plain.model).graph.node(0))
    assert wanted is not None
    assert (spec.head_dim, spec.v_head_dim, spec.softcap, spec.q_num_heads) == (
        *(wanted.head_dim, wanted.v_head_dim, wanted.softcap, wanted.q_num_heads),
    )
    assert spec.scale_value == pytest.approx(wanted.scale_value, rel=1e-6)
    if found.attention.dtype is Dtype.BFLOAT16:
        return  # onnxruntime has no kernels for it
    arrays, _ = case.data_sets[0]
    feeds = dict(zip((value.name for value in case.model.graph.input), arrays, strict=True))
    (agreement,) = judge_all(findings, feeds)
    assert agreement.verdict in (Verdict.OK, Verdict.ROUNDING_LEVEL), agreement.diagnosis


@pytest.mark.parametrize("name", _FEW)
def test_the_body_of_the_operator(name: str) -> None:
    """Heads, widths, scale and softcap are those of the node that it was made from, and its values are right."""
    _check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in _EXPANDED if name not in _FEW])
def test_every_body_of_the_operator(name: str) -> None:
    """All node tests of onnx."""
    _check(name)


def test_all_bodies_are_here() -> None:
    """One for each node test."""
    assert len(_EXPANDED) == NODE_CASES


_ATTEND = """<opset_import: ["" : 17], domain: "own">
Attend %s (q, k, v) => (y) {
  kt = Transpose <perm = [0, 1, 3, 2]> (k)
  s = MatMul (q, kt)
  %s
  p = Softmax <axis = -1> (d)
  y = MatMul (p, v)
}"""
_PLAIN = "c = Constant <value = float {0.5}> ()  d = Mul (s, c)"
_OUTER = """<opset_import: ["" : 17, "own" : 1], domain: "own">
Layer (x) => (y) { a = own.Attend (x, x, x)  y = own.Attend (a, x, x) }"""
_OTHER = """<opset_import: ["" : 17], domain: "own">
Other (x) => (y) { y = Neg (x) }"""
_BRANCH = """<opset_import: ["" : 17], domain: "own">
Chosen (c, x) => (y) {
  y = If (c) <then_branch = yes () => (a) { a = Neg (x) }, else_branch = no () => (b) { b = Abs (x) }>
}"""
# Functions, nodes of the graph, attentions that they are, and functions that stay.
_CALLS = {
    "called-once": ([_ATTEND % ("", _PLAIN)], "y = own.Attend (q, k, v)", 1, 0),
    "called-twice": ([_ATTEND % ("", _PLAIN)], "a = own.Attend (q, k, v)  y = own.Attend (a, k, v)", 2, 0),
    "called-by-a-function": ([_OUTER, _ATTEND % ("", _PLAIN)], "a = own.Layer (q)  y = own.Layer (a)", 4, 0),
    "attribute": (
        [_ATTEND % ("<scale: float = 0.25>", "c = Constant <value_float: float = @scale> ()  d = Mul (s, c)")],
        "a = own.Attend <scale = 0.5> (q, k, v)  y = own.Attend (a, k, v)",
        2,
        0,
    ),
    "beside-another": ([_OTHER, _ATTEND % ("", _PLAIN)], "a = own.Other (q)  y = own.Attend (a, k, v)", 1, 1),
    "after-a-branch": ([_BRANCH, _ATTEND % ("", _PLAIN)], "a = own.Chosen (t, q)  y = own.Attend (a, k, v)", 1, 1),
}


def _calling(functions: list[str], nodes: str) -> ir.Model:
    text = f"""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[B,2,L,8] q, float[B,2,L,8] k, float[B,2,L,8] v, bool t) => (float[B,2,L,8] y) {{ {nodes} }}"""
    proto = parser.parse_model(text)
    proto.functions.extend(parser.parse_function(function) for function in functions)
    return ir.from_proto(proto)


@pytest.mark.parametrize("name", _CALLS)
def test_attention_in_functions(name: str) -> None:
    """Each call is an attention of its own; functions without one stay."""
    functions, nodes, count, kept = _CALLS[name]
    model = _calling(functions, nodes)
    findings = find_attentions(model)
    assert [found.reason for found in findings.found] == [""] * count
    assert len(findings.model.functions) == kept
    assert len(model.functions) == len(functions)
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((2, 2, 5, 8)).astype(np.float32) for name in "qkv"}
    for agreement in judge_all(findings, {**feeds, "t": np.array(True)}):
        assert agreement.verdict in (Verdict.OK, Verdict.ROUNDING_LEVEL), agreement.diagnosis


def test_functions_that_cannot_be_inlined() -> None:
    """The reason is the cause, another opset, in onnx-ir's own words, which differ by version."""
    older = _calling([(_ATTEND % ("", _PLAIN)).replace('"" : 17', '"" : 16')], "y = own.Attend (q, k, v)")
    (found,) = find_attentions(older).found
    assert found.reason.startswith("it is inside the function Attend, which cannot be inlined: Opset mismatch")
    assert {"16", "17"} <= set(re.findall(r"\d+", found.reason))
