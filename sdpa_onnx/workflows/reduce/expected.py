"""Compute the expected outputs of a reduced case: the float64 oracle and the error bound of every element.

Does not compare outputs with them: `workflows.check` and the reproduction script do.
"""

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.mask_rule import full_mask
from sdpa_onnx.core.attention.oracle import attend
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.core.judge.agreement import expect
from sdpa_onnx.core.judge.qk_agreement import expect_qk
from sdpa_onnx.errors import SdpaOnnxError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.check.case_trial import QK_OUTPUT, CaseTrial, TrialResult, trial_model
from sdpa_onnx.workflows.reduce.trials import OutOfTimeError, ReductionTrials

__all__ = ["BoundedOutput", "expected_outputs", "static_model"]

Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedOutput:
    """One expected output with its error bound.

    Args:
        oracle: The float64 result, not rounded.
        bound: Largest |actual - oracle| that the declared arithmetic can produce, element by element;
            infinite where that arithmetic may overflow, 0 where the output must be an exact copy.
    """

    oracle: Float64
    bound: Float64


def expected_outputs(trial: CaseTrial, result: TrialResult) -> dict[str, BoundedOutput]:
    """Oracle and bound of every output, by graph output name.

    If nothing ran, the bound assumes arithmetic in the element type.
    """
    spec = trial.case.spec
    inputs = full_mask(result.inputs, trial.mask_rule, layout=spec.layout)
    truth = attend(spec, inputs, qk_mode=trial.qk_mode)
    precision = result.precision or trial.case.dtype.value
    outputs = {"Y": BoundedOutput(oracle=truth.output, bound=_output_bound(spec, inputs, precision))}
    if inputs.past_key is not None:
        presents = {"present_key": truth.present_key, "present_value": truth.present_value}
        outputs |= {name: BoundedOutput(oracle=array, bound=np.zeros_like(array)) for name, array in presents.items()}
    if trial.qk_mode is not None and truth.qk is not None:
        scores = expect_qk(spec, inputs, mode=trial.qk_mode, precision=find_precision(precision))
        outputs[QK_OUTPUT] = BoundedOutput(oracle=truth.qk, bound=scores.bound)
    if trial.graph is None:
        return outputs
    names = trial.graph.sites[0].outputs
    return {own: outputs[role] for role, own in names.items() if role in outputs and own in trial.graph.output_names}


def _output_bound(spec: AttentionSpec, inputs: AttentionInputs, precision: str) -> Float64:
    q_seq_len = inputs.query.shape[spec.layout.length_axis]
    shape = (inputs.query.shape[0], spec.q_num_heads, q_seq_len, spec.v_head_dim)
    bound = np.zeros(shape)
    expectation = expect(spec, inputs, precision=find_precision(precision), rows_per_head=max(1, q_seq_len))
    for (batch, head, rows), part in zip(expectation.blocks, expectation.bounds, strict=True):
        bound[batch, head, rows] = np.where(part.overflows[:, None], np.inf, part.bound)
    if spec.layout is Layout.BNSH:
        return bound
    return bound.transpose(0, 2, 1, 3).reshape(shape[0], q_seq_len, spec.q_num_heads * spec.v_head_dim)


def static_model(trial: CaseTrial, result: TrialResult, trials: ReductionTrials) -> tuple[OnnxModel, TrialResult]:
    """The model with static shapes if it still fails in the same way, else with dynamic shapes."""
    dynamic = trial_model(trial, result.inputs)
    fixed = _with_static_shapes(dynamic, trial, result)
    try:
        fixed_result = trials.reproduce(replace(trial, graph=fixed))
    except (OutOfTimeError, SdpaOnnxError):
        fixed_result = None
    return (dynamic, result) if fixed_result is None else (fixed, fixed_result)


def _with_static_shapes(model: OnnxModel, trial: CaseTrial, result: TrialResult) -> OnnxModel:
    copy = model.ir.clone()
    feeds = trial.feeds(result.inputs)
    for value in copy.graph.inputs:
        if value.name in feeds:
            value.shape = ir.Shape(feeds[value.name].shape)
    shapes = {name: bounded.oracle.shape for name, bounded in expected_outputs(trial, result).items()}
    for value in copy.graph.outputs:
        if value.name in shapes:
            value.shape = ir.Shape(shapes[value.name])
    return replace(model, ir=copy)
