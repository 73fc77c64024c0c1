"""Sums and products are judged by their proven bound: no order of summation in float32 is accused."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.judge.node_rule import NodeExpectation, judge_node_output
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.workflows.locate.node_steps import NodeWalk, flat_model
from sdpa_onnx.workflows.locate.reference_nodes import NoReference

F32 = NDArray[np.float32]


def _one_by_one(terms: F32) -> F32:
    """Sum along the last axis in float32, one term after the other: the largest error of all orders."""
    total = np.zeros(terms.shape[:-1], np.float32)
    for place in range(terms.shape[-1]):
        total = (total + terms[..., place]).astype(np.float32)
    return total


def _node(op_type: str, count: int, **attributes: object) -> onnx.NodeProto:
    names = ["a", "b"][:count]
    more = {"ReduceSum": ["axes"], "ReduceMean": ["axes"], "CumSum": ["axis"]}
    return helper.make_node(op_type, names + more.get(op_type, []), ["y"], **attributes)


def _expectation(node: onnx.NodeProto, arrays: dict[str, F32]) -> NodeExpectation:
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in arrays.items()]
    constants = [helper.make_tensor("axes", TensorProto.INT64, [1], [1]), helper.make_tensor("axis", 7, [], [1])]
    graph = helper.make_graph(
        [node],
        "sums",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [one for one in constants if one.name in node.input],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    flat = flat_model(load_model(proto))
    walk = NodeWalk(flat, arrays, find_precision("float32"), lambda *_: NoReference("no runtime"))
    (step,) = walk.steps()
    return step.truths["y"]


_A, _B = (np.random.default_rng(seed).standard_normal((3, 400)).astype(np.float32) for seed in (0, 1))
_RISING = (1.0 + np.arange(1200).reshape(3, 400) / 7.0).astype(np.float32)
_CASES: dict[str, tuple[onnx.NodeProto, dict[str, F32], Callable[[], F32]]] = {
    "ReduceSum": (_node("ReduceSum", 1, keepdims=0), {"a": _A}, lambda: _one_by_one(_A)),
    "ReduceSum of one sign": (_node("ReduceSum", 1, keepdims=0), {"a": _RISING}, lambda: _one_by_one(_RISING)),
    "ReduceMean": (_node("ReduceMean", 1, keepdims=0), {"a": _A}, lambda: _one_by_one(_A) / np.float32(400)),
    "Einsum": (_node("Einsum", 2, equation="ik,jk->ij"), {"a": _A, "b": _B}, lambda: _one_by_one(_A[:, None] * _B)),
    "Sum": (_node("Sum", 2), {"a": _A, "b": _B}, lambda: _A + _B),
    "CumSum": (_node("CumSum", 1), {"a": _A}, lambda: np.cumsum(_A, 1, dtype=np.float32)),
}


@pytest.mark.parametrize("name", _CASES)
def test_any_order_of_summation_is_right(name: str) -> None:
    """Terms that are added one by one are inside the bound, terms rounded to float16 are proven wrong."""
    node, arrays, in_order = _CASES[name]
    truth = _expectation(node, arrays)
    assert truth.bound is not None
    assert judge_node_output(truth, in_order()).verdict is Verdict.OK
    wrong = in_order() + np.float32(2.0 * float(truth.bound.max()) + 1e-5)
    found = judge_node_output(truth, wrong)
    assert (found.verdict, found.is_finding) == (Verdict.WRONG, True)
    assert " exceed the limit (the proven bound), " in found.evidence


def test_ellipsis_has_no_bound() -> None:
    """An equation with an ellipsis is judged by the error of the reference, and only suspicious beyond it."""
    truth = _expectation(_node("Einsum", 2, equation="...k,...k->..."), {"a": _A, "b": _B})
    assert truth.bound is None
    exact = truth.exact.astype(np.float32)
    assert judge_node_output(truth, exact).verdict is Verdict.OK
    assert judge_node_output(truth, exact + np.float32(1.0)).verdict is Verdict.SUSPICIOUS
