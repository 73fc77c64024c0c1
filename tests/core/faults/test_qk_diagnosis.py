"""Wrong scores are named by how a hidden key is written in them, or by NaN; others by nothing."""

from dataclasses import replace

import numpy as np
import pytest

from sdpa_onnx.core.attention.inputs import draw_inputs
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.faults.diagnosis import Explanation
from sdpa_onnx.core.faults.qk_diagnosis import explain_qk
from sdpa_onnx.core.judge.qk_agreement import QkExpectation, expect_qk
from tests.core.attentions import case

_LOWEST = Explanation(
    says="the score of a hidden key is the lowest finite number, not -inf", reading="hidden-score-lowest"
)


@pytest.fixture
def expectation() -> QkExpectation:
    asked = case("2x4x6", is_causal=True)
    precision = find_precision("float32")
    return expect_qk(asked.spec, draw_inputs(asked), mode=QkOutputMode.AFTER_MASK, precision=precision)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_lowest_number_is_named(expectation: QkExpectation, dtype: type[np.floating]) -> None:
    """The lowest number of the format where -inf belongs, also with a score added to it."""
    lowest = float(np.finfo(dtype).min)
    hidden = np.isneginf(expectation.expected)
    assert hidden.any()
    for number in (lowest, 0.75 * lowest):
        # The other scores are the oracle's own up to the format, so the bound must be that of the format.
        actual = np.where(hidden, number, expectation.expected).astype(dtype)
        known = replace(expectation, bound=expectation.bound + 0.01, largest=1e30)
        assert explain_qk(known, actual) == _LOWEST


def test_nan_is_named(expectation: QkExpectation) -> None:
    """Scores that are all NaN."""
    actual = np.full(expectation.expected.shape, np.nan, np.float32)
    assert explain_qk(expectation, actual) == Explanation(says="every score is NaN", reading="all-not-finite")


def test_other_faults_have_no_name(expectation: QkExpectation) -> None:
    """A wrong score with the lowest number, zero for a hidden key, another shape, and correct scores."""
    right = expectation.expected.astype(np.float32)
    hidden = np.isneginf(right)
    beside = np.where(hidden, np.finfo(np.float32).min, right)
    beside[0, 0, 0, 0] += 1.0
    for actual in (beside, np.where(hidden, 0.0, right).astype(np.float32), right[:, :1], right):
        assert explain_qk(expectation, actual) is None
