"""A number that a graph holds from the size at export is told from an axis that cannot change."""

from collections.abc import Callable
from dataclasses import replace

import onnx.parser
import pytest
from torch import nn

from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.graph.model_facts import TRACED_KEY
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.torch_export.size_numbers import find_size_dependent_number
from sdpa_onnx.workflows.verify.dynamic_axes import AxesProof, prove_axes
from tests.workflows.user_modules import ScaledByCount, ScaledByHand, qkv

_GRAPH = """
<ir_version: 9, opset_import: ["": 18]>
by_hand (float[b, 2, s, 8] q, float[b, 2, t, 8] k, float[b, 2, t, 8] v) => (float[b, 2, s, 8] y)
{{
   turned = Transpose <perm = [0, 1, 3, 2]> (k)
   scores = MatMul (q, turned)
   {scale}
   scaled = Div (scores, divisor)
   weights = Softmax <axis = -1> (scaled)
   y = MatMul (weights, v)
}}
"""
_FIXED = "divisor = Constant <value_float = 6.0> ()"
_FOLLOWS = "length = Shape <start = 2, end = 3> (k)  divisor = Cast <to = 1> (length)"


def _proof(scale: str, module: Callable[[], nn.Module]) -> AxesProof:
    model: OnnxModel = load_model(onnx.parser.parse_model(_GRAPH.format(scale=scale)))
    model.ir.meta[TRACED_KEY] = {"b": 2, "s": 5, "t": 6}
    model = replace(model, source=module().eval())
    return prove_axes(model, get_runtime("ort-cpu"), target="t", traced=model.facts.traced, count=3)


def test_line_of_the_module_is_named() -> None:
    """The axis is free: sizes, both numbers and the line that makes them are told, and no axis is called fixed."""
    proof = _proof(_FIXED, ScaledByHand)
    assert (proof.outcome, proof.baked, proof.settings) == (Outcome.DISAGREES, (), ())
    says, _, evidence = proof.reason.partition("`). ")
    assert says.startswith(
        "It is right at t 6 and wrong at t 64: the graph holds, as a constant, a number of the size at export that the "
        "module computes from a size: 0.166667 at t 6, 0.015625 at t 64 ("
    )
    assert "user_modules.py:" in says
    assert says.endswith("`return (q @ k.transpose(-1, -2) * (1 / k.shape[2])).softmax(-1) @ v")
    assert evidence.startswith("The largest error is ")


def test_what_to_look_at() -> None:
    """Where no number of Python shows, the reason is called a guess."""
    proof = _proof(_FIXED, ScaledByCount)
    assert (proof.outcome, proof.baked, proof.settings) == (Outcome.DISAGREES, (), ())
    assert proof.reason.startswith(
        "It is right at t 6 and wrong at t 64. A guess: a number in the graph was fixed at the size at export. None "
        "was found that the module computes from a size in Python. The largest error is "
    )


def test_number_that_the_graph_does_not_hold_is_a_guess() -> None:
    """A number of the module that is no constant of the graph may have nothing to do with the error."""
    proof = _proof("divisor = Constant <value_float = 7.5> ()", ScaledByHand)
    assert "as a constant" not in proof.reason
    assert proof.outcome is Outcome.DISAGREES


@pytest.mark.parametrize("module", [ScaledByHand, ScaledByCount])
def test_number_that_follows(module: Callable[[], nn.Module]) -> None:
    """The same graph with the number taken from the input is proved free."""
    proof = _proof(_FOLLOWS, module)
    assert (proof.outcome, proof.reason) == (Outcome.OK, "")


def test_same_sizes_have_the_same_numbers() -> None:
    """Nothing differs between two runs at one size."""
    assert find_size_dependent_number(ScaledByHand(), (qkv(), {}), (qkv(), {})) is None
