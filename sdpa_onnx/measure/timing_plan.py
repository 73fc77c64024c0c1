"""How much a comparison in worker processes measures, and when it stops."""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

from sdpa_onnx.core.timing.paired import LOOKS, Calibration, StoppingLook
from sdpa_onnx.measure.deadline import Deadline

__all__ = ["Cache", "TimingPlan", "blocks_of_launch", "calls_of_a_visit", "lone_plan"]

_LEAST_CALLS = 2
# A call above this is a visit of its own. It finds the caches as another arm left them, as the first call of any visit
# does: at most 1.6 ms (32 MB at 20 GB/s) in all arms alike, and the time is better spent on more blocks.
_LONG_CALL_SECONDS = 0.02


class Cache(StrEnum):
    """Whether calls find their inputs in the processor's caches. AUTO: cold where the case is bound by memory."""

    AUTO = "auto"
    WARM = "warm"
    COLD = "cold"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingPlan:
    """How much to measure.

    Args:
        looks: After how many launches the test may stop, and at which share of alpha; the last is the end.
        blocks: Most blocks of a launch; each visits every arm once, in random order.
        least_blocks: Blocks of a launch that are measured whatever they cost.
        visit_seconds: Aim for one visit.
        budget_seconds: For the whole comparison, starts of processes included: blocks of a launch are taken so that the
            looks fit, and no look is begun that does not.
        warm_up_seconds: At most this long an arm and launch.
        margin: A gate's question, as a share: looks go on while the interval holds 1 + margin. None = no gate.
        clone: Whether a second process of the baseline is timed as an arm that must come out equal.
        extras: Whether to measure the run after idling and the time inside kernels too.
        nodes: Whether the time of each node is kept, which the extra measurements find.
        deadline: When the command must end: launches and blocks that would end later are left out.
        cache: Whether calls find their inputs in the processor's caches.
        calibration: Difference between processes on this class of machine.
        seed: Of the order of visits and of the bootstrap.

    Source: METHOD B.4.
    """

    looks: tuple[StoppingLook, ...] = LOOKS
    blocks: int = 80
    least_blocks: int = 40
    visit_seconds: float = 0.01
    budget_seconds: float = 30.0
    warm_up_seconds: float = 2.0
    margin: float | None = None
    clone: bool = True
    extras: bool = True
    nodes: bool = False
    deadline: Deadline = field(default_factory=Deadline)
    cache: Cache = Cache.AUTO
    calibration: Calibration = field(default_factory=Calibration)
    seed: int = 0


# Processes and blocks of an arm that is timed alone: nothing is compared, so the rules for verdicts do not apply. Three
# medians have an interval, and a percentile needs calls, not blocks.
_LONE_LAUNCHES, _LONE_BLOCKS, _LONE_LEAST_BLOCKS = 3, 40, 12


def lone_plan(plan: TimingPlan) -> TimingPlan:
    """The plan for one arm without a comparison: fewer launches and blocks, and no clone."""
    looks = (replace(plan.looks[0], launches=min(plan.looks[0].launches, _LONE_LAUNCHES)),)
    return replace(
        plan,
        looks=looks,
        blocks=min(plan.blocks, _LONE_BLOCKS),
        least_blocks=min(plan.least_blocks, _LONE_LEAST_BLOCKS),
        clone=False,
    )


def blocks_of_launch(plan: TimingPlan, *, block_seconds: float, spent: float, setting_up: float) -> int:
    """Blocks of every launch: so many that all looks fit into the budget, or fewer looks.

    Args:
        plan: Its budget, looks and limits.
        block_seconds: What one block takes.
        spent: Seconds of the comparison so far, in the middle of its first launch.
        setting_up: Seconds of a launch before its first block.
    """
    block_seconds = max(block_seconds, 1e-9)
    ending = plan.deadline.seconds_left
    most = plan.blocks if math.isinf(ending) else min(plan.blocks, max(int(ending / block_seconds), 1))
    budget = min(plan.budget_seconds, spent + ending)
    for look in reversed(plan.looks):
        left = budget - spent - (look.launches - 1) * setting_up
        blocks = int(left / (look.launches * block_seconds))
        if blocks >= plan.least_blocks:
            return min(blocks, most)
    return min(plan.least_blocks, most)


def calls_of_a_visit(seconds: float, visit_seconds: float) -> int:
    """Calls of one visit: about `visit_seconds`, at least two, but one where a call is long.

    Args:
        seconds: Of one call, undisturbed.
        visit_seconds: Aim for the visit.

    Source: METHOD B.4 (10 ms or at least 2 calls; with two the least is of a warm call).
    """
    if seconds > _LONG_CALL_SECONDS:
        return 1
    return max(_LEAST_CALLS, round(visit_seconds / max(seconds, 1e-9)))
