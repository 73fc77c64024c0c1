"""Probes are legal at every size, and whatever right arithmetic answers them is right."""

from dataclasses import replace

import numpy as np
import pytest

from sdpa_onnx.core.attention.inputs import AttentionInputs, numpy_dtype
from sdpa_onnx.core.attention.masks import views_by_kv_head
from sdpa_onnx.core.attention.oracle import attend, split_heads
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.probes import PROBES, probes_for
from sdpa_onnx.core.attention.spec import AttentionCase, Dtype, Layout, MaskKind
from sdpa_onnx.core.judge.agreement import expect, judge
from sdpa_onnx.core.records.verdicts import Verdict
from tests.core.attentions import CASES, ODD_SIZES, case
from tests.core.by_name import find_probe
from tests.core.kernels import ARITHMETICS, KERNELS, run_kernel, run_torch

_RIGHT = (Verdict.OK, Verdict.ROUNDING_LEVEL)
_QUICK = {
    ("causal", Dtype.FLOAT32),
    ("float-causal-past", Dtype.FLOAT16),
    ("lengths-causal", Dtype.BFLOAT16),
    ("softcap-bool", Dtype.BFLOAT16),
    ("bsh-past-float", Dtype.FLOAT64),
}


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("name", [*CASES, *ODD_SIZES])
def test_shapes_and_types(name: str, dtype: Dtype) -> None:
    """Every probe has the shapes and type of its case and at most one NaN; a seed determines the arrays."""
    asked = replace((CASES | ODD_SIZES)[name], dtype=dtype)
    for probe in probes_for(asked.spec):
        drawn, again = probe.draw(asked, 3).named(), probe.draw(asked, 3).named()
        assert {key: array.shape for key, array in drawn.items()} == asked.input_shapes()
        for key, array in drawn.items():
            assert array.tobytes() == again[key].tobytes()
            assert array.flags.c_contiguous
            if key not in ("attn_mask", "nonpad_kv_seqlen"):
                assert array.dtype == numpy_dtype(dtype)
                kept = np.isfinite(array.astype(np.float64))
                assert kept.all() or (probe.name == "nan-seen" and key.endswith("value") and (~kept).sum() == 1)


def _answers(asked: AttentionCase, inputs: AttentionInputs) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """Outputs of correct implementations, emulated and real."""
    spec, fmt = asked.spec, ARITHMETICS[asked.dtype.value]
    plain = not (spec.softcap or spec.is_causal or spec.has_window or spec.mask is not MaskKind.NONE)
    # The sequential kernel knows no bias.
    kernels = {name: kernel for name, kernel in KERNELS.items() if plain or name != "sequential"}
    answers = {name: run_kernel(kernel, spec, inputs, fmt) for name, kernel in kernels.items()}
    if plain and not spec.has_past and spec.layout is Layout.BNSH:
        answers["torch"] = run_torch(spec, inputs, fmt)
    return answers


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=() if (name, dtype) in _QUICK else pytest.mark.slow)
        for name in (*CASES, "prime")
        for dtype in Dtype
    ],
)
def test_right_answers_are_right(name: str, dtype: Dtype) -> None:
    """No right arithmetic, emulated or torch's own, is called wrong or suspicious on a probe."""
    asked = replace((CASES | ODD_SIZES)[name], dtype=dtype)
    for probe in probes_for(asked.spec):
        inputs = probe.draw(asked, 7)
        expectation = expect(asked.spec, inputs, precision=find_precision(dtype))
        for kernel, output in _answers(asked, inputs).items():
            agreement = judge(expectation, output)
            assert agreement.verdict in _RIGHT, f"{probe.name} {kernel}: {agreement.diagnosis}"


def test_visible_keys_are_read_out() -> None:
    """One-hot values show each query's visible keys in its output."""
    asked = case("2x4x5", 2, is_causal=True, has_past=True, v_head_dim=7)
    inputs = find_probe("visible-keys").draw(asked, 0)
    seen = attend(asked.spec, inputs).output > 0
    assert seen[1, 3].tolist() == [[key <= query + 2 for key in range(7)] for query in range(4)]


def test_nan_is_seen_by_most_queries() -> None:
    """One NaN is in the most visible value and appears in exactly that column of the queries that attend to it."""
    asked = case("2x4x5", 2, is_causal=True, has_past=True)
    inputs = find_probe("nan-seen").draw(asked, 0)
    _, _, value = split_heads(asked.spec, inputs)
    (sample, head, key, column), *others = np.argwhere(np.isnan(value)).tolist()
    assert not others
    assert key <= 2
    out = np.isnan(attend(asked.spec, inputs).output)
    assert np.argwhere(out.any(axis=(2, 3))).tolist() == [[sample, 2 * head], [sample, 2 * head + 1]]
    assert out[sample, 2 * head : 2 * head + 2, :, column].all()
    assert out.sum() == 8
    nothing = find_probe("nan-seen").draw(ODD_SIZES["no-keys"], 0)
    assert all(np.isfinite(array).all() for array in nothing.named().values())


def test_poison_stands_behind_hidden_keys_alone() -> None:
    """Huge values and large scores belong to keys that no query sees, and there are such keys."""
    for asked in (CASES["bool"], CASES["lengths"], CASES["causal"]):
        inputs = find_probe("poison").draw(asked, 0)
        poisoned = np.abs(inputs.value[:, 0, :, 0].astype(np.float64)) > 1.0
        seen = views_by_kv_head(asked.spec, inputs)[:, 0] > 0
        assert poisoned.any()
        assert np.array_equal(poisoned, ~seen)
        assert np.abs(attend(asked.spec, inputs).output).max() <= 1.0


@pytest.mark.parametrize("name", ["bool", "float"])
def test_masked_rows(name: str) -> None:
    """The first, middle and last query of every sample, and the first sample, have no visible key."""
    asked = CASES[name]
    output = attend(asked.spec, find_probe("masked-rows").draw(asked, 0)).output
    assert not output[0].any()
    assert [bool(output[1, :, query].any()) for query in range(5)] == [False, True, False, True, False]
    lowest = CASES["float"]
    assert attend(lowest.spec, find_probe("lowest-mask").draw(lowest, 0)).output.min() >= 1.0


def test_masks_leave_every_other_query_a_key() -> None:
    """Outside the probe of masked rows, each query that position lets see keys sees one."""
    for seed in range(20):
        asked = CASES["bool-causal"]
        output = attend(asked.spec, find_probe("uniform-codes").draw(asked, seed)).output
        assert np.abs(output).sum(-1).all() or not asked.spec.is_causal


def test_every_probe_is_asked() -> None:
    """The cases of these tests ask every probe, and names are unique."""
    asked = {probe.name for asked in CASES.values() for probe in probes_for(asked.spec)}
    assert asked == {probe.name for probe in PROBES}
    assert len(asked) == len(PROBES)


@pytest.mark.parametrize("empty", ["batch_size", "q_seq_len", "kv_seq_len"])
def test_3d_cases_without_an_element(empty: str) -> None:
    """Probes of the 3-D layout keep the width of all heads where a size is 0."""
    asked = replace(CASES["bsh-past-float"], **{empty: 0})
    for probe in probes_for(asked.spec):
        drawn = probe.draw(asked, 0).named()
        assert {name: array.shape for name, array in drawn.items()} == asked.input_shapes()
