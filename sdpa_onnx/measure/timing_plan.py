"""How much a comparison in worker processes measures, and when it stops."""

from dataclasses import dataclass, field
from enum import StrEnum

from sdpa_onnx.core.timing.paired import LOOKS, Calibration, StoppingLook

__all__ = ["Cache", "TimingPlan", "blocks_of_launch", "calls_of_a_visit"]

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
    cache: Cache = Cache.AUTO
    calibration: Calibration = field(default_factory=Calibration)
    seed: int = 0


def blocks_of_launch(plan: TimingPlan, *, block_seconds: float, spent: float, setting_up: float) -> int:
    """Blocks of every launch: so many that all looks fit into the budget, or fewer looks.

    Args:
        plan: Its budget, looks and limits.
        block_seconds: What one block takes.
        spent: Seconds of the comparison so far, in the middle of its first launch.
        setting_up: Seconds of a launch before its first block.
    """
    for look in reversed(plan.looks):
        left = plan.budget_seconds - spent - (look.launches - 1) * setting_up
        blocks = int(left / (look.launches * max(block_seconds, 1e-9)))
        if blocks >= plan.least_blocks:
            return min(blocks, plan.blocks)
    return min(plan.least_blocks, plan.blocks)


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
