"""What a test sees of a comparison: one line, and an assertion that fails only where the slow-down is shown."""

from dataclasses import replace
from typing import Any

import pytest

from sdpa_onnx.core.records.records import Outcome, RatioVerdict, TimingRecord
from sdpa_onnx.pytest_plugin.result import PairedResult, TimedArm, TimedPair, paired_result

_LINE = "name: candidate / baseline 1.200 [1.100, 1.300] SLOWER (medians 1.2 ms and 1 ms, cpu, 80 blocks)"


def _result(low: float, high: float, verdict: RatioVerdict = RatioVerdict.SLOWER, **changes: Any) -> PairedResult:
    record = TimingRecord(
        arm="candidate",
        ratio=1.2,
        ratio_low=low,
        ratio_high=high,
        verdict=verdict,
        clock="cpu",
        median_seconds=1.2e-3,
        blocks=80,
        launches=1,
        confidence=0.99,
        disturbed=0.25,
    )
    baseline = TimingRecord(arm="baseline", median_seconds=1e-3, disturbed=0.5)
    pair = TimedPair(
        baseline=TimedArm(record=baseline, rounds=[1.0], iterations=1),
        candidate=TimedArm(record=record, rounds=[1.0], iterations=1),
    )
    return paired_result(pair, **{"test": "t", "name": "name", "margin": 0.05, **changes})


def test_an_interval_that_says_nothing_is_no_answer() -> None:
    """Ends a factor of two apart; a verdict other than inconclusive or noisy is unchanged."""
    shown = "name: candidate / baseline 1.200 [0.130, 7.600] INCONCLUSIVE: no answer, too much disturbance (medians "
    assert _result(0.13, 7.6, RatioVerdict.INCONCLUSIVE).describe().startswith(shown)
    assert "no answer" not in _result(0.8, 1.6, RatioVerdict.INCONCLUSIVE).describe()
    assert "no answer" not in _result(1.5, 4.0).describe()


def test_undecidable_has_no_ratio() -> None:
    """It passes, and does not where a slow-down must be ruled out."""
    record = TimingRecord(
        arm="candidate",
        outcome=Outcome.SKIPPED,
        reason="why",
        median_seconds=1.2e-3,
        clock="wall",
        blocks=20,
        launches=1,
        confidence=0.99,
        disturbed=0.0,
    )
    timed = [
        TimedArm(record=one, rounds=[1.0], iterations=1)
        for one in (TimingRecord(arm="baseline", median_seconds=1e-3, disturbed=0.0), record)
    ]
    result = paired_result(TimedPair(baseline=timed[0], candidate=timed[1]), test="t", name="", margin=0.05)
    shown = (
        "candidate / baseline INCONCLUSIVE: undecidable on this machine now (medians 1.2 ms and 1 ms, wall, 20 blocks)"
    )
    assert result.describe() == shown
    assert (result.ratio, result.ratio_low, result.ratio_high) == (None, None, None)
    result.assert_not_slower()
    with pytest.raises(AssertionError) as caught:
        result.assert_not_slower(strict=True)
    assert str(caught.value) == f"Not shown to be slower by less than 0.05 of the baseline's time: {shown}."


def test_one_line() -> None:
    """Name, ratio, interval, verdict, both medians, clock and blocks; the candidate first."""
    assert _result(1.1, 1.3).describe() == _LINE
    assert _result(1.1, 1.3, name="").describe() == _LINE.removeprefix("name: ")


def test_launches_are_told() -> None:
    """Blocks are those of one launch."""
    assert replace(_result(1.1, 1.3), launches=4).describe() == _LINE.replace("80 blocks", "80 blocks x 4 launches")


def test_the_worse_arm_tells_the_disturbance() -> None:
    """One disturbed arm spoils the pair."""
    assert _result(1.1, 1.3).disturbed == 0.5


@pytest.mark.parametrize(
    ("low", "high", "verdict", "fails", "fails_strictly"),
    [
        (1.0501, 1.3, RatioVerdict.SLOWER, True, True),
        (1.05, 1.3, RatioVerdict.SLOWER, False, True),  # the interval holds 1 + margin
        (1.02, 1.05, RatioVerdict.SLOWER, False, True),
        (1.02, 1.0499, RatioVerdict.SLOWER, False, False),  # slower, by less than what counts
        (0.98, 1.02, RatioVerdict.EQUAL, False, False),
        (0.90, 1.20, RatioVerdict.INCONCLUSIVE, False, True),
        (1.20, 1.30, RatioVerdict.NOISY, False, True),
        (0.90, 0.95, RatioVerdict.NOISY, False, True),
    ],
)
def test_what_fails(low: float, high: float, verdict: RatioVerdict, fails: bool, fails_strictly: bool) -> None:
    """Only an interval wholly above the margin fails; strictly, everything but one wholly below."""
    found = {}
    for strict in (False, True):
        try:
            _result(low, high, verdict).assert_not_slower(strict=strict)
        except AssertionError:
            found[strict] = True
    assert found == {strict: True for strict, bad in ((False, fails), (True, fails_strictly)) if bad}


def test_failures_say_why() -> None:
    """The margin and the complete line."""
    with pytest.raises(AssertionError) as caught:
        _result(1.1, 1.3).assert_not_slower()
    assert str(caught.value) == f"Slower by more than 0.05 of the baseline's time: {_LINE}."
    with pytest.raises(AssertionError) as caught:
        _result(1.02, 1.3).assert_not_slower(strict=True)
    line = _LINE.replace("1.100", "1.020")
    assert str(caught.value) == f"Not shown to be slower by less than 0.05 of the baseline's time: {line}."


@pytest.mark.parametrize(
    ("seconds", "shown"), [(2.5e-8, "25 ns"), (9.99e-7, "999 ns"), (1e-6, "1 us"), (1e-3, "1 ms"), (1.0, "1 s")]
)
def test_times_have_the_unit_that_fits(seconds: float, shown: str) -> None:
    """Three digits and a unit."""
    from sdpa_onnx.pytest_plugin.result import _shown

    assert _shown(seconds) == shown
