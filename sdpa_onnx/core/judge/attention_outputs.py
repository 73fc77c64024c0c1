"""The one judge of an attention: every output that a runtime returns, by what it is, against the oracle.

The attention output by its proven bound and its sigma, the caches as copies, the scores by their own bound. Where the
operator's text leaves a choice, each reading is right, and the diagnosis names the one that fits. Every command judges
with it: `verify`, `fuzz`, `conformance`, `reduce`, `convert` and `bench`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.mask_rule import MaskRule, full_mask
from sdpa_onnx.core.attention.oracle import QkOutputMode, attend
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.precision import Precision
from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.judge.agreement import Agreement, expect, judge
from sdpa_onnx.core.judge.cache_agreement import CacheRule, judge_cache, present_of
from sdpa_onnx.core.judge.expectation import Expectation
from sdpa_onnx.core.judge.qk_agreement import expect_qk, judge_qk

__all__ = ["PermittedReading", "judge_attention_outputs", "oracle_outputs", "permitted_readings"]

Array = NDArray[np.generic]

_CACHES = (OutputRole.PRESENT_KEY, OutputRole.PRESENT_VALUE, OutputRole.PRESENT)
_ALL_COPIED = CacheRule()
_INTEGER_SOFTMAX = (
    "The weights are those of onnxruntime's QLinearSoftmax, up to one step of their integers lower than the file "
    "declares: it drops the fraction of 1 / scale. A scale of 1/256 has none."
)
_STAGES = {
    QkOutputMode.SCORES: "scores before softcap and mask",
    QkOutputMode.AFTER_SOFTCAP: "scores after the softcap",
    QkOutputMode.AFTER_MASK: "scores after the mask",
    QkOutputMode.WEIGHTS: "weights after the softmax",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PermittedReading:
    """One way to read the operator's text that the text permits.

    Args:
        name: Stable name; "" for the reading of the oracle.
        says: What an output is that fits it, one sentence; "" where the text leaves no choice.
        inputs: The inputs with which the oracle computes this reading.
        warning: What a user should know of an output that fits it only, one sentence; "" if nothing.
    """

    name: str
    says: str
    inputs: AttentionInputs
    warning: str = ""


def permitted_readings(spec: AttentionSpec, inputs: AttentionInputs, mask_rule: MaskRule) -> list[PermittedReading]:
    """Every reading that the operator's text permits, that of the oracle first.

    A negative scale leaves a choice: it is the "Scaling factor applied to Q*K^T", but the pattern of the text
    multiplies Q and K by sqrt(scale) each, which is NaN.
    Quantised weights may be computed by one kernel for softmax and integers, whose result is up to one step lower.

    Args:
        spec: The attention.
        inputs: The arrays as the runtime receives them.
        mask_rule: What a mask means whose last axis is 1.

    Source: ONNX Attention, opset 23 to 25, attribute scale.
    """
    inputs = full_mask(inputs, mask_rule, layout=spec.layout)
    if spec.scale_value >= 0.0:
        plain = PermittedReading(name="", says="", inputs=inputs)
        fused = None if inputs.quantisers is None else inputs.quantisers.by_integer_softmax
        if fused is None:
            return [plain]
        lower = replace(inputs, quantisers=fused)
        return [plain, PermittedReading(name="integer-softmax", says="", inputs=lower, warning=_INTEGER_SOFTMAX)]
    lost = replace(inputs, query=np.full_like(inputs.query, np.nan))
    return [
        PermittedReading(name="", says="The negative scale is applied to the scores.", inputs=inputs),
        PermittedReading(
            name="square-root-of-scale",
            says="The scores are NaN: sqrt(scale) of a negative scale, which the operator's text permits.",
            inputs=lost,
        ),
    ]


def oracle_outputs(
    spec: AttentionSpec, inputs: AttentionInputs, *, qk_mode: QkOutputMode | None = None
) -> dict[OutputRole, Array]:
    """Every output of an attention as it must be: the output and scores in float64, the caches as copies.

    Args:
        spec: The attention.
        inputs: The arrays, with a full mask (`full_mask`).
        qk_mode: Stage of the scores; None = without scores.

    Raises:
        CaseError: If the arrays do not fit the spec.
    """
    truth = attend(spec, inputs, qk_mode=qk_mode)
    found: dict[OutputRole, Array] = {OutputRole.OUTPUT: truth.output, **present_of(spec, inputs)}
    return found if truth.qk is None else {**found, OutputRole.QK: truth.qk}


def judge_attention_outputs(
    spec: AttentionSpec,
    inputs: AttentionInputs,
    outputs: Mapping[OutputRole, Array],
    *,
    precision: Precision,
    qk_modes: Sequence[QkOutputMode] = (QkOutputMode.SCORES,),
    mask_rule: MaskRule = MaskRule.PADDED,
    cache: CacheRule = _ALL_COPIED,
    expectation_of: Callable[[PermittedReading], Expectation] | None = None,
) -> dict[OutputRole, Agreement]:
    """Judge every output of an attention.

    Args:
        spec: The attention.
        inputs: The arrays exactly as the runtime received them.
        outputs: What it returned; an output that is not there is not judged.
        precision: The declared arithmetic.
        qk_modes: Stages of the scores that `OutputRole.QK` may hold; several where the operator's text leaves it open.
        mask_rule: What a mask means whose last axis is 1; see `mask_rule_of`.
        cache: What the operator defines of its present outputs.
        expectation_of: Computes the expectation of a reading, for callers that keep it or choose its rows; None =
            `expect` with its defaults.

    Returns:
        One agreement for each output, in the order of `OutputRole`. All are by the same reading of the text.
    """

    def computed(reading: PermittedReading) -> Expectation:
        return expect(spec, reading.inputs, precision=precision)

    copies = {
        role: judge_cache(role, spec, inputs, outputs[role], precision=precision, rule=cache)
        for role in _CACHES
        if role in outputs
    }
    first: dict[OutputRole, Agreement] = {}
    for reading in permitted_readings(spec, inputs, mask_rule):
        found = dict(copies)
        if OutputRole.OUTPUT in outputs:
            expectation = (expectation_of or computed)(reading)
            found[OutputRole.OUTPUT] = judge(expectation, outputs[OutputRole.OUTPUT])
        if OutputRole.QK in outputs:
            found[OutputRole.QK] = _judge_scores(spec, reading.inputs, outputs[OutputRole.QK], precision, qk_modes)
        ordered = {role: found[role] for role in OutputRole if role in found}
        first = first or ordered
        if all(agreement.verdict.is_right for role, agreement in ordered.items() if role not in copies):
            return {
                role: agreement if role in copies else _by_reading(reading, agreement)
                for role, agreement in ordered.items()
            }
    return first


def _judge_scores(
    spec: AttentionSpec,
    inputs: AttentionInputs,
    actual: Array,
    precision: Precision,
    modes: Sequence[QkOutputMode],
) -> Agreement:
    """Judge the scores at each stage that the text permits; the first that fits, else the first."""
    found: list[Agreement] = []
    for mode in modes:
        agreement = judge_qk(expect_qk(spec, inputs, mode=mode, precision=precision), actual)
        if agreement.verdict.is_right:
            named = f" They are the {_STAGES[mode]}, which the operator's text permits." if len(modes) > 1 else ""
            return replace(agreement, diagnosis=f"{agreement.diagnosis}{named}")
        found.append(agreement)
    return found[0]


def _by_reading(reading: PermittedReading, agreement: Agreement) -> Agreement:
    if reading.warning:
        return replace(agreement, warnings=(*agreement.warnings, reading.warning))
    if not reading.says:
        return agreement
    # NaN that is required is judged, although the oracle has no number there.
    judged = agreement.judged if not reading.name else agreement.total
    return replace(agreement, judged=judged, diagnosis=f"{agreement.diagnosis} {reading.says}")
