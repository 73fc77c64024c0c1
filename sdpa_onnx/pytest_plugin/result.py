"""Results of a paired comparison: the timed arms, and the result for the test. Measures nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.core.records.verdicts import Outcome, RatioVerdict

if TYPE_CHECKING:
    from sdpa_onnx.core.records.records import TimingRecord
    from sdpa_onnx.measure.samples import ArmSamples

__all__ = ["PairedResult", "TimedArm", "TimedPair", "paired_result", "rounds_of"]

# An interval whose ends differ by more than this factor does not even exclude a slowdown by 2: there is no answer.
_NO_ANSWER = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedArm:
    """One arm.

    Args:
        record: The record of the arm.
        rounds: Mean time of a call by the deciding clock, one number per visit, seconds.
        iterations: Calls per visit.
    """

    record: "TimingRecord"
    rounds: Sequence[float]
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPair:
    """The two arms of a comparison."""

    baseline: TimedArm
    candidate: TimedArm


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedResult:
    """Time of the candidate over that of the baseline, with its interval and its verdict.

    Args:
        test: Node id of the test; name: name of the comparison or ""; arms: "candidate / baseline".
        ratio: Candidate over baseline, below 1 = faster; ratio_low, ratio_high: its interval; None if undecidable.
        verdict: FASTER, SLOWER, EQUAL, INCONCLUSIVE or NOISY.
        clock: The clock of the ratio: "wall" (least time of a visit) or "cpu" (median of a visit).
        confidence: Confidence of the interval.
        baseline_seconds, candidate_seconds: Median over visits by that clock, seconds per call.
        blocks: Measured blocks per launch; launches: processes per arm, 1 = this process.
        disturbed: Share of calls that lost time to other processes, of the arm that lost more.
        margin: Allowed slowdown, as a share.
        warnings: Reasons to doubt the result, each one sentence.
        undecidable: Whether no verdict is possible on this machine now: the first warning has the reason, and the ratio
            is None.
    """

    test: str
    name: str
    arms: str
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    verdict: RatioVerdict
    clock: str
    confidence: float
    baseline_seconds: float
    candidate_seconds: float
    blocks: int
    launches: int
    disturbed: float
    margin: float
    warnings: tuple[str, ...]
    undecidable: bool = False

    def describe(self) -> str:
        """The comparison in one line."""
        name = f"{self.name}: " if self.name else ""
        launches = f" x {self.launches} launches" if self.launches > 1 else ""
        verdict = f"{self.verdict.value.upper()}{self._why_open()}"
        return (
            f"{name}{self.arms} {self._ratio_text()}{verdict} (medians {_shown(self.candidate_seconds)} and "
            f"{_shown(self.baseline_seconds)}, {self.clock}, {self.blocks} blocks{launches})"
        )

    def _ratio_text(self) -> str:
        return "" if self.ratio is None else f"{self.ratio:.3f} [{self.ratio_low:.3f}, {self.ratio_high:.3f}] "

    def _why_open(self) -> str:
        if self.undecidable:
            return ": undecidable on this machine now"
        is_open = self.verdict in (RatioVerdict.INCONCLUSIVE, RatioVerdict.NOISY)
        is_wide = known(self.ratio_high) > _NO_ANSWER * known(self.ratio_low)
        return ": no answer, too much disturbance" if is_open and is_wide else ""

    def assert_not_slower(self, *, strict: bool = False) -> None:
        """Fail if the candidate is slower by more than the margin.

        An interval that contains 1 + margin decides nothing and passes, as does a noisy measurement; the summary lists
        both.

        Args:
            strict: Also fail unless the interval shows that the slowdown is below the margin.

        Raises:
            AssertionError: With the ratio, its interval and both medians.
        """
        __tracebackhide__ = True
        limit = 1.0 + self.margin
        low, high = self.ratio_low, self.ratio_high
        has_answer = low is not None and high is not None and self.verdict is not RatioVerdict.NOISY
        if low is not None and has_answer and low > limit:
            raise AssertionError(f"Slower by more than {self.margin:.3g} of the baseline's time: {self.describe()}.")
        if strict and (high is None or not has_answer or high >= limit):
            raise AssertionError(
                f"Not shown to be slower by less than {self.margin:.3g} of the baseline's time: {self.describe()}."
            )


def rounds_of(sample: "ArmSamples", clock: str) -> list[float]:
    """Mean time of a call by the deciding clock, seconds, one number per visit, launch after launch."""
    seconds = sample.cpu_seconds if clock == "cpu" else sample.wall_seconds
    rounds: list[float] = seconds.mean(axis=-1).ravel().tolist()
    return rounds


def paired_result(pair: TimedPair, *, test: str, name: str, margin: float) -> PairedResult:
    """The result for a test from two timed arms."""
    record, baseline = pair.candidate.record, pair.baseline.record
    return PairedResult(
        test=test,
        name=name,
        arms=f"{record.arm} / {baseline.arm}",
        ratio=record.ratio,
        ratio_low=record.ratio_low,
        ratio_high=record.ratio_high,
        verdict=record.verdict or RatioVerdict.INCONCLUSIVE,
        clock=record.clock,
        confidence=known(record.confidence),
        baseline_seconds=known(baseline.median_seconds),
        candidate_seconds=known(record.median_seconds),
        blocks=known(record.blocks),
        launches=known(record.launches),
        disturbed=max(known(record.disturbed), known(baseline.disturbed)),
        margin=margin,
        warnings=record.warnings,
        undecidable=record.outcome is Outcome.SKIPPED,
    )


def _shown(seconds: float) -> str:
    """Format seconds with three digits and a fitting unit."""
    for limit, unit, scale in ((1e-6, "ns", 1e9), (1e-3, "us", 1e6), (1.0, "ms", 1e3)):
        if seconds < limit:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"
