"""A wrong output is named by the reading, scale or arithmetic that made it; a right one by none."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs, numpy_dtype
from sdpa_onnx.core.attention.oracle import attend
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.spec import AttentionCase, Dtype
from sdpa_onnx.core.faults.diagnosis import Explanation, explain
from sdpa_onnx.core.faults.planted_faults import right_output
from sdpa_onnx.core.faults.readings import READINGS
from tests.core.attentions import CASES, case
from tests.core.by_name import find_fault, find_probe
from tests.core.kernels import ARITHMETICS, naive, run_kernel

# Readings whose output another, earlier one gives too: with the scale 1/sqrt(d), twice the scale is 1/d.
_SAME = {"scale-twice": "scale-inverse", "scale-of-value": "scale-ignored"}
# Blocks need more keys than these cases have, see test_key_readings.py.
_NAMED = [reading.name for reading in READINGS if reading.name not in _SAME and "-blocks-" not in reading.name]

# Readings that ordinary numbers do not show.
_ASKED_BY = {"lowest-is-hidden": "lowest-mask", "mask-times-scale": "graded-mask"} | {
    f"masked-row-{kind}": "masked-rows" for kind in ("nan", "mean", "unmasked", "mean-of-allowed")
}

Array = NDArray[np.generic]


def _planted(asked: AttentionCase, inputs: AttentionInputs, fault: str) -> Array:
    right = {OutputRole.OUTPUT: right_output(asked.spec, inputs)}
    return find_fault(fault).plant(asked.spec, inputs, right, np.random.default_rng(3))[OutputRole.OUTPUT]


def _explained(asked: AttentionCase, inputs: AttentionInputs, actual: Array) -> Explanation | None:
    return explain(asked.spec, inputs, actual, precision=asked.dtype.value)


def _inputs(asked: AttentionCase, seed: int = 1) -> AttentionInputs:
    """Ordinary numbers under the masks of the probes, which hide keys in every place."""
    drawn = draw_inputs(asked, seed=seed)
    if asked.spec.mask.value not in ("bool", "float"):
        return drawn
    return replace(drawn, attn_mask=find_probe("uniform-codes").draw(asked, seed).attn_mask)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, pytest.param(Dtype.BFLOAT16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", _NAMED)
def test_reading_is_named(name: str, dtype: Dtype) -> None:
    """Each reading is found from its own output, on the first case where no earlier reading has the same output."""
    fault, named = find_fault(name), set()
    for asked in CASES.values():
        if fault.applies(asked.spec):
            typed = replace(asked, dtype=dtype)
            probe = _ASKED_BY.get(name)
            inputs = _inputs(typed) if probe is None else find_probe(probe).draw(typed, 1)
            found = _explained(typed, inputs, _planted(typed, inputs, name))
            named.add("" if found is None else found.reading)
            if name in named:
                return
    pytest.fail(f"{name} is called {named}.")


def test_named_with_its_date() -> None:
    """A reading that a text or an earlier runtime has is named with it."""
    asked = CASES["softcap-bool"]
    inputs = find_probe("softcap-floor").draw(asked, 1)
    assert _explained(asked, inputs, _planted(asked, inputs, "softcap-after-mask")) == Explanation(
        says="the softcap is applied after the mask, so that hidden keys leak into the output",
        dated="ONNX's text before onnx PR 7867 (onnx up to 1.21), onnxruntime's CPU kernel up to 1.25",
        reading="softcap-after-mask",
    )


@pytest.mark.parametrize("factor", [1.019, 0.981, 0.3, 5.0])
@pytest.mark.parametrize("dtype", [Dtype.FLOAT64, Dtype.FLOAT32, Dtype.FLOAT16])
def test_scale_is_measured(factor: float, dtype: Dtype) -> None:
    """A wrong scale is named with its size, near 1 in percent."""
    asked = replace(case("2x16x40", head_dim=32), dtype=dtype)
    inputs = draw_inputs(asked, spread=2.0)
    wrong = replace(asked.spec, scale=factor * asked.spec.scale_value)
    found = _explained(asked, inputs, right_output(wrong, inputs))
    expected = {
        1.019: "the scale is off by 1.9 %",
        0.981: "the scale is off by -1.9 %",
        0.3: "the scale is 0.3 times the right one",
        5.0: "the scale is 5 times the right one",
    }
    assert found == Explanation(says=expected[factor], reading="scale-off")


@pytest.mark.parametrize("name", ["tf32", "float16", "bfloat16"])
def test_lower_precision_is_named(name: str) -> None:
    """An output of float32 that was computed in a shorter format is named by it."""
    asked = case("2x16x40", head_dim=32)
    inputs = draw_inputs(asked, spread=2.0)
    found = _explained(asked, inputs, _planted(asked, inputs, f"{name}-in-secret"))
    assert found == Explanation(says=f"it behaves like {name}", reading="lower-precision")


@pytest.mark.parametrize("shape", ["1x1x8", "2x16x40"])
def test_cut_off_operands_are_lower_precision(shape: str) -> None:
    """Operands that lose their last bits without rounding err to one side, and are lower precision all the same."""
    asked = case(shape, head_dim=32)
    inputs = draw_inputs(asked, spread=2.0)
    kept = np.uint32(0xFFFFE000)  # the bits of tf32
    cut = {word: (array.view(np.uint32) & kept).view(np.float32) for word, array in inputs.named().items()}
    found = _explained(asked, inputs, right_output(asked.spec, AttentionInputs(**cut)))
    assert found == Explanation(says="it behaves like tf32", reading="lower-precision")


def _element(output: Array) -> Array:
    output[1, 2, 3, 4] *= 1.5
    return output


def _head(output: Array) -> Array:
    output[:, 2] += 1
    return output


def _unwritten(output: Array) -> Array:
    output[:, :, 3] = 0
    return output


def _holed(output: Array) -> Array:
    output[0, 1, 2, 5:7] = np.nan
    return output


@pytest.mark.parametrize(
    ("change", "reading", "says"),
    [
        (_element, "one-element", "one element differs, at (batch, head, query, column) (1, 2, 3, 4)"),
        (_head, "few-elements", "80 of 320 elements differ, all in head 2"),
        (_unwritten, "zeros", "64 of 320 elements are zero, all in query 3"),
        (_holed, "not-finite", "2 of 320 elements are NaN, all in query 2 of head 1 of sample 0"),
        (np.zeros_like, "all-zero", "the output is zero everywhere"),
        (lambda output: np.full_like(output, np.nan), "all-not-finite", "every element is NaN"),
        (lambda output: output[:, :, :1].repeat(5, axis=2), "constant-rows", "the output is the same for every query"),
    ],
)
def test_places_are_named(change: object, reading: str, says: str) -> None:
    """Errors that no reading explains are described by their positions."""
    asked = CASES["plain"]
    inputs = draw_inputs(asked)
    wrong = change(right_output(asked.spec, inputs).copy())  # type: ignore[operator]
    assert _explained(asked, inputs, wrong) == Explanation(says=says, reading=reading)


def test_clamped_values_are_named() -> None:
    """Values beyond a limit that all become the limit."""
    asked = CASES["plain"]
    inputs = draw_inputs(asked)
    right = right_output(asked.spec, inputs)
    limit = np.float32(0.8 * np.abs(right).max())
    found = _explained(asked, inputs, np.clip(right, -limit, limit))
    assert found is not None
    assert found.reading == "clamped"
    assert f" elements are {limit:.6g} instead of a larger number" in found.says


def test_flushed_numbers_are_named() -> None:
    """Subnormal numbers of float16 that become zero are described as that, not as missing elements."""
    asked = replace(CASES["plain"], dtype=Dtype.FLOAT16)
    drawn = draw_inputs(asked)
    inputs = replace(drawn, value=(drawn.value.astype(np.float64) * 2.0**-14).astype(np.float16))
    right = right_output(asked.spec, inputs)
    flushed = np.where(np.abs(right) < 2.0**-14, np.float16(0), right)
    found = _explained(asked, inputs, flushed)
    assert found is not None
    assert (found.reading, found.says.partition(" of ")[2][4:]) == (
        "flushed",
        "elements are zero, all of them subnormal numbers of float16: flushed",
    )


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("name", ["plain", "bool-causal", "softcap-float", "bsh-past-float"])
def test_right_output_has_no_explanation(name: str, dtype: Dtype) -> None:
    """Ordinary rounding errors get no explanation."""
    asked = replace(CASES[name], dtype=dtype)
    inputs = _inputs(asked)
    output = run_kernel(naive, asked.spec, inputs, ARITHMETICS[dtype.value])
    assert _explained(asked, inputs, output) is None


def test_nothing_fits_another_output() -> None:
    """The output of other inputs, another shape and no output at all have no explanation."""
    asked = CASES["plain"]
    inputs = draw_inputs(asked)
    assert _explained(asked, inputs, _planted(asked, inputs, "output-stale")) is None
    assert _explained(asked, inputs, np.zeros((2, 4, 5, 7), dtype=np.float32)) is None
    empty = case("2x0x4")
    none = draw_inputs(empty)
    assert _explained(empty, none, right_output(empty.spec, none)) is None


def test_big_case_is_sampled() -> None:
    """On a big case some queries are tried, among them a worst one, and the name is found all the same."""
    asked = case("1x2100x2100", q_num_heads=2, is_causal=True)
    inputs = draw_inputs(asked)
    found = _explained(asked, inputs, _planted(asked, inputs, "causal-strict"))
    assert found is not None
    assert found.reading == "causal-strict"
    truth = attend(asked.spec, inputs).output.astype(np.float32)
    truth[0, 1, 0] = np.nan
    found = _explained(asked, inputs, truth)
    assert found is not None
    assert found.says.endswith("elements are NaN, all in query 0 of head 1")


def _swallowed(asked: AttentionCase, inputs: AttentionInputs) -> Array:
    """The output of a runtime that reads every NaN as 0."""
    return right_output(asked.spec, replace(inputs, value=np.where(np.isnan(inputs.value), 0, inputs.value)))


@pytest.mark.parametrize("name", ["plain", "bool-causal", "softcap-float", "bsh-past-float"])
@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16])
def test_swallowed_nan_is_named(name: str, dtype: Dtype) -> None:
    """A number where a NaN must show, and nothing else wrong, is no reading of the operator."""
    asked = replace(CASES[name], dtype=dtype)
    inputs = find_probe("nan-seen").draw(asked, 1)
    says = "a NaN in the inputs is replaced by a number"
    assert _explained(asked, inputs, _swallowed(asked, inputs)) == Explanation(says=says, reading="nan-swallowed")


@pytest.mark.parametrize("is_swallowed", [True, False])
def test_fault_beside_a_nan_is_named(is_swallowed: bool) -> None:
    """What else is wrong is judged on the elements that the NaN does not reach."""
    asked = CASES["plain"]
    inputs = find_probe("nan-seen").draw(asked, 1)
    wrong = replace(asked.spec, scale=1.3 * asked.spec.scale_value)
    actual = _swallowed(replace(asked, spec=wrong), inputs) if is_swallowed else right_output(wrong, inputs)
    assert np.isnan(actual).any() != is_swallowed
    assert _explained(asked, inputs, actual) == Explanation(says="the scale is off by 30 %", reading="scale-off")


def test_right_output_with_nan_has_no_explanation() -> None:
    """A NaN that shows is right."""
    asked = CASES["plain"]
    inputs = find_probe("nan-seen").draw(asked, 1)
    assert _explained(asked, inputs, right_output(asked.spec, inputs)) is None


@pytest.mark.parametrize(("factor", "word"), [(1.001, "1.001"), (0.999, "0.999"), (1.25, "1.25"), (-1.0, "-1")])
@pytest.mark.parametrize("dtype", [Dtype.FLOAT64, Dtype.FLOAT32])
def test_gain_is_named(factor: float, word: str, dtype: Dtype) -> None:
    """One factor on the whole output is not explained as lower precision."""
    asked = replace(case("2x16x40", head_dim=32), dtype=dtype)
    inputs = draw_inputs(asked, spread=2.0)
    actual = (right_output(asked.spec, inputs) * factor).astype(numpy_dtype(dtype))
    says = f"the output is off by a factor of {word}"
    assert _explained(asked, inputs, actual) == Explanation(says=says, reading="gain")


@pytest.mark.parametrize("offset", [1e-4, -1e-4])
def test_shift_is_no_lower_precision(offset: float) -> None:
    """Errors that all have one sign are no roundings, though small enough for a shorter format."""
    asked = case("2x16x40", head_dim=32)
    inputs = draw_inputs(asked, spread=2.0)
    actual = (right_output(asked.spec, inputs) + offset).astype(np.float32)
    assert _explained(asked, inputs, actual) is None


@pytest.mark.parametrize("level", [1e-30, 1e30])
def test_extreme_values_raise_nothing(level: float) -> None:
    """Values at the ends of the format are looked at like others."""
    asked = case("2x16x40", head_dim=32)
    drawn = draw_inputs(asked)
    inputs = replace(drawn, value=drawn.value * np.float32(level))
    found = _explained(asked, inputs, right_output(asked.spec, inputs) * np.float32(1.25))
    assert found == Explanation(says="the output is off by a factor of 1.25", reading="gain")
    zeros = replace(drawn, value=np.zeros_like(drawn.value))
    assert _explained(asked, zeros, np.full(drawn.query.shape, level, np.float32)) is not None
