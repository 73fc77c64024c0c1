"""Attention whose graph rounds scores and weights to integers: right results are in the bound, faults are not."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.mask_rule import MaskRule
from sdpa_onnx.core.attention.oracle import attend
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.score_quantisers import Quantiser, ScoreQuantisers
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, MaskKind
from sdpa_onnx.core.judge.agreement import Agreement, expect, judge
from sdpa_onnx.core.judge.attention_outputs import judge_attention_outputs, permitted_readings
from sdpa_onnx.core.records.verdicts import Verdict

Float32 = NDArray[np.float32]

SPEC = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, mask=MaskKind.FLOAT)
CASE = AttentionCase(spec=SPEC, batch_size=2, q_seq_len=13, kv_seq_len=21)


def pair(scale: float, zero: int = 0, *, signed: bool = False, bits: int = 8) -> Quantiser:
    lowest = -(2 ** (bits - 1)) if signed else 0
    return Quantiser(scale=float(np.float32(scale)), zero_point=zero, lowest=lowest, highest=lowest + 2**bits - 1)


PAIRS = {
    "all, uint8": ScoreQuantisers(
        product=(pair(0.09, 140),), scaled=(pair(0.035, 133),), masked=(pair(0.06, 160),), weights=(pair(1 / 255),)
    ),
    "all, int8": ScoreQuantisers(
        product=(pair(0.09, 7, signed=True),),
        scaled=(pair(0.035, -3, signed=True),),
        masked=(pair(0.06, 30, signed=True),),
        weights=(pair(1 / 256, -128, signed=True),),
    ),
    "int16": ScoreQuantisers(
        scaled=(pair(2e-4, 0, signed=True, bits=16),), weights=(pair(1 / 32767, 0, signed=True, bits=16),)
    ),
    "product only": ScoreQuantisers(product=(pair(0.09, 140),)),
    "weights only": ScoreQuantisers(weights=(pair(1 / 255),)),
    "twice": ScoreQuantisers(masked=(pair(0.06, 128), pair(0.11, 128)), weights=(pair(1 / 255), pair(1 / 255))),
}


def inputs_for(pairs: ScoreQuantisers, spread: float = 1.0, seed: int = 0) -> AttentionInputs:
    return replace(draw_inputs(CASE, spread=spread, seed=seed), quantisers=pairs)


def rounded(array: Float32, pairs: Sequence[Quantiser]) -> Float32:
    """In float32, as QuantizeLinear and DequantizeLinear are computed."""
    for one in pairs:
        steps = np.rint(array / np.float32(one.scale)) + np.float32(one.zero_point)
        integers = np.clip(steps, one.lowest, one.highest).astype(np.int32) - one.zero_point
        array = integers.astype(np.float32) * np.float32(one.scale)
    return array


def computed(inputs: AttentionInputs, *, keys: int | None = None, factor: float = 1.0, order: int = 1) -> Float32:
    """Attention in float32, step by step.

    Args:
        inputs: The arrays; their quantisers are those of the graph that runs.
        keys: Number of keys that are used; None = all.
        factor: On the scale.
        order: -1 adds the products of the scores from the last to the first.
    """
    pairs = inputs.quantisers or ScoreQuantisers()
    query, key = (array.astype(np.float32)[..., ::order] for array in (inputs.query, inputs.key))
    scores = np.zeros((*query.shape[:3], key.shape[2]), np.float32)
    for column in range(query.shape[-1]):
        scores += query[..., None, column] * key[..., None, :, column]
    scores = rounded(scores, pairs.product)
    scores = rounded(scores * np.float32(factor * SPEC.scale_value), pairs.scaled)
    assert inputs.attn_mask is not None
    scores = rounded(scores + inputs.attn_mask.astype(np.float32), pairs.masked)
    if keys is not None:
        scores[..., keys:] = -np.inf
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    weights = rounded(raised / raised.sum(-1, keepdims=True), pairs.weights)
    found: Float32 = (weights @ inputs.value.astype(np.float32)).astype(np.float32)
    return found


def judged(inputs: AttentionInputs, actual: Float32) -> Agreement:
    return judge(expect(SPEC, inputs, precision=find_precision("float32")), actual)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("spread", [0.3, 1.0, 4.0, 30.0])
def test_right_results_lie_inside(name: str, spread: float) -> None:
    """Two orders of summation and ten draws are right, from flat to saturated scores."""
    for seed in range(10):
        inputs = inputs_for(PAIRS[name], spread, seed)
        for order in (1, -1):
            found = judged(inputs, computed(inputs, order=order))
            assert found.verdict is Verdict.OK, found.diagnosis


@pytest.mark.parametrize("name", PAIRS)
def test_bound_is_rounding_except_near_a_step(name: str) -> None:
    """Most elements have no wider bound than without pairs, up to a factor that no step explains."""
    median = []
    for inputs in (inputs_for(PAIRS[name]), inputs_for(ScoreQuantisers())):
        expectation = expect(SPEC, inputs, precision=find_precision("float32"))
        median.append(np.median(np.concatenate([one.bound.ravel() for one in expectation.bounds])))
    assert median[0] < 10.0 * median[1]


def changed(pairs: ScoreQuantisers, stage: str, **change: float) -> ScoreQuantisers:
    """The first pair of a stage with other parameters."""
    first, *rest = getattr(pairs, stage)
    return replace(pairs, **{stage: (replace(first, **change), *rest)})


STAGES = [(name, stage) for name, pairs in PAIRS.items() for stage in pairs.__slots__ if getattr(pairs, stage)]


@pytest.mark.parametrize(("name", "stage"), STAGES)
def test_wrong_scale_is_found(name: str, stage: str) -> None:
    """A step that is 2 % too large at one place is wrong."""
    inputs, first = inputs_for(PAIRS[name]), getattr(PAIRS[name], stage)[0]
    faulty = replace(inputs, quantisers=changed(PAIRS[name], stage, scale=1.02 * first.scale))
    assert judged(inputs, computed(faulty)).verdict is Verdict.WRONG


@pytest.mark.parametrize(("name", "stage"), STAGES)
def test_wrong_zero_point_is_found(name: str, stage: str) -> None:
    """A zero point that moves the range by nine tenths is wrong where numbers reach its limits."""
    inputs, first = inputs_for(PAIRS[name], spread=30.0), getattr(PAIRS[name], stage)[0]
    moved = first.zero_point + 9 * (first.highest - first.lowest) // 10
    faulty = replace(inputs, quantisers=changed(PAIRS[name], stage, zero_point=moved))
    assert judged(inputs, computed(faulty)).verdict is Verdict.WRONG


@pytest.mark.parametrize("name", [name for name in PAIRS if PAIRS[name].weights])
def test_zero_point_of_one_node_is_found(name: str) -> None:
    """Weights that are dequantised with a zero point off by one are wrong."""
    inputs, step = inputs_for(PAIRS[name]), np.float32(PAIRS[name].weights[0].scale)
    shifted = computed(inputs) + step * inputs.value.astype(np.float32).sum(2, keepdims=True)
    assert judged(inputs, shifted).verdict is Verdict.WRONG


@pytest.mark.parametrize("name", PAIRS)
def test_dropped_key_and_wrong_factor_are_found(name: str) -> None:
    """Attention without its last key, and one whose scale is 1 % off, are wrong."""
    inputs = inputs_for(PAIRS[name])
    assert judged(inputs, computed(inputs, keys=CASE.kv_seq_len - 1)).verdict is Verdict.WRONG
    assert judged(inputs, computed(inputs, factor=1.01)).verdict is Verdict.WRONG


@pytest.mark.parametrize("name", PAIRS)
def test_unquantised_result_is_wrong(name: str) -> None:
    """A runtime that leaves the pairs out is found."""
    inputs = inputs_for(PAIRS[name])
    assert judged(inputs, computed(replace(inputs, quantisers=None))).verdict is Verdict.WRONG


def test_both_sides_of_a_step_are_right() -> None:
    """Where an exact score is on the boundary of two steps, both results are inside; a third is not."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=1)
    column = [np.array(numbers, np.float32).reshape(1, 1, -1, 1) for numbers in ([0.25], [1.0, 0.0], [1.0, 0.0])]
    pairs = ScoreQuantisers(scaled=(pair(0.5, 10),))
    inputs = AttentionInputs(query=column[0], key=column[1], value=column[2], quantisers=pairs)
    expectation = expect(spec, inputs, precision=find_precision("float32"))
    for score, verdict in ((0.0, Verdict.OK), (0.5, Verdict.OK), (1.0, Verdict.WRONG)):
        weight = np.exp(score) / (np.exp(score) + 1.0)
        assert judge(expectation, np.full((1, 1, 1, 1), weight, np.float32)).verdict is verdict


def test_hidden_key_has_the_lowest_integer() -> None:
    """A mask of -inf before a pair leaves a key its weight: all masked is the mean, not zero."""
    inputs = inputs_for(PAIRS["all, uint8"])
    hidden = replace(inputs, attn_mask=np.full((13, 21), -np.inf, np.float32))
    found = attend(SPEC, hidden).output
    weight = np.rint(255 / 21) / 255
    np.testing.assert_allclose(found[0, 0, 0], weight * inputs.value[0, 0].astype(float).sum(0), rtol=1e-6)


def test_integer_softmax_is_right_with_a_warning() -> None:
    """The weights of onnxruntime's QLinearSoftmax are permitted, and the record says so; half a step more is not."""
    inputs = inputs_for(PAIRS["all, uint8"])
    fused = PAIRS["all, uint8"].by_integer_softmax
    assert fused is not None
    exact = attend(SPEC, replace(inputs, quantisers=fused)).output

    def verdict(actual: NDArray[np.float64]) -> Agreement:
        outputs = {OutputRole.OUTPUT: actual.astype(np.float32)}
        found = judge_attention_outputs(SPEC, inputs, outputs, precision=find_precision("float32"))
        return found[OutputRole.OUTPUT]

    assert verdict(exact).verdict is Verdict.OK
    assert verdict(exact).warnings == permitted_warning(inputs)
    assert verdict(attend(SPEC, inputs).output).warnings == ()
    assert verdict(exact + 0.5 / 255).verdict is Verdict.WRONG


def permitted_warning(inputs: AttentionInputs) -> tuple[str, ...]:
    return (permitted_readings(SPEC, inputs, MaskRule.PADDED)[1].warning,)


def test_scale_of_a_power_of_two_has_one_reading() -> None:
    """1/256 has no fraction, so that nothing but the declared weights is right."""
    assert PAIRS["all, int8"].by_integer_softmax is None
    assert len(permitted_readings(SPEC, inputs_for(PAIRS["all, int8"]), MaskRule.PADDED)) == 1


def test_nan_is_left_open() -> None:
    """Integers hold no NaN: neither its loss nor its appearance is accused."""
    inputs = inputs_for(PAIRS["all, uint8"])
    query = inputs.query.copy()
    query[0, 0, 0, 0] = np.nan
    spoiled = replace(inputs, query=query)
    for number in (0.0, np.nan):
        actual = computed(inputs)
        actual[0, 0, 0] = number
        assert judged(spoiled, actual).verdict is Verdict.OK
