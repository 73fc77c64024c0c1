"""How far the timings of a run can be trusted: how many verdicts hold, and what the others mean for the reader.

A verdict holds if it was reached and no check of the measurement contradicts it. A warm-up that did not settle leaves
the ratios valid, because the arms are visited in the same blocks; it makes their times in seconds approximate.
Source: docs/timing.md.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.report.text.labels import join_words
from sdpa_onnx.report.text.number_text import count
from sdpa_onnx.report.timing.case_groups import WrongArm, wrong_arm
from sdpa_onnx.report.timing.comparisons import RecordedComparison
from sdpa_onnx.report.timing.doubt import REMEDY, TimingDoubt

__all__ = ["TimingTrust", "timing_trust", "trust_sentence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingTrust:
    """Counts of what the timings of a run are worth.

    Args:
        ratios: Arms that were compared with their baseline.
        holding: Those with a verdict that no check contradicts.
        undecided: Those whose interval allows no verdict.
        noisy: Those of comparisons in which a clone of the baseline differed.
        doubts: Those with a verdict that a check contradicts, by the check.
        wrong: Those with a verdict whose outputs are wrong, so that their times do not count.
        arms: Arms that were timed, baselines included.
        unsettled: Arms whose warm-up reached no steady state.
        on_busy: Those that compare CPU time, because other processes disturbed the calls.
    """

    ratios: int
    holding: int
    undecided: int
    noisy: int
    doubts: Mapping[TimingDoubt, int]
    wrong: int
    arms: int
    unsettled: int
    on_busy: int

    @property
    def doubtful(self) -> int:
        """Verdicts that a check contradicts."""
        return sum(self.doubts.values())

    @property
    def is_mostly_doubtful(self) -> bool:
        """Whether at least as many verdicts are doubtful as hold, so that the run is worth repeating."""
        return bool(self.doubts) and self.doubtful >= self.holding


def timing_trust(found: Sequence[RecordedComparison], wrong: Collection[WrongArm] = ()) -> TimingTrust:
    """Count what holds.

    Args:
        found: The comparisons of a run.
        wrong: Arms whose outputs are wrong.
    """
    compared = [(one, arm) for one in found for arm in one.contenders]
    is_open = (RatioVerdict.INCONCLUSIVE, RatioVerdict.NOISY)
    judged = [(arm, one.judged(arm)) for one, arm in compared]
    verdicts = [ratio.verdict for _, ratio in judged]
    decided = [(arm, ratio) for arm, ratio in judged if ratio.verdict not in is_open]
    right = [ratio for arm, ratio in decided if wrong_arm(arm) not in wrong]
    doubts = Counter(ratio.doubt for ratio in right if ratio.doubt is not None)
    arms = [arm for one in found for arm in one.arms]
    return TimingTrust(
        ratios=len(compared),
        holding=len(right) - doubts.total(),
        undecided=verdicts.count(RatioVerdict.INCONCLUSIVE),
        noisy=verdicts.count(RatioVerdict.NOISY),
        doubts=doubts,
        wrong=len(decided) - len(right),
        arms=len(arms),
        unsettled=sum(arm.steady is False for arm in arms),
        on_busy=sum(arm.clock == "cpu" for _, arm in compared),
    )


def trust_sentence(trust: TimingTrust) -> str:
    """Whether the verdicts hold, and the consequence of what does not; "" if nothing was compared."""
    if not trust.ratios:
        return _unsettled(trust) if trust.arms else ""
    parts = [
        (trust.wrong, "of wrong outputs"),
        (trust.undecided, "open"),
        (trust.noisy, "noisy (ignore the ratio)" if trust.noisy else ""),
        (trust.doubtful, f"doubtful ({_cause(trust)}; {REMEDY})" if trust.doubts else ""),
    ]
    rest = join_words([f"{number} {_be(number)} {word}" for number, word in parts if number])
    verdicts = count(trust.ratios, "verdict")
    if trust.holding == trust.ratios:
        first = "the verdict holds" if trust.ratios == 1 else f"all {verdicts} hold"
    elif trust.doubtful == trust.ratios:
        none = "the verdict cannot" if trust.ratios == 1 else f"none of the {verdicts} can"
        first = f"{none} be trusted ({_cause(trust)}); {REMEDY}"
    else:
        first = f"{trust.holding} of {verdicts} {'holds' if trust.holding == 1 else 'hold'}; {rest}"
    sentences = [f"Timing: {first}.", _busy(trust)]
    return " ".join(sentence for sentence in sentences if sentence)


def _cause(trust: TimingTrust) -> str:
    """The most frequent reason for doubt, as a clause."""
    cause, number = max(trust.doubts.items(), key=lambda one: one[1])
    return cause.value if number == trust.doubtful else f"in {number} because {cause}"


def _busy(trust: TimingTrust) -> str:
    """CPU time leaves out the waiting, not what processes on the same core take from each other: caches and units."""
    if not trust.on_busy:
        return ""
    few = f"{trust.on_busy} of {count(trust.ratios, 'ratio')} {_be(trust.on_busy)}"
    return f"{few} of CPU time on a busy machine: a quiet one can differ."


def _unsettled(trust: TimingTrust) -> str:
    if not trust.unsettled:
        return ""
    few = "The time" if trust.arms == 1 else f"{trust.unsettled} of {trust.arms} times"
    return f"{few} in ms {_be(trust.unsettled)} approximate (warm-up not settled)."


def _be(number: int) -> str:
    return "is" if number == 1 else "are"
