"""Every planted fault is caught by the inputs of a check, through the real way of an output."""

from dataclasses import replace

import onnx
import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, MaskKind
from sdpa_onnx.core.faults.planted_faults import faults_for
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.verify.plant_faults import PlantedFault, prove
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model
from tests.core.by_name import find_fault
from tests.graph.models import product
from tests.workflows.faulty_runtime import FaultyRuntime

_CAUSAL = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8, v_head_dim=6, is_causal=True)
_MASKED = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8, has_past=True, mask=MaskKind.BOOL)
_SIZES = {"batch_size": 2, "q_seq_len": 5, "kv_seq_len": 9}


def _model(spec: AttentionSpec, dtype: Dtype = Dtype.FLOAT32) -> OnnxModel:
    return load_model(build_attention_model(spec, opset=23, dtype=dtype))


def _names(found: list[PlantedFault], *, caught: bool, shows: bool = True) -> set[str]:
    return {each.fault.name for each in found if (each.caught_by is not None) == caught and each.shows == shows}


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, pytest.param(Dtype.FLOAT16, marks=pytest.mark.slow)])
def test_probes_catch_every_fault(dtype: Dtype) -> None:
    """With the probes every fault that shows is caught, but half precision sums of nine keys in half precision."""
    found = prove(_model(_CAUSAL, dtype), get_runtime("ort-cpu"), CheckOptions(sizes=_SIZES, probes=True))
    assert _names(found, caught=False) <= ({"float16-accumulation"} if dtype is Dtype.FLOAT16 else set())
    # More keys than any query sees, more than one query, and fewer keys than a block.
    never = {"causal-one-query-sees-all", "last-key-missing", "cache-blocks-reversed-16", "key-blocks-reversed-16"}
    assert _names(found, caught=False, shows=False) == never
    assert {each.caught_by.split()[0] for each in found if each.caught_by} == {"probe"}


@pytest.mark.slow
def test_cache_faults_are_planted_too() -> None:
    """A model that gives its cache back is asked for the cache's faults, which are caught by the cache."""
    sizes = {**_SIZES, "past_seq_len": 3}
    found = prove(_model(_MASKED), get_runtime("ort-cpu"), CheckOptions(sizes=sizes, spreads=(1.0,)))
    assert {name for name in _names(found, caught=True) if name.startswith("present")} == {
        f"present-{part}-{kind}"
        for part in ("key", "value")
        for kind in (
            "zero",
            "nan",
            "heads-reversed",
            "past-after-new",
            "last-missing",
            "not-updated",
            "past-stale",
            "past-of-first-sample",
            "swapped",
        )
    }


def test_cache_faults_are_caught_by_the_cache() -> None:
    """A spoilt cache is noticed though the output is right."""
    faults = faults_for(_MASKED, outputs=("present_key", "present_value"))
    check = CheckOptions(sizes={**_SIZES, "past_seq_len": 3}, spreads=(1.0,))
    found = prove(_model(_MASKED), get_runtime("ort-cpu"), check, faults=faults)
    assert [each.caught_by for each in found] == ["spread 1"] * len(faults)


def test_flat_inputs_miss_faults() -> None:
    """Inputs that cannot tell are found out: small logits hide a softmax without its maximum."""
    faults = [find_fault(name) for name in ("scale-missing", "maximum-not-subtracted", "causal-strict", "heads-tiled")]
    flat = CheckOptions(sizes=_SIZES, spreads=(0.3,))
    found = prove(_model(_CAUSAL), get_runtime("ort-cpu"), flat, faults=faults)
    assert [(each.fault.name, each.caught_by) for each in found] == [
        ("scale-missing", "spread 0.3"),
        ("maximum-not-subtracted", None),
        ("causal-strict", "spread 0.3"),
        ("heads-tiled", "spread 0.3"),
    ]


def test_wrong_runtime_does_not_hide_what_the_inputs_would_catch() -> None:
    """Where a runtime is wrong by itself, the fault is planted in the oracle's output."""
    wrong = FaultyRuntime(get_runtime("ort-cpu"), find_fault("scale-missing"))
    check = CheckOptions(sizes=_SIZES, spreads=(1.0,))
    found = prove(_model(_CAUSAL), wrong, check, faults=[find_fault("causal-strict")])
    assert [(each.caught_by, each.shows) for each in found] == [("spread 1", True)]


@pytest.mark.parametrize("fault", ["window-left-one-more", "output-stale", "float16-in-secret", "heads-tiled"])
def test_faulty_runtime_is_verified_wrong(fault: str) -> None:
    """The whole check calls a faulty runtime wrong and names what it can."""
    spec = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8, is_causal=True, left_window=2)
    model = load_model(build_attention_model(spec, opset=25, dtype=Dtype.FLOAT32))
    planted = find_fault(fault)
    runtime = FaultyRuntime(get_runtime("onnx-reference"), planted)
    check = CheckOptions(sizes=_SIZES, spreads=(1.0,))
    (record,) = check_model(model, runtime, check, target="t", expectations=ExpectationCache())
    assert record.verdict is Verdict.WRONG
    named = {"float16-in-secret": "it behaves like float16", "output-stale": ""}.get(fault, planted.says)
    assert named in record.reason


@pytest.mark.parametrize("name", ["ort-cpu", pytest.param("torch", marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.FLOAT16])
@pytest.mark.parametrize("spec", [_CAUSAL, _MASKED], ids=["causal", "masked-past"])
def test_right_runtimes_answer_every_probe(spec: AttentionSpec, dtype: Dtype, name: str) -> None:
    """Real runtimes are right, or at rounding level, on every probe."""
    sizes = {**_SIZES, "past_seq_len": 3} if spec.has_past else _SIZES
    check = CheckOptions(sizes=sizes, spreads=(), probes=True)
    runtime = get_runtime(name)
    records = check_model(_model(spec, dtype), runtime, check, target="t", expectations=ExpectationCache())
    assert len(records) > 8
    assert {record.verdict for record in records} <= {Verdict.OK, Verdict.ROUNDING_LEVEL}


def test_other_models_are_refused() -> None:
    """A model that is no attention alone is refused in words."""
    with pytest.raises(ModelError) as refused:
        prove(load_model(product()), get_runtime("ort-cpu"), CheckOptions(sizes={}))
    assert str(refused.value) == (
        "Faults can be planted only in a model that is one attention and nothing around it. Export the attention alone."
    )


@pytest.mark.parametrize("mask", ["mask-float", "mask-bool", "rank-3", "one-sample"])
def test_masks_of_heads_samples_and_queries_are_told_apart(mask: str) -> None:
    """The mask of head 0, or of the next head, sample or query, used for all, is found by a check without options."""
    shape: list[int | str] = {
        "rank-3": [4, "q_seq_len", "kv_seq_len"],
        "one-sample": [1, 4, "q_seq_len", "kv_seq_len"],
    }.get(mask, ["batch_size", 4, "q_seq_len", "kv_seq_len"])
    kind = MaskKind.BOOL if mask == "mask-bool" else MaskKind.FLOAT
    proto = onnx.load_from_string(
        load_model(
            build_attention_model(replace(_MASKED, has_past=False, mask=kind), opset=23, dtype=Dtype.FLOAT32)
        ).to_bytes()
    )
    element = onnx.TensorProto.BOOL if kind is MaskKind.BOOL else onnx.TensorProto.FLOAT
    proto.graph.input[3].CopyFrom(onnx.helper.make_tensor_value_info("attn_mask", element, shape))
    faults = [find_fault(f"mask-{which}-{axis}") for which in ("first", "next") for axis in ("head", "batch", "row")]
    found = prove(load_model(proto), get_runtime("ort-cpu"), CheckOptions(sizes=_SIZES), faults=faults)
    caught = _names(found, caught=True)
    assert caught >= {"mask-first-head", "mask-next-head"}
    assert not _names(found, caught=False)
    assert {name for name in caught if name.endswith(("batch", "row"))} == {
        f"mask-{which}-{axis}"
        for which in ("first", "next")
        for axis, at in (("batch", -4), ("row", -2))
        if len(shape) >= -at and shape[at] != 1
    }
