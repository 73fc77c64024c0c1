"""The rule for outputs: just inside and just outside the limit, for floats, integers, NaN and shapes."""

import numpy as np
import pytest

from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.workflows.check.output_check import (
    OutputRun,
    has_number,
    judge_output,
    relative_yardstick,
    source_agreement,
)

_TRUTH = np.array([[1.0, -2.0, 0.5]])
_SOURCE = (_TRUTH + np.array([[0.0, 1e-6, 0.0]])).astype(np.float32)
_OWN = float(np.abs(_SOURCE - _TRUTH).max())


def _run(error: float, **changes: object) -> OutputRun:
    actual = (_TRUTH + np.array([[error, 0.0, 0.0]])).astype(np.float64)
    run = {"truth": _TRUTH, "source": _SOURCE.astype(np.float64), "actual": actual}
    return OutputRun(**{**run, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(("share", "verdict"), [(0.999, Verdict.OK), (1.001, Verdict.SUSPICIOUS)])
def test_twice_the_source(share: float, verdict: Verdict) -> None:
    """The limit is twice the source's own error plus one rounding, here of float64."""
    allowed = 2.0 * _OWN + 2.0**-53 * 2.0
    found = judge_output(_run(share * allowed), 0.0)
    assert found.verdict is verdict
    assert found.max_bound_ratio == pytest.approx(share)


def test_says_both_errors() -> None:
    """The diagnosis has the error, its index, the source's own error and the limit."""
    found = judge_output(_run(1e-5), 0.0)
    assert found.diagnosis == (
        "The largest error is 1e-05 at (0, 0); the source's own in the same type is 9.54e-07, allowed 1.91e-06."
    )
    assert source_agreement(_run(0.0)).max_abs_error == pytest.approx(_OWN)


def test_lucky_source_is_measured_elsewhere() -> None:
    """An exact source at one size does not make the limit zero: its error at other sizes counts, by magnitude."""
    lucky = _run(1e-6, source=_TRUTH)
    assert judge_output(lucky, 0.0).verdict is Verdict.SUSPICIOUS
    assert judge_output(lucky, relative_yardstick([lucky, _run(0.0)])).verdict is Verdict.OK


def test_wrong_source_is_no_yardstick() -> None:
    """If the oracle finds the source wrong on the runtime, its error does not widen the limit."""
    wrong = _run(0.1, source=_TRUTH + 0.5, is_source_right=False)
    assert relative_yardstick([wrong]) == 0.0
    assert judge_output(wrong, relative_yardstick([wrong])).verdict is Verdict.SUSPICIOUS


def test_nan_only_where_the_source_has_it() -> None:
    """NaN instead of a number is wrong; a number instead of NaN is reported and not compared."""
    nan = np.array([[np.nan, -2.0, 0.5]])
    lost = judge_output(_run(0.0, actual=nan), 0.0)
    assert (lost.verdict, lost.diagnosis) == (
        Verdict.WRONG,
        "1 of 3 elements are NaN or infinite where the source is finite.",
    )
    gained = judge_output(_run(0.0, truth=nan, source=nan), 0.0)
    assert gained.verdict is Verdict.OK
    assert gained.warnings == ("The source is NaN or infinite at 1 of 3 elements where the result is finite.",)
    nothing = _run(0.0, truth=np.full((1, 3), np.nan))
    assert not has_number(nothing)
    assert judge_output(nothing, 0.0).diagnosis == "The source returns no finite number here."


def test_whole_numbers_and_shapes() -> None:
    """Integers must be equal; another shape or type is wrong."""
    whole = np.array([1, 2, 3])
    same = OutputRun(truth=whole, source=whole, actual=whole)
    other = OutputRun(truth=whole, source=whole, actual=np.array([1, 2, 4]))
    assert judge_output(same, 0.0).verdict is Verdict.OK
    assert judge_output(other, 0.0).diagnosis == "1 of 3 elements differ from the source."
    cut = judge_output(_run(0.0, actual=_TRUTH[:, :2]), 0.0)
    assert cut.diagnosis == "The output is float64 (1, 2), that of the source is float64 (1, 3)."
    assert cut.verdict is Verdict.WRONG
