"""The schedule of a comparison: warm up, then visit the arms in random order, block after block.

Knows calls, not models. Never times one arm and then the other: what disturbs
the machine must disturb all arms alike.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.timing.steady import WarmUp, judge_warm_up
from sdpa_onnx.measure.samples import ArmSamples
from sdpa_onnx.measure.timing_plan import calls_of_a_visit

__all__ = ["Clock", "SystemClock", "VisitPlan", "visit_arms"]

# Calls of a warm-up visit: a median of fewer says little, where calls are short enough for so many.
_WARM_UP_CALLS = 5


class Clock(Protocol):
    """Two clocks, read together; tests give a fake one."""

    def wall_ns(self) -> int: ...

    def cpu_ns(self) -> int: ...


class SystemClock:
    """The real clocks: monotonic wall time, and CPU time of this process over all threads."""

    wall_ns = staticmethod(time.perf_counter_ns)
    cpu_ns = staticmethod(time.process_time_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitPlan:
    """How much to measure.

    Args:
        blocks: Blocks; each visits every arm once, in random order.
        visit_seconds: Aim for one visit, see `calls_of_a_visit`.
        warm_up_seconds: At most this long per arm before the first block.
        budget_seconds: Stop after the block that passes this, but never below
            `least_blocks`.
        least_blocks: Blocks measured whatever they cost.
        seed: Order of the visits.

    Source: METHOD B.4 (visits of 10 ms or at least 2 calls; random blocks).
    """

    blocks: int = 40
    visit_seconds: float = 0.01
    warm_up_seconds: float = 2.0
    budget_seconds: float = 4.0
    least_blocks: int = 12
    seed: int = 0


def visit_arms(
    arms: Mapping[str, Callable[[], None]],
    plan: VisitPlan,
    *,
    clock: Clock | None = None,
) -> dict[str, ArmSamples]:
    """Measure all arms interleaved.

    Args:
        arms: Name -> call that runs once on pre-bound buffers.
        plan: How much.
        clock: The clocks; None = the system's.

    Returns:
        Raw samples per arm, of one launch; block k of every arm was measured in the same stretch of time.
    """
    clock = clock or SystemClock()
    calls: dict[str, int] = {}
    steady: dict[str, bool] = {}
    for name, call in arms.items():
        seconds, steady[name] = _warm_up(call, plan, clock)
        calls[name] = calls_of_a_visit(seconds, plan.visit_seconds)
    samples: dict[str, list[NDArray[np.int64]]] = {name: [] for name in arms}
    order = list(arms)
    rng = np.random.default_rng(plan.seed)
    start = clock.wall_ns()
    for block in range(plan.blocks):
        if block >= plan.least_blocks and (clock.wall_ns() - start) * 1e-9 > plan.budget_seconds:
            break
        rng.shuffle(order)
        for name in order:
            samples[name].append(_visit(arms[name], calls[name], clock))
    return {name: _as_samples(visits, steady=steady[name]) for name, visits in samples.items()}


def _warm_up(call: Callable[[], None], plan: VisitPlan, clock: Clock) -> tuple[float, bool]:
    """Run until the CPU medians of visits are steady; give wall seconds per call, and whether they were.

    The seconds are the mean over the last third of the visits: on a busy machine the least call is far below what a
    visit will take, and so many calls would pass every budget.

    Source: METHOD B.4, docs/decisions/0006. A machine that never gets there is reported, not hidden.
    """
    start = clock.wall_ns()
    medians: list[float] = []
    means: list[float] = []
    calls, count = 0, _WARM_UP_CALLS
    state = WarmUp.NOT_YET
    while state is WarmUp.NOT_YET:
        visit = _visit(call, count, clock)
        medians.append(float(np.median(visit[1])))
        means.append(float(visit[0].mean()) * 1e-9)
        calls += count
        count = min(_WARM_UP_CALLS, calls_of_a_visit(min(means), plan.visit_seconds))
        seconds = (clock.wall_ns() - start) * 1e-9
        state = judge_warm_up(medians, calls=calls, seconds=seconds, limit_seconds=plan.warm_up_seconds)
    last = means[-max(len(means) // 3, 1) :]
    return sum(last) / len(last), state is WarmUp.STEADY


def _visit(call: Callable[[], None], count: int, clock: Clock) -> NDArray[np.int64]:
    """(2, count): wall and CPU nanoseconds of each call."""
    times = np.empty((2, count), dtype=np.int64)
    wall_ns, cpu_ns = clock.wall_ns, clock.cpu_ns
    for index in range(count):
        cpu_start = cpu_ns()
        wall_start = wall_ns()
        call()
        wall_end = wall_ns()
        cpu_end = cpu_ns()
        times[0, index] = wall_end - wall_start
        times[1, index] = cpu_end - cpu_start
    return times


def _as_samples(visits: list[NDArray[np.int64]], *, steady: bool) -> ArmSamples:
    stacked = np.stack(visits).astype(np.float64) * 1e-9
    return ArmSamples(wall_seconds=stacked[None, :, 0], cpu_seconds=stacked[None, :, 1], steady=steady)
