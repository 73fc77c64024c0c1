"""Every planted fault is called wrong in every type by the ladder or a probe; what cannot show is listed here."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from sdpa_onnx.core.attention.inputs import LADDER, AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.oracle import QkOutputMode, attend
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.probes import probes_for
from sdpa_onnx.core.attention.spec import AttentionCase, Dtype, MaskKind
from sdpa_onnx.core.faults.fault_kind import Fault
from sdpa_onnx.core.faults.planted_faults import FAULTS, faults_for, right_output
from sdpa_onnx.core.judge.agreement import expect, judge
from sdpa_onnx.core.records.verdicts import Verdict
from tests.core.attentions import CASES, case
from tests.core.by_name import find_fault

# As many queries as new keys: the last query sees every key anyway, and so both alignments are one.
_SQUARE = {"causal-bottom-right", "causal-one-query-sees-all", "causal-last-row-sees-all"}
# Faults that give the right output at the sizes of a case.
_EQUAL: dict[str, set[str]] = {
    # More keys than any query sees.
    "causal": {"causal-one-query-sees-all", "last-key-missing"},
    "past-one-query": {"last-key-missing", "output-transposed"},
    "past-chunk": _SQUARE,
    "bool-causal": _SQUARE,
    "causal-slopes": _SQUARE,
    "float-causal-past": _SQUARE,
    "window": {"causal-bottom-right"},
    "window-causal": _SQUARE,
    "softcap-causal": _SQUARE,
    "bsh-causal": _SQUARE,
}
# One block holds every key of these cases; test_key_readings.py has more.
_ONE_BLOCK = {"cache-blocks-reversed-16", "key-blocks-reversed-16"}
# Readings of an axis that a mask does not have.
_NEEDS_AXIS = {
    0: {"mask-first-batch", "mask-next-batch"},
    1: {"mask-first-head", "mask-next-head"},
    2: {"mask-first-row", "mask-next-row"},
}
# Arithmetic within the rounding of the type itself: eight keys in float16, one element in bfloat16.
_WITHIN_ROUNDING = {Dtype.FLOAT16: {"float16-accumulation"}, Dtype.BFLOAT16: {"one-element-slightly-off"}}
_QUICK = {
    ("past-one-query", Dtype.FLOAT16),
    ("float-causal-past", Dtype.BFLOAT16),
    ("lengths-causal", Dtype.FLOAT32),
    ("softcap-bool", Dtype.BFLOAT16),
    ("window", Dtype.FLOAT64),
}


def _caught_faults(
    asked: AttentionCase, inputs: AttentionInputs, faults: Iterable[Fault], *, seed: int = 0
) -> dict[str, bool | None]:
    """Whether the judge notices each fault of the output; None if the fault gives the right output on these inputs."""
    expectation = expect(asked.spec, inputs, precision=find_precision(asked.dtype))
    right = {OutputRole.OUTPUT: right_output(asked.spec, inputs)}
    caught: dict[str, bool | None] = {}
    for fault in faults:
        if fault.output != OutputRole.OUTPUT:
            continue
        planted = fault.plant(asked.spec, inputs, right, np.random.default_rng(seed))[OutputRole.OUTPUT]
        if planted.tobytes() == right[OutputRole.OUTPUT].tobytes():
            caught[fault.name] = None
        else:
            caught[fault.name] = judge(expectation, planted).verdict in (Verdict.WRONG, Verdict.SUSPICIOUS)
    return caught


def _left_over(asked: AttentionCase) -> tuple[set[str], set[str]]:
    """Names of the faults that are not caught, and of those without effect on all inputs."""
    faults = {fault.name: fault for fault in faults_for(asked.spec, dtype=asked.dtype)}
    hidden = set(faults)
    drawn = [probe.draw(asked, 1) for probe in probes_for(asked.spec)]
    for inputs in drawn + [draw_inputs(asked, spread=spread, seed=1) for spread in LADDER]:
        caught = _caught_faults(asked, inputs, faults.values())
        hidden -= {name for name, found in caught.items() if found is not None}
        faults = {name: fault for name, fault in faults.items() if not caught[name]}
    return set(faults) - hidden, hidden


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=() if (name, dtype) in _QUICK else pytest.mark.slow)
        for name in CASES
        for dtype in Dtype
    ],
)
def test_every_fault_is_caught(name: str, dtype: Dtype) -> None:
    """In every type, the inputs catch every fault that is one at these sizes, but what is rounding."""
    missed, equal = _left_over(replace(CASES[name], dtype=dtype))
    assert missed <= _WITHIN_ROUNDING.get(dtype, set())
    assert equal - _ONE_BLOCK == _EQUAL.get(name, set()) | _without_axis(CASES[name])


def _without_axis(asked: AttentionCase) -> set[str]:
    """Faults that cannot show, because the mask has one entry for all samples, heads or queries."""
    if asked.spec.mask not in (MaskKind.BOOL, MaskKind.FLOAT):
        return set()
    shape = asked.input_shapes()["attn_mask"]
    ones = [axis for axis, size in enumerate((1,) * (4 - len(shape)) + shape) if size == 1]
    return set().union(*(_NEEDS_AXIS.get(axis, set()) for axis in ones))


def test_every_kind_is_planted_somewhere() -> None:
    """The matrix leaves no fault of the output out."""
    planted = {fault.name for asked in CASES.values() for fault in faults_for(asked.spec)}
    assert planted == {fault.name for fault in FAULTS if fault.output == OutputRole.OUTPUT}
    assert len(FAULTS) >= 80


@pytest.mark.parametrize("name", ["plain", "bsh-past-float", "lengths-causal", "softcap-bool", "causal"])
def test_fault_is_pure(name: str) -> None:
    """A fault modifies no argument, keeps shapes and types, and is determined by the seed."""
    asked = replace(CASES[name], dtype=Dtype.FLOAT16)
    inputs = draw_inputs(asked, seed=2)
    truth = attend(asked.spec, inputs, qk_mode=QkOutputMode.SCORES)
    right = {OutputRole.OUTPUT: right_output(asked.spec, inputs)}
    right |= {name: getattr(truth, name).astype(np.float16) for name in ("present_key", "present_value", "qk")}
    before = {name: array.tobytes() for name, array in (inputs.named() | right).items()}
    for fault in faults_for(asked.spec, outputs=right):
        first, second = (fault.plant(asked.spec, inputs, right, np.random.default_rng(5)) for _ in range(2))
        assert {name: array.tobytes() for name, array in (inputs.named() | right).items()} == before
        for role, array in right.items():
            assert (first[role].shape, first[role].dtype) == (array.shape, array.dtype)
            assert first[role].tobytes() == second[role].tobytes()
            assert role == fault.output or first[role].tobytes() == array.tobytes()


def test_fault_is_none_where_nothing_is() -> None:
    """Faults can be planted in outputs without elements, without queries, keys or samples."""
    for sizes in ("0x3x4", "2x0x4", "2x3x0"):
        asked = case(sizes, mask="bool", is_causal=True)
        inputs = draw_inputs(asked)
        right = {OutputRole.OUTPUT: right_output(asked.spec, inputs)}
        for fault in faults_for(asked.spec):
            planted = fault.plant(asked.spec, inputs, right, np.random.default_rng(0))
            assert planted[OutputRole.OUTPUT].shape == right[OutputRole.OUTPUT].shape


@pytest.mark.parametrize("role", ["present_key", "present_value"])
def test_cache_faults(role: str) -> None:
    """The returned cache has its parts swapped, its newest entry missing, or is not updated."""
    asked = CASES["past-chunk"]
    inputs = draw_inputs(asked)
    truth = attend(asked.spec, inputs)
    right = {OutputRole.OUTPUT: truth.output, "present_key": truth.present_key, "present_value": truth.present_value}
    slug = role.replace("_", "-")
    given = {
        kind: find_fault(f"{slug}-{kind}").plant(asked.spec, inputs, right, np.random.default_rng(0))[role]
        for kind in ("past-after-new", "last-missing", "not-updated")
    }
    past, new = right[role][:, :, :5], right[role][:, :, 5:]
    np.testing.assert_array_equal(given["past-after-new"], np.concatenate([new, past], axis=2))
    np.testing.assert_array_equal(given["last-missing"][:, :, :-1], right[role][:, :, :-1])
    assert not given["last-missing"][:, :, -1].any()
    np.testing.assert_array_equal(given["not-updated"], np.concatenate([past, np.zeros_like(new)], axis=2))


@pytest.mark.parametrize(
    ("fault", "asked", "given"),
    [
        ("qk-softcap-and-mask-swapped", QkOutputMode.AFTER_SOFTCAP, QkOutputMode.AFTER_MASK),
        ("qk-softcap-and-mask-swapped", QkOutputMode.AFTER_MASK, QkOutputMode.AFTER_SOFTCAP),
        ("qk-scores-and-weights-swapped", QkOutputMode.SCORES, QkOutputMode.WEIGHTS),
        ("qk-scores-and-weights-swapped", QkOutputMode.WEIGHTS, QkOutputMode.SCORES),
    ],
)
def test_qk_faults(fault: str, asked: QkOutputMode, given: QkOutputMode) -> None:
    """Another stage of the scores is returned than the requested one."""
    spec, inputs = CASES["softcap-bool"].spec, draw_inputs(CASES["softcap-bool"], spread=4.0)
    stages = {mode: attend(spec, inputs, qk_mode=mode).qk for mode in QkOutputMode}
    right = {OutputRole.OUTPUT: right_output(spec, inputs), OutputRole.QK: stages[asked]}
    planted = find_fault(fault).plant(spec, inputs, right, np.random.default_rng(0))[OutputRole.QK]  # type: ignore[arg-type]
    np.testing.assert_array_equal(planted, stages[given])  # type: ignore[arg-type]


def test_nan_swallowed() -> None:
    """A NaN in the values is read as zero; without one the output is right."""
    spec, inputs = CASES["plain"].spec, draw_inputs(CASES["plain"])
    right = {OutputRole.OUTPUT: right_output(spec, inputs)}
    fault = find_fault("nan-swallowed")
    assert (
        fault.plant(spec, inputs, right, np.random.default_rng(0))[OutputRole.OUTPUT].tobytes()
        == right[OutputRole.OUTPUT].tobytes()
    )
    value = inputs.value.copy()
    value[0, 0, 0, 0] = np.nan
    holed = replace(inputs, value=value)
    assert np.isnan(attend(spec, holed).output[0, :2, :, 0]).all()
    planted = fault.plant(spec, holed, right, np.random.default_rng(0))[OutputRole.OUTPUT]
    value[0, 0, 0, 0] = 0.0
    np.testing.assert_array_equal(planted, right_output(spec, replace(inputs, value=value)))


def test_maximum_not_subtracted_needs_large_logits() -> None:
    """Small logits hide a softmax without its maximum, large ones produce NaN."""
    asked, fault = CASES["plain"], find_fault("maximum-not-subtracted")
    for probe in (probe for probe in probes_for(asked.spec) if probe.name != "nan-seen"):
        inputs = probe.draw(asked, 1)
        planted = fault.plant(
            asked.spec, inputs, {OutputRole.OUTPUT: right_output(asked.spec, inputs)}, np.random.default_rng(0)
        )
        expectation = expect(asked.spec, inputs, precision=find_precision("float32"))
        wrong = judge(expectation, planted[OutputRole.OUTPUT]).verdict is Verdict.WRONG
        assert wrong == (probe.name == "large-logits") == np.isnan(planted[OutputRole.OUTPUT]).any()


def test_unknown_fault() -> None:
    """There is no fault of another name."""
    with pytest.raises(KeyError):
        find_fault("none-such")
