"""The one judge: where the operator's text leaves a choice each reading is right, and where it does not one is."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.mask_rule import MaskRule, full_mask, mask_rule_of
from sdpa_onnx.core.attention.oracle import QkOutputMode, attend
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Layout, MaskKind
from sdpa_onnx.core.judge.agreement import Agreement
from sdpa_onnx.core.judge.attention_outputs import judge_attention_outputs
from sdpa_onnx.core.records.verdicts import Verdict

Array = NDArray[np.generic]

_SPEC = AttentionSpec(q_num_heads=2, kv_num_heads=1, head_dim=4)
_MASKED = replace(_SPEC, mask=MaskKind.FLOAT)
_PRECISION = find_precision("float32")


def _inputs(spec: AttentionSpec, seed: int = 0) -> AttentionInputs:
    past = 2 if spec.has_past else 0
    case = AttentionCase(spec=spec, batch_size=2, q_seq_len=3, kv_seq_len=5, past_seq_len=past)
    return draw_inputs(case, spread=4.0, seed=seed)


def _output(spec: AttentionSpec, inputs: AttentionInputs) -> Array:
    output: Array = attend(spec, inputs).output.astype(np.float32)
    return output


def _judged(spec: AttentionSpec, inputs: AttentionInputs, output: Array, rule: MaskRule = MaskRule.PADDED) -> Agreement:
    outputs = {OutputRole.OUTPUT: output}
    return judge_attention_outputs(spec, inputs, outputs, precision=_PRECISION, mask_rule=rule)[OutputRole.OUTPUT]


@pytest.mark.parametrize("opset", [23, 24, 25])
@pytest.mark.parametrize("shape", [(1,), (3, 1), (1, 3, 1), (2, 1, 3, 1), (2, 2, 1, 1)])
@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("has_past", [False, True])
def test_a_mask_whose_last_axis_is_one(opset: int, shape: tuple[int, ...], layout: Layout, has_past: bool) -> None:
    """Opset 23 broadcasts it over the keys, opsets 24 and 25 pad it; the other reading is wrong in each."""
    spec = replace(_MASKED, layout=layout, has_past=has_past)
    keys = 7 if has_past else 5
    mask = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    inputs = replace(_inputs(spec), attn_mask=mask)
    wide = np.broadcast_to(mask, (*shape[:-1], keys))
    first = np.where(np.arange(keys) < 1, wide, np.float32(-np.inf))
    readings = {"broadcast": wide, "padded": first}
    right = "broadcast" if opset == 23 else "padded"
    for name, full in readings.items():
        output = _output(spec, replace(inputs, attn_mask=np.ascontiguousarray(full)))
        found = _judged(spec, inputs, output, mask_rule_of(opset))
        assert (found.verdict is not Verdict.WRONG) == (name == right), found.diagnosis


@pytest.mark.parametrize("opset", [23, 24, 25])
def test_a_boolean_mask_whose_last_axis_is_one(opset: int) -> None:
    """True rows see every key in opset 23 and the first key in later ones."""
    spec = replace(_SPEC, mask=MaskKind.BOOL)
    inputs = replace(_inputs(spec), attn_mask=np.array([[True], [False], [True]]))
    output = _output(spec, replace(inputs, attn_mask=np.repeat(inputs.attn_mask, 5, axis=1)))
    assert (_judged(spec, inputs, output, mask_rule_of(opset)).verdict is not Verdict.WRONG) == (opset == 23)


@pytest.mark.parametrize("rule", list(MaskRule))
@pytest.mark.parametrize("shape", [(3, 2), (3, 5), (2, 1, 1, 5)])
def test_other_masks_mean_the_same_by_both_rules(rule: MaskRule, shape: tuple[int, ...]) -> None:
    """A full mask is itself; one of two keys does not broadcast, so that only padding is left."""
    inputs = replace(_inputs(_MASKED), attn_mask=np.zeros(shape, np.float32))
    assert full_mask(inputs, rule, layout=Layout.BNSH) is inputs


def _negative(**options: object) -> AttentionSpec:
    return replace(_SPEC, scale=-0.5, **options)  # type: ignore[arg-type]


def test_a_negative_scale_may_be_applied_or_nan() -> None:
    """The text has the scale as a factor, and Q and K times sqrt(scale): both outcomes are right and named."""
    spec = _negative()
    inputs = _inputs(spec)
    applied = _judged(spec, inputs, _output(spec, inputs))
    lost = _judged(spec, inputs, np.full_like(_output(spec, inputs), np.nan))
    assert applied.verdict is Verdict.OK
    assert applied.diagnosis.endswith("The negative scale is applied to the scores.")
    assert lost.verdict is Verdict.OK
    assert lost.judged == lost.total
    assert lost.diagnosis.endswith(
        "The scores are NaN: sqrt(scale) of a negative scale, which the operator's text permits."
    )


def test_a_positive_scale_is_never_nan() -> None:
    """The choice is that of a negative scale alone."""
    inputs = _inputs(_SPEC)
    assert _judged(_SPEC, inputs, np.full_like(_output(_SPEC, inputs), np.nan)).verdict is Verdict.WRONG


def test_some_nan_of_a_negative_scale_is_wrong() -> None:
    """One NaN, zeros, the positive scale, or one number among NaN is neither reading."""
    spec = _negative()
    inputs = _inputs(spec)
    right, lost = _output(spec, inputs), np.full_like(_output(spec, inputs), np.nan)
    one = right.copy()
    one.flat[3] = np.nan
    other = lost.copy()
    other.flat[3] = 0.0
    positive = _output(replace(spec, scale=0.5), inputs)
    for wrong in (one, other, positive, np.zeros_like(right)):
        assert _judged(spec, inputs, wrong).verdict is Verdict.WRONG


def test_a_hidden_row_of_a_negative_scale_is_zero_or_nan() -> None:
    """Without a visible key the guard of the text returns zero, before or after sqrt(scale); a number is wrong."""
    spec = _negative(mask=MaskKind.BOOL)
    inputs = _inputs(spec)
    assert inputs.attn_mask is not None
    assert not inputs.attn_mask[0, 0, -1].any()
    for hidden, verdict in ((0.0, Verdict.OK), (np.nan, Verdict.OK), (1.0, Verdict.WRONG)):
        output = np.full((2, 2, 3, 4), np.nan, np.float32)
        output[:, :, -1] = hidden
        assert _judged(spec, inputs, output).verdict is verdict


def test_scores_and_output_fit_one_reading() -> None:
    """NaN scores with an applied output fit neither reading."""
    spec = _negative()
    inputs = _inputs(spec)
    truth = attend(spec, inputs, qk_mode=QkOutputMode.SCORES)
    assert truth.qk is not None
    numbers = {OutputRole.OUTPUT: truth.output.astype(np.float32), OutputRole.QK: truth.qk.astype(np.float32)}
    lost = {role: np.full_like(array, np.nan) for role, array in numbers.items()}
    mixed = {OutputRole.OUTPUT: numbers[OutputRole.OUTPUT], OutputRole.QK: lost[OutputRole.QK]}
    for outputs, is_right in ((numbers, True), (lost, True), (mixed, False)):
        judged = judge_attention_outputs(spec, inputs, outputs, precision=_PRECISION)
        assert all(one.verdict.is_right for one in judged.values()) == is_right


@pytest.mark.parametrize("mode", list(QkOutputMode))
def test_nan_in_the_inputs_reaches_the_scores(mode: QkOutputMode) -> None:
    """A NaN key makes its scores NaN, and every weight of the rows that see it; a number there is a lost NaN."""
    inputs = _inputs(_SPEC)
    key = inputs.key.copy()
    key[0, 0, 1, 2] = np.nan
    inputs = replace(inputs, key=key)
    right = attend(_SPEC, inputs, qk_mode=mode)
    assert right.qk is not None
    scores = right.qk.astype(np.float32)
    assert np.isnan(scores[0]).any()
    assert not np.isnan(scores[1]).any()
    cleaned = np.nan_to_num(scores)
    for actual, verdict in (
        (scores, Verdict.OK),
        (cleaned, Verdict.WRONG),
        (np.full_like(scores, np.nan), Verdict.WRONG),
    ):
        outputs = {OutputRole.QK: actual}
        found = judge_attention_outputs(_SPEC, inputs, outputs, precision=_PRECISION, qk_modes=(mode,))[OutputRole.QK]
        assert found.verdict is verdict
    outputs = {OutputRole.QK: cleaned}
    found = judge_attention_outputs(_SPEC, inputs, outputs, precision=_PRECISION, qk_modes=(mode,))[OutputRole.QK]
    assert found.diagnosis.startswith("A NaN in the inputs was lost: ")
    assert found.swallowed == np.count_nonzero(np.isnan(scores))


@pytest.mark.parametrize("hidden", [-np.inf, np.nan])
def test_nan_of_a_hidden_key_may_reach_its_score(hidden: float) -> None:
    """After the mask, NaN - inf is NaN and a runtime that selects returns -inf: the text leaves both open."""
    spec = replace(_SPEC, is_causal=True)
    inputs = _inputs(spec)
    key = inputs.key.copy()
    key[:, :, 4] = np.nan
    inputs = replace(inputs, key=key)
    scores = attend(spec, inputs, qk_mode=QkOutputMode.AFTER_MASK).qk
    assert scores is not None
    actual = scores.astype(np.float32)
    actual[..., 4] = hidden
    outputs = {OutputRole.QK: actual}
    modes = (QkOutputMode.AFTER_MASK,)
    found = judge_attention_outputs(spec, inputs, outputs, precision=_PRECISION, qk_modes=modes)
    assert found[OutputRole.QK].verdict is Verdict.OK


def test_scores_of_an_open_stage_fit_any_stage_that_the_text_permits() -> None:
    """The diagnosis names the stage that fits; a stage that the text does not permit is wrong."""
    spec = replace(_SPEC, softcap=1.0, is_causal=True)
    inputs = _inputs(spec)
    permitted = (QkOutputMode.SCORES, QkOutputMode.AFTER_SOFTCAP)
    for mode in QkOutputMode:
        scores = attend(spec, inputs, qk_mode=mode).qk
        assert scores is not None
        outputs = {OutputRole.QK: scores.astype(np.float32)}
        found = judge_attention_outputs(spec, inputs, outputs, precision=_PRECISION, qk_modes=permitted)[OutputRole.QK]
        assert (found.verdict is Verdict.OK) == (mode in permitted)
        assert found.diagnosis.endswith("which the operator's text permits.") == (mode in permitted)
