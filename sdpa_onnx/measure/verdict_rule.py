"""The verdicts of one table from raw samples of its arms: which clock, which ratios, the result of the paired test.

A pure function of samples, so that recorded ones can be judged again with fewer launches.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.core.timing.paired import (
    Calibration,
    LaunchPair,
    RatioEstimate,
    StoppingLook,
    can_stop,
    judge_table,
    launch_pair,
    moved,
    random_effects,
)
from sdpa_onnx.measure.samples import CLONE, ArmSamples, Clock
from sdpa_onnx.measure.timing_plan import TimingPlan

__all__ = ["CLONE", "DISTURBED_LIMIT", "Decision", "clock_of", "decide", "launch_pairs", "quiet_blocks", "ratio"]

# Above this share of disturbed calls wall time is a lottery, and CPU time decides. Source: METHOD B.4.
DISTURBED_LIMIT = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The result of one look at a table.

    Args:
        look: The look.
        clock: "wall" or "cpu".
        estimates: Ratio to the baseline by arm, the baseline and the clone left out.
        clone: Of the clone, or None where there is none.
        verdicts: By arm.
        can_stop: Whether more launches would change no verdict.
        moving: Arms whose ratio was still changing while it was measured.
    """

    look: StoppingLook
    clock: Clock
    estimates: Mapping[str, RatioEstimate]
    clone: RatioEstimate | None
    verdicts: Mapping[str, RatioVerdict]
    can_stop: bool
    moving: frozenset[str] = frozenset()


def decide(
    samples: Mapping[str, ArmSamples],
    baseline: str,
    *,
    look: StoppingLook,
    plan: TimingPlan,
    threads: int,
    device: str = "cpu",
) -> Decision:
    """Judge a table at one look.

    Args:
        samples: By arm, the baseline among them, and `CLONE` where there is one; with more launches than the look
            has, the first count.
        baseline: Arm that ratios refer to.
        look: Launches and alpha.
        plan: Its calibration, margin and seed.
        threads: Threads inside one operator.
        device: "cpu" or "cuda".
    """
    seen = {name: sample.first(look.launches) for name, sample in samples.items()}
    clock = clock_of(seen, threads=threads, device=device)
    pairs = {
        name: launch_pairs(sample, seen[baseline], clock, seed=plan.seed)
        for name, sample in seen.items()
        if name != baseline
    }
    ratios = {name: random_effects(launches, plan.calibration) for name, launches in pairs.items()}
    clone = ratios.pop(CLONE, None)
    words = judge_table(ratios, clone, alpha=look.alpha)
    return Decision(
        look=look,
        clock=clock,
        estimates=ratios,
        clone=clone,
        verdicts=words,
        can_stop=can_stop(ratios, words, alpha=look.alpha, margin=plan.margin, last=_later(look, plan)),
        moving=frozenset(name for name, launches in pairs.items() if moved(launches)),
    )


def _later(look: StoppingLook, plan: TimingPlan) -> StoppingLook | None:
    """The last look of a plan, if it comes after this one."""
    last = plan.looks[-1]
    return last if last.launches > look.launches else None


def clock_of(samples: Mapping[str, ArmSamples], *, threads: int, device: str = "cpu") -> Clock:
    """CPU time where one thread on a CPU was disturbed, else wall time.

    The arm that was disturbed most decides: long calls are, and there are few of them beside the short ones of another.
    CPU time adds up over threads, and does not cover a GPU. Source: METHOD B.4.
    """
    if threads > 1 or device != "cpu":
        return "wall"
    return "cpu" if max(sample.disturbed for sample in samples.values()) > DISTURBED_LIMIT else "wall"


def ratio(
    arm: ArmSamples, baseline: ArmSamples, clock: Clock, calibration: Calibration, *, seed: int = 0
) -> RatioEstimate:
    """Ratio of two arms by one clock, over the blocks in which nobody else used the machine.

    Raises:
        CaseError: If there is no such block, or none that the clock could see.
    """
    return random_effects(launch_pairs(arm, baseline, clock, seed=seed), calibration)


def launch_pairs(arm: ArmSamples, baseline: ArmSamples, clock: Clock, *, seed: int = 0) -> list[LaunchPair]:
    """The two arms by launch; launches without a block in which nobody else used the machine are left out.

    Raises:
        CaseError: If there is a block and the clock saw no time in any.
    """
    pairs = []
    for launch, (ours, theirs) in enumerate(zip(arm.per_visit(clock), baseline.per_visit(clock), strict=True)):
        kept = np.ones(ours.size, dtype=bool) if arm.quiet is None else arm.quiet[launch]
        if kept.any():
            pairs.append(launch_pair(ours[kept], theirs[kept], seed=seed + launch))
    return pairs


def quiet_blocks(samples: Mapping[str, ArmSamples]) -> float:
    """Blocks of a launch in which nobody else used the machine, on average; all blocks where that was not asked."""
    sample = next(iter(samples.values()))
    if sample.quiet is None:
        return float(sample.wall_seconds.shape[1])
    return float(np.mean(sample.quiet.sum(axis=1)))
