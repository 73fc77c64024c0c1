"""Explains a wrong fourth output of Attention (the scores), as `diagnosis` does for the output.

Decides no verdict; see `judge.qk_agreement`.
"""

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.faults.diagnosis import Explanation
from sdpa_onnx.core.judge.qk_agreement import QkExpectation, judge_qk
from sdpa_onnx.core.records.verdicts import Verdict

__all__ = ["explain_qk"]

Array = NDArray[np.generic]


def explain_qk(expectation: QkExpectation, actual: Array) -> Explanation | None:
    """Detect scores that are all NaN, or correct except for the value of hidden keys.

    Args:
        expectation: The expected scores and their bounds.
        actual: Scores whose verdict is wrong.

    Returns:
        The explanation, or None.
    """
    if actual.shape != expectation.expected.shape:
        return None
    hidden = np.isneginf(expectation.expected)
    lowest = float(ml_dtypes.finfo(actual.dtype).min)  # type: ignore[no-untyped-call]
    with np.errstate(invalid="ignore"):
        values = actual.astype(np.float64)
    if bool(np.isnan(values).all()):
        return Explanation(says="every score is NaN", reading="all-not-finite")
    is_lowest = hidden & np.isfinite(values) & (values <= lowest / 2.0)  # a score may have been added to it
    if is_lowest.any() and judge_qk(expectation, np.where(is_lowest, -np.inf, values)).verdict is Verdict.OK:
        says = "the score of a hidden key is the lowest finite number, not -inf"
        return Explanation(says=says, reading="hidden-score-lowest")
    return None
