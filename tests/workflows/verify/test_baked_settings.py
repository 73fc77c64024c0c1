"""A setting that follows a size in the module and is fixed in the graph is named; its right twin is silent."""

import functools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.model_facts import LIMITS_KEY
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.torch_export.exporter import export_module
from sdpa_onnx.workflows.verify.dynamic_axes import AxesProof, prove_axes
from tests.workflows.user_modules import (
    CausalWhenLong,
    MaskedWhenLong,
    Scaled,
    ScaledByLength,
    ScaledByLogLength,
    qkv,
)

_SAMPLE = "batch_size 2, q_seq_len 5, k_seq_len 6"


def _proof(model: OnnxModel, module: nn.Module) -> AxesProof:
    """Prove a graph as if it had come from this module."""
    return prove_axes(
        replace(model, source=module.eval()), get_runtime("ort-cpu"), target="t", traced=model.facts.traced, count=3
    )


def _exported(module: nn.Module, opset: int = 23) -> OnnxModel:
    return export_module(module.eval(), qkv(), opset=opset)


def _without_limits(model: OnnxModel) -> OnnxModel:
    """As another exporter writes it."""
    graph = model.ir.clone()
    del graph.metadata_props[LIMITS_KEY]
    return replace(model, ir=graph)


@functools.cache
def _scaled(scale: float, opset: int = 23) -> OnnxModel:
    return _exported(Scaled(scale), opset)


@pytest.mark.parametrize("opset", [pytest.param(18, marks=pytest.mark.slow), 23])
@pytest.mark.parametrize("is_read", [True, False], ids=["stated", "by-trial"])
@pytest.mark.parametrize(
    ("fixed", "own", "formula"),
    [
        (1 / 6, ScaledByLength, "1/k_seq_len"),
        pytest.param(math.log(6) / 8, ScaledByLogLength, "log(k_seq_len)/d_k", marks=pytest.mark.slow),
    ],
    ids=["inverse", "logarithm"],
)
def test_scale_baked_at_the_traced_length(
    fixed: float, own: Callable[[], nn.Module], formula: str, opset: int, *, is_read: bool
) -> None:
    """Both numbers, the formula, the sizes and the line are told, also where the graph does not state its scale."""
    model = _scaled(fixed, opset)
    proof = _proof(model if is_read else replace(model, sites=()), own())
    assert (proof.outcome, proof.baked, proof.failure) == (Outcome.DISAGREES, (), "")
    (setting,) = proof.settings
    assert (setting.setting, setting.site, setting.fixed) == ("scale", "sdpa", f"{fixed:.6g}")
    assert setting.evidence.startswith(
        f"the scale of 'sdpa' is fixed at {fixed:.6g} = {formula}, the module's own at {_SAMPLE}; at "
    )
    assert f"the module's own is {setting.own} = {formula} (" in setting.evidence
    assert "user_modules.py:" in setting.evidence
    assert proof.reason == f"T{setting.evidence[1:]}."


@pytest.mark.parametrize("is_read", [True, False], ids=["stated", "by-trial"])
@pytest.mark.parametrize(
    "scale",
    [1 / 6, *(pytest.param(rule, marks=pytest.mark.slow) for rule in (0.3, 1.0, 1 / 8, 8**-0.5))],
    ids=["1/6", "0.3", "1", "1/d_k", "1/sqrt(d_k)"],
)
def test_constant_scale_of_the_module(scale: float, *, is_read: bool) -> None:
    """A scale that is the module's own constant is proved, also where it looks like a length's."""
    model = _scaled(scale)
    proof = _proof(model if is_read else replace(model, sites=()), Scaled(scale))
    assert (proof.settings, proof.reason) == ((), "")


def test_a_constant_of_the_file_that_is_not_the_modules() -> None:
    """Without a sign that it was fixed at a size, both scales and their difference are named; no size is."""
    (setting,) = _proof(_scaled(0.3), Scaled(0.24)).settings
    assert setting.evidence.startswith("the scale of 'sdpa' is 0.3 (+25 %); the module's is 0.24 (")


def test_lost_causality() -> None:
    """A file that hides nothing where the module is causal, at every size."""

    class Causal(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)

    (setting,) = _proof(_scaled(0.3), Causal()).settings
    assert (setting.setting, setting.fixed, setting.own) == ("is_causal", "it is False", "it is True")
    assert setting.evidence.startswith("attention 'sdpa' is not causal; the module's attention is (")


class _WrittenOut(nn.Module):
    """Attention of matrix products, which calls no function that could be heard."""

    def __init__(self, scale: float, *, is_causal: bool) -> None:
        super().__init__()
        self.scale, self.is_causal = scale, is_causal

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-2, -1) * self.scale
        if self.is_causal:
            hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, float("-inf"))
        return scores.softmax(-1) @ v


@pytest.mark.parametrize(
    ("module", "evidence"),
    [
        (_WrittenOut(0.3, is_causal=True), "attention 'sdpa' is not causal; the module's attention is"),
        (_WrittenOut(0.24, is_causal=False), "the scale of 'sdpa' is 0.3 (+25 %); the module's is 0.24"),
    ],
    ids=["causal", "scale"],
)
def test_settings_of_a_module_that_writes_attention_out(module: nn.Module, evidence: str) -> None:
    """They are read from an export of the module, since it calls no function with these arguments."""
    (setting,) = _proof(_scaled(0.3), module).settings
    assert setting.evidence == evidence


@pytest.mark.parametrize("module", [ScaledByLength, ScaledByLogLength])
def test_scale_that_follows(module: Callable[[], nn.Module]) -> None:
    """A scale that was moved onto the query is 1 in the graph, and that is no fault."""
    proof = _proof(_exported(module()), module())
    assert (proof.settings, proof.reason) == ((), "")


@pytest.mark.slow
def test_causality_of_a_length() -> None:
    """A flag that the module sets by its number of queries is named with both values."""
    proof = _proof(_without_limits(_exported(CausalWhenLong())), CausalWhenLong())
    (setting,) = proof.settings
    assert (setting.setting, setting.fixed, setting.own) == ("is_causal", "it is False", "it is True")
    assert setting.evidence.startswith(
        f"is_causal of 'sdpa' is fixed: at {_SAMPLE}, where the module was traced, it is False; at "
    )


def test_mask_of_a_length_with_its_limit() -> None:
    """Where the file states the lengths without a mask, it is right at all of them."""
    proof = _proof(_exported(MaskedWhenLong()), MaskedWhenLong())
    assert (proof.settings, proof.reason) == ((), "")
    (limit,) = proof.limits
    assert limit.tested[-1] == limit.largest


def test_mask_of_a_length() -> None:
    """A mask that the module gives at some lengths only is named."""
    proof = _proof(_without_limits(_exported(MaskedWhenLong())), MaskedWhenLong())
    (setting,) = proof.settings
    assert (setting.setting, setting.fixed, setting.own) == ("attn_mask", "none is given", "a mask is given")


@pytest.mark.slow
def test_another_fault_is_no_setting() -> None:
    """Where the settings agree, the failure keeps its own evidence."""

    class Shifted(Scaled):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return super().forward(q, k, v) + 0.5

    for sites in ((), None):
        model = _scaled(0.3)
        proof = _proof(model if sites is None else replace(model, sites=sites), Shifted())
        assert (proof.settings, proof.baked) == ((), ())
        assert proof.failure.startswith("It is wrong wherever it was tried, e.g. at ")
