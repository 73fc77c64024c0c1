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

__all__ = ["ArmSamples", "Clock", "Plan", "SystemClock", "visit_arms"]


# Within 2 % of the best so far counts as steady; a median below it by more is a new best, and counting starts anew.
_STEADY_BELOW, _STEADY_ABOVE = 0.98, 1.02


class Clock(Protocol):
    """Two clocks, read together; tests give a fake one."""

    def wall_ns(self) -> int: ...

    def cpu_ns(self) -> int: ...


class SystemClock:
    """The real clocks: monotonic wall time, and CPU time of this process over all threads."""

    wall_ns = staticmethod(time.perf_counter_ns)
    cpu_ns = staticmethod(time.process_time_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure.

    Args:
        blocks: Blocks; each visits every arm once, in random order.
        visit_seconds: Aim for one visit; a visit has at least two calls.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSamples:
    """Raw samples of one arm.

    Args:
        wall_seconds: (blocks, calls), wall time of every call.
        cpu_seconds: (blocks, calls), CPU time of this process over the same call.
        steady: Whether warm-up reached a steady state.
    """

    wall_seconds: NDArray[np.float64]
    cpu_seconds: NDArray[np.float64]
    steady: bool

    @property
    def disturbed(self) -> float:
        """Share of calls whose wall time exceeds their CPU time by 3 % and 3 us.

        Means something for one thread only. Source: METHOD B.4.
        """
        return float(np.mean(self.wall_seconds - self.cpu_seconds > 0.03 * self.cpu_seconds + 3e-6))


def visit_arms(
    arms: Mapping[str, Callable[[], None]],
    plan: Plan,
    *,
    clock: Clock | None = None,
    on_block: Callable[[int], None] | None = None,
) -> dict[str, ArmSamples]:
    """Measure all arms interleaved.

    Args:
        arms: Name -> call that runs once on pre-bound buffers.
        plan: How much.
        clock: The clocks; None = the system's.
        on_block: Told the number of blocks done, for progress.

    Returns:
        Raw samples per arm; block k of every arm was measured in the same stretch of time.
    """
    clock = clock or SystemClock()
    calls: dict[str, int] = {}
    steady: dict[str, bool] = {}
    for name, call in arms.items():
        seconds, steady[name] = _warm_up(call, plan, clock)
        calls[name] = max(2, round(plan.visit_seconds / max(seconds, 1e-9)))
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
        if on_block is not None:
            on_block(block + 1)
    return {name: _as_samples(visits, steady=steady[name]) for name, visits in samples.items()}


def _warm_up(call: Callable[[], None], plan: Plan, clock: Clock) -> tuple[float, bool]:
    """Run until three CPU medians in a row lie within 2 % of the best so far; give wall seconds per call.

    Source: METHOD B.4. A machine that never gets there is reported, not hidden.
    """
    deadline = clock.wall_ns() + int(plan.warm_up_seconds * 1e9)
    best = wall = float("inf")
    good = 0
    for _ in range(1000):
        visit = _visit(call, 5, clock)
        median = max(float(np.median(visit[1])), 1.0)
        wall = min(wall, float(visit[0].min()))
        good = (0 if median < _STEADY_BELOW * best else good) + 1 if median <= _STEADY_ABOVE * best else 0
        best = min(best, median)
        if good >= 3:
            return wall * 1e-9, True
        if clock.wall_ns() > deadline:
            break
    return wall * 1e-9, False


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
    return ArmSamples(wall_seconds=stacked[:, 0], cpu_seconds=stacked[:, 1], steady=steady)
