"""The score tests: each names its own mistake with the right size, none speaks of a right output."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention import stages
from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.oracle import attend
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, MaskKind
from sdpa_onnx.core.judge.agreement import Agreement, expect, judge
from sdpa_onnx.core.judge.directions import Direction, SizedMistake
from sdpa_onnx.core.records.verdicts import Verdict
from tests.core.kernels import ARITHMETICS, KERNELS, run_kernel

Array = NDArray[Any]
SPEC = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=64)


def drawn(dtype: str, *, spec: AttentionSpec = SPEC, keys: int = 128, queries: int = 48) -> AttentionInputs:
    case = AttentionCase(spec=spec, q_seq_len=queries, kv_seq_len=keys, dtype=Dtype(dtype))
    return draw_inputs(case, seed=5)


def judged(dtype: str, actual: Array, inputs: AttentionInputs, spec: AttentionSpec = SPEC) -> Agreement:
    return judge(expect(spec, inputs, precision=find_precision(dtype)), actual)


def computed(dtype: str, inputs: AttentionInputs, spec: AttentionSpec = SPEC) -> Array:
    return run_kernel(KERNELS["naive"], spec, inputs, ARITHMETICS[dtype])


def leaked(share: float) -> Callable[[str, AttentionInputs], Array]:
    """That share of the weight spread equally over all keys."""

    def plant(dtype: str, inputs: AttentionInputs) -> Array:
        mean = inputs.value.astype(np.float64).mean(2, keepdims=True).repeat(2, 1)
        return ((1 - share) * attend(SPEC, inputs).output + share * mean).astype(ARITHMETICS[dtype].storage)

    return plant


def scaled(factor: float) -> Callable[[str, AttentionInputs], Array]:
    return lambda dtype, inputs: computed(dtype, inputs, replace(SPEC, scale=SPEC.scale_value * factor))


def without(part: slice) -> Callable[[str, AttentionInputs], Array]:
    return lambda dtype, inputs: computed(
        dtype, replace(inputs, key=inputs.key[:, :, part], value=inputs.value[:, :, part])
    )


MISTAKES = {
    "scale +1.9 %": (Direction.SCALE, 0.019, scaled(1.019)),
    "scale -3 %": (Direction.SCALE, -0.03, scaled(0.97)),
    "last key": (Direction.LAST_KEY, 1.0, without(slice(None, -1))),
    "first key": (Direction.FIRST_KEY, 1.0, without(slice(1, None))),
    "leak of 5 %": (Direction.LEAK, 0.05, leaked(0.05)),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_size(name: str, dtype: str) -> None:
    """The finding that explains most is the mistake planted, its estimate near its size, in every format."""
    direction, size, plant = MISTAKES[name]
    inputs = drawn(dtype)
    found = judged(dtype, plant(dtype, inputs), inputs)
    assert found.verdict in (Verdict.WRONG, Verdict.SUSPICIOUS)
    first = found.findings[0]
    assert first.name == direction.value
    # A bfloat16 scale is itself off by up to 0.4 %.
    assert first.estimate == pytest.approx(size, abs=0.005 if direction is Direction.SCALE else 0.02 * abs(size) + 1e-4)
    assert 0 <= first.standard_error < 0.1 * abs(size)
    assert 0.25 < first.share <= 1.0
    assert found.diagnosis.endswith(first.says)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_right_output_has_no_finding(kernel: str, dtype: str) -> None:
    """Whatever the order of evaluation, flat to sharp softmax."""
    for spread in (0.3, 4.0):
        case = AttentionCase(spec=SPEC, q_seq_len=48, kv_seq_len=128, dtype=Dtype(dtype))
        inputs = draw_inputs(case, spread=spread, seed=6)
        found = judged(dtype, run_kernel(KERNELS[kernel], SPEC, inputs, ARITHMETICS[dtype]), inputs)
        assert (found.verdict, found.findings) == (Verdict.OK, ())


@pytest.mark.parametrize(("dtype", "inside", "outside"), [("float16", 1.0005, 1.003), ("bfloat16", 1.003, 1.02)])
def test_a_scale_rounded_to_the_format_is_legitimate(dtype: str, inside: float, outside: float) -> None:
    """Two roundings of the storage format on the scale are no finding, a few more are."""
    inputs = drawn(dtype)
    assert judged(dtype, scaled(inside)(dtype, inputs), inputs).findings == ()
    assert judged(dtype, scaled(outside)(dtype, inputs), inputs).findings[0].name == "scale"


def test_seven_rows_are_too_few() -> None:
    """Scatter between rows needs eight of them."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=64)
    wrong = replace(spec, scale=spec.scale_value * 1.02)
    for queries, names in ((7, []), (8, ["scale"])):
        inputs = drawn("float32", spec=spec, queries=queries)
        found = judged("float32", computed("float32", inputs, wrong), inputs, spec)
        assert [finding.name for finding in found.findings][:1] == names


def test_a_common_offset_rounded_away_is_no_leak() -> None:
    """Values of 1000 and a little in bfloat16: every row rounds to the same number, which looks like equal weights."""
    inputs = drawn("bfloat16")
    inputs = replace(inputs, value=(inputs.value.astype(np.float32) + 1000).astype(inputs.value.dtype))
    found = judged("bfloat16", computed("bfloat16", inputs), inputs)
    assert found.findings == ()
    assert found.verdict is Verdict.OK


def test_equal_weights_have_no_direction() -> None:
    """With queries of zero no scale and no leak can show; only numerical dust is left, and it is ignored."""
    inputs = drawn("float64")
    inputs = replace(inputs, query=np.zeros_like(inputs.query))
    for kernel in KERNELS.values():
        assert judged("float64", run_kernel(kernel, SPEC, inputs, ARITHMETICS["float64"]), inputs).findings == ()


def test_hidden_rows_and_single_keys_have_no_direction() -> None:
    """A row without keys and a row with one are no evidence for or against a missing key."""
    spec = replace(SPEC, mask=MaskKind.BOOL)
    inputs = drawn("float32", spec=spec)
    mask = np.ones((1, 1, 48, 128), dtype=bool)
    mask[:, :, :3], mask[:, :, 3:6, 1:] = False, False
    inputs = replace(inputs, attn_mask=mask)
    found = judged("float32", computed("float32", inputs, spec), inputs, spec)
    assert (found.verdict, found.findings) == (Verdict.OK, ())
    lost = mask.copy()
    lost[..., 127] = False
    found = judged("float32", computed("float32", replace(inputs, attn_mask=lost), spec), inputs, spec)
    assert found.findings[0].name == "last key missing"


def test_parts_do_not_change_the_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut into parts of a few rows, the same estimates."""
    inputs = drawn("float16")
    actual = scaled(1.01)("float16", inputs)
    whole = judged("float16", actual, inputs).findings
    monkeypatch.setattr(stages, "_PART_ELEMENTS", 1000)
    cut = judged("float16", actual, inputs).findings
    assert [finding.name for finding in cut] == [finding.name for finding in whole]
    for one, other in zip(cut, whole, strict=True):
        assert one.estimate == pytest.approx(other.estimate, rel=1e-6)
        assert one.standard_error == pytest.approx(other.standard_error, rel=1e-6)


def test_a_gross_fault_is_not_laid_to_a_direction() -> None:
    """A scale eight times too large, or a head of zeros, is no error of a few percent."""
    inputs = drawn("float32")
    gross = judged("float32", scaled(8.0)("float32", inputs), inputs)
    assert gross.verdict is Verdict.WRONG
    assert "The scale" not in gross.diagnosis
    zeros = computed("float32", inputs).copy()
    zeros[0, 1] = 0
    assert judged("float32", zeros, inputs).findings == ()


@pytest.mark.parametrize(
    ("name", "estimate", "standard_error", "sentence"),
    [
        ("scale", 0.0191, 0.001, "The scale is off by 1.9 % (+- 0.1 %)."),
        ("scale", -0.0024, 0.00002, "The scale is off by -0.24 % (+- 0.002 %)."),
        ("last key missing", 0.98, 0.02, "The last visible key of each query is missing (0.98 +- 0.02 of its weight)."),
        (
            "first key missing",
            1.0,
            0.001,
            "The first visible key of each query is missing (1.00 +- 0.00 of its weight).",
        ),
        ("uniform leak", 0.05, 0.001, "Equal weight leaks to all visible keys: 5 % (+- 0.1 %) of the total weight."),
    ],
)
def test_the_sentence_of_each_finding(name: str, estimate: float, standard_error: float, sentence: str) -> None:
    """The sentence names the mistake, its size and its standard error."""
    found = SizedMistake(
        name=name, estimate=estimate, standard_error=standard_error, share=0.5, is_refitted=name == "scale"
    )
    assert found.says == sentence
