"""Explains any wrong output of an attention by a known fault; a cache needs no explanation. Decides no verdict."""

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.precision import Precision, find_precision
from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.faults.diagnosis import Explanation, explain
from sdpa_onnx.core.faults.qk_diagnosis import explain_qk
from sdpa_onnx.core.judge.qk_agreement import expect_qk

__all__ = ["explain_output"]


def explain_output(
    role: OutputRole,
    spec: AttentionSpec,
    inputs: AttentionInputs,
    actual: NDArray[np.generic],
    *,
    precision: str,
    allowed: Precision | None = None,
    qk_mode: QkOutputMode = QkOutputMode.SCORES,
) -> Explanation | None:
    """Find the known fault that a wrong output looks like.

    Args:
        role: Which output.
        spec: The attention.
        inputs: The arrays that the runtime received, with a full mask (`full_mask`).
        actual: The wrong output.
        precision: The declared arithmetic.
        allowed: The arithmetic that the judge allowed; None = the declared one.
        qk_mode: Stage of the scores.
    """
    match role:
        case OutputRole.OUTPUT:
            return explain(spec, inputs, actual, precision=precision)
        case OutputRole.QK:
            arithmetic = find_precision(precision) if allowed is None else allowed
            return explain_qk(expect_qk(spec, inputs, mode=qk_mode, precision=arithmetic), actual)
        case _:
            return None
