"""The catalog: its figures, its look-up, and that a missing special feature of a layer is detected."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sdpa_onnx.catalog import CATALOG, CatalogEntry, entry_names, find_entry
from sdpa_onnx.core.attention.inputs import draw_inputs
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, MaskKind, ScaleRule
from sdpa_onnx.core.judge.agreement import expect, judge
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Verdict
from sdpa_onnx.errors import CaseError, PlanError
from sdpa_onnx.graph.attention_node import minimum_opset
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, get_runtime
from sdpa_onnx.torch_export.exporter import export_spec
from sdpa_onnx.torch_export.modules import FOUNDING_USES
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.verify.verify_model import verify

# name -> figures of the source: query heads, key/value heads, d_k, d_v, then differences from plain attention.
_FIGURES: dict[str, tuple[tuple[int, int, int, int], dict[str, Any]]] = {
    "transformer-base/encoder-self": ((8, 8, 64, 64), {}),
    "transformer-base/decoder-self": ((8, 8, 64, 64), {"is_causal": True}),
    "transformer-base/encoder-decoder": ((8, 8, 64, 64), {}),
    "bert-base/self": ((12, 12, 64, 64), {}),
    "bert-base/self-padded": ((12, 12, 64, 64), {"mask": MaskKind.LENGTHS}),
    "gpt2/self": ((12, 12, 64, 64), {"is_causal": True}),
    "llama-3-8b/self": ((32, 8, 128, 128), {"is_causal": True}),
    "llama-3-8b/decode": ((32, 8, 128, 128), {"is_causal": True, "has_past": True}),
    "llama-3-8b/decode-chunk": ((32, 8, 128, 128), {"is_causal": True, "has_past": True}),
    "mistral-7b/self": ((32, 8, 128, 128), {"is_causal": True, "left_window": 4095}),
    "mistral-7b/decode": ((32, 8, 128, 128), {"is_causal": True, "left_window": 4095, "has_past": True}),
    "gemma-2-9b/local": ((16, 8, 256, 256), {"is_causal": True, "left_window": 4095, "softcap": 50.0}),
    "gemma-2-27b/local": (
        (32, 16, 128, 128),
        {"is_causal": True, "left_window": 4095, "softcap": 50.0, "scale": 144**-0.5},
    ),
    "gemma-2-27b/global": ((32, 16, 128, 128), {"is_causal": True, "softcap": 50.0, "scale": 144**-0.5}),
    "vit-b-16/self": ((12, 12, 64, 64), {}),
    "whisper-base/cross": ((8, 8, 64, 64), {}),
    "whisper-large-v3/cross": ((20, 20, 64, 64), {}),
    "t5-base/encoder-self": ((12, 12, 64, 64), {"mask": MaskKind.FLOAT, "scale": ScaleRule.NONE}),
    "falcon-7b/self": ((71, 1, 64, 64), {"is_causal": True}),
    "deepseek-v2-lite/mla-expanded": ((16, 16, 192, 128), {"is_causal": True}),
    "deepseek-v3/mla-expanded": ((128, 128, 192, 128), {"is_causal": True}),
}
# Model width over query heads, if the source states the width instead of d_k.
_WIDTHS = {
    "transformer-base/encoder-self": 512,
    "bert-base/self": 768,
    "gpt2/self": 768,
    "llama-3-8b/self": 4096,
    "vit-b-16/self": 768,
    "whisper-base/cross": 512,
    "whisper-large-v3/cross": 1280,
    "falcon-7b/self": 4544,
}

_SQUARE = {"batch_size": 1, "q_seq_len": 31, "kv_seq_len": 31}
_STEP = {"batch_size": 1, "q_seq_len": 1, "kv_seq_len": 1, "past_seq_len": 4200}
_SPREADS = (1.0, 4.0)


def judged(model: OnnxModel, sizes: dict[str, int]) -> list[AgreementRecord]:
    return list(verify(model, ["ort-cpu"], [CheckOptions(sizes=sizes, spreads=_SPREADS)]))


def mistaken(spec: AttentionSpec, **changes: Any) -> OnnxModel:
    """A graph with other figures that claims to be the spec."""
    model = export_spec(replace(spec, **changes), opset=minimum_opset(spec))
    (site,) = model.sites
    return replace(model, sites=(replace(site, spec=spec),))


def outcomes(records: list[AgreementRecord]) -> set[Outcome]:
    return {record.outcome for record in records}


def test_figures_are_the_published_ones() -> None:
    """Every entry has the figures of its source and no other feature."""
    assert {entry.name: entry.spec for entry in CATALOG} == {
        name: AttentionSpec(q_num_heads=q, kv_num_heads=kv, head_dim=d, v_head_dim=dv, **options)
        for name, ((q, kv, d, dv), options) in _FIGURES.items()
    }


@pytest.mark.parametrize("name", _WIDTHS)
def test_heads_fill_the_model_width(name: str) -> None:
    """The number of heads times d_k is the width in the source."""
    spec = find_entry(name).spec
    assert spec.q_num_heads * spec.head_dim == _WIDTHS[name]


@pytest.mark.parametrize("entry", CATALOG, ids=entry_names())
def test_entry_is_complete(entry: CatalogEntry) -> None:
    """Names are file-name safe, each entry has a title, a source and a case of its usual sizes."""
    model, _, layer = entry.name.partition("/")
    assert model
    assert layer
    assert set(entry.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-/")
    assert entry.title
    assert entry.source
    case = entry.case()
    assert (case.spec, case.q_seq_len, case.past_seq_len) == (entry.spec, entry.q_seq_len, entry.past_seq_len)


def test_names_are_unique_and_the_founding_uses_are_there() -> None:
    """Names are unique, and the paper's three uses keep their names."""
    assert len(set(entry_names())) == len(CATALOG) >= 13
    assert {f"transformer-base/{use}" for use in FOUNDING_USES} <= set(entry_names())


def test_usual_sizes_cross_the_windows() -> None:
    """At the usual sizes, each window hides some keys."""
    for entry in CATALOG:
        if entry.spec.has_window:
            assert entry.case().total_seq_len > entry.spec.left_window + 1, entry.name


def test_sizes_that_do_not_fit_are_refused() -> None:
    """A past size without a cache is refused when the entry is created."""
    with pytest.raises(CaseError):
        replace(find_entry("gpt2/self"), past_seq_len=3)


def test_unknown_name_offers_the_nearest() -> None:
    """For a misspelt name the error suggests the nearest, for any other it lists all names."""
    with pytest.raises(PlanError) as near:
        find_entry("mistral-7b/sef")
    assert str(near.value) == "There is no catalog entry 'mistral-7b/sef'. Did you mean 'mistral-7b/self'?"
    with pytest.raises(PlanError) as strange:
        find_entry("0")
    assert str(strange.value) == f"There is no catalog entry '0'. Known: {', '.join(entry_names())}."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes", "sizes"),
    [
        pytest.param("gemma-2-27b/global", {"softcap": 0.0}, _SQUARE, id="gemma-without-softcap"),
        pytest.param("gemma-2-27b/global", {"scale": ScaleRule.INVERSE_SQRT}, _SQUARE, id="gemma-default-scale"),
        pytest.param("gemma-2-9b/local", {"softcap": 0.0}, _SQUARE, id="gemma-local-without-softcap"),
        pytest.param("t5-base/encoder-self", {"scale": ScaleRule.INVERSE_SQRT}, _SQUARE, id="t5-default-scale"),
        pytest.param("llama-3-8b/self", {"is_causal": False}, _SQUARE, id="llama-sees-the-future"),
        pytest.param("deepseek-v2-lite/mla-expanded", {"scale": 128**-0.5}, _SQUARE, id="deepseek-scale-of-d-v"),
        pytest.param(
            "mistral-7b/decode", {"left_window": -1}, _STEP, id="mistral-without-window", marks=pytest.mark.slow
        ),
        pytest.param(
            "mistral-7b/decode", {"left_window": 4096}, _STEP, id="mistral-window-off-by-one", marks=pytest.mark.slow
        ),
    ],
)
def test_a_layer_without_its_feature_is_called_wrong(name: str, changes: dict[str, Any], sizes: dict[str, int]) -> None:
    """The correct graph passes at these sizes, and the graph without the feature is proved wrong."""
    spec = find_entry(name).spec
    assert outcomes(judged(export_spec(spec, opset=minimum_opset(spec)), sizes)) == {Outcome.OK}
    assert Outcome.DISAGREES in outcomes(judged(mistaken(spec, **changes), sizes))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mistral-7b/self", "gemma-2-9b/local", "gemma-2-27b/local"])
def test_reduced_window_is_judged(name: str) -> None:
    """With a window of 7 keys at length 31: correct as exported, wrong without a window or off by one."""
    spec = replace(find_entry(name).spec, left_window=6)
    assert outcomes(judged(export_spec(spec, opset=25), _SQUARE)) == {Outcome.OK}
    for window in (-1, 5, 7):
        assert outcomes(judged(mistaken(spec, left_window=window), _SQUARE)) == {Outcome.DISAGREES}, window


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mistral-7b/self", "gemma-2-9b/local", "gemma-2-27b/local"])
@pytest.mark.parametrize(("opset", "form"), [(18, "decomposed"), (25, "attention")])
def test_full_window_is_judged_on_fewer_heads(name: str, opset: int, form: str) -> None:
    """The real window at 4160 keys, with two query heads and one key head: correct as exported, wrong without it."""
    spec = replace(find_entry(name).spec, q_num_heads=2, kv_num_heads=1)
    sizes = {"batch_size": 1, "q_seq_len": 4160, "kv_seq_len": 4160}
    right = export_spec(spec, opset=opset, form=form)  # type: ignore[arg-type]  # one of the two forms
    assert outcomes(judged(right, sizes)) == {Outcome.OK}
    assert Outcome.DISAGREES in outcomes(judged(mistaken(spec, left_window=-1), sizes))


def test_position_bias_of_t5_is_judged() -> None:
    """A graph without the bias is proved wrong; with the bias it is correct."""
    spec = find_entry("t5-base/encoder-self").spec
    inputs = draw_inputs(AttentionCase(spec=spec, q_seq_len=13), spread=1.0)
    expectation = expect(spec, inputs, precision=find_precision("float32"))
    feeds = inputs.onnx_feeds()
    with get_runtime("ort-cpu").load(export_spec(spec), LoadOptions()) as session:
        kept = session.run(feeds)["Y"]
        forgotten = session.run({**feeds, "attn_mask": np.zeros_like(feeds["attn_mask"])})["Y"]
    assert judge(expectation, kept).verdict is Verdict.OK
    assert judge(expectation, forgotten).verdict is Verdict.WRONG
