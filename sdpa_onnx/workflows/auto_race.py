"""Time the forms of one attention against each other on a runtime, at one set of sizes.

One call each leaves the slow ones behind; the rest are timed interleaved and paired. Decides nothing.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sdpa_onnx.core.form_choice import Raced
from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.measure.visits import Plan
from sdpa_onnx.runtimes.base import LoadOptions, Purpose, Runtime
from sdpa_onnx.workflows.bench import Arm, bench
from sdpa_onnx.workflows.checked import Check
from sdpa_onnx.workflows.feeds import draw_feeds
from sdpa_onnx.workflows.guarded import ProcessDiedError

__all__ = ["Lap", "Race", "race"]

# An arm whose best of a few calls is this much slower than the best arm's cannot win: calls of one arm differ by less.
_LEFT_BEHIND = 1.5
_FIRST_CALLS = 3
# Blocks that are measured whatever they cost. METHOD B.4 has 12 for a table; here a tie does no harm.
_LEAST_BLOCKS = 8
# Longest warm-up of one arm, as a share of the time for the comparison.
_WARM_UP_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """What one arm took.

    Args:
        seconds: Median of a call; of an arm left behind, its best call.
        ratio, ratio_low, ratio_high: Over the fastest arm's, paired where it was measured to the end.
        left_behind: Whether it was not measured further after its first calls.
        failure: The runtime's error at these sizes, or "".
    """

    seconds: float = 0.0
    ratio: float = 0.0
    ratio_low: float = 0.0
    ratio_high: float = 0.0
    left_behind: bool = False
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """All arms at one set of sizes, by name, in the order given."""

    sizes: Mapping[str, int]
    laps: Mapping[str, Lap]

    @property
    def raced(self) -> tuple[Raced, ...]:
        """The arms that ran, for the choice."""
        ran = {name: lap for name, lap in self.laps.items() if not lap.failure}
        return tuple(Raced(arm=name, ratio=lap.ratio, ratio_low=lap.ratio_low) for name, lap in ran.items())


def race(
    models: Mapping[str, OnnxModel],
    runtime: Runtime,
    sizes: Mapping[str, int],
    *,
    threads: int,
    budget_seconds: float,
    seed: int = 0,
    on_block: Callable[[int], None] | None = None,
    apart: Runtime | None = None,
) -> Race:
    """Time arms at one set of sizes.

    Args:
        models: By arm; all take the same inputs.
        runtime: Where they run, in this process.
        sizes: Size of every named axis.
        threads: Threads inside one operator.
        budget_seconds: For the comparison; one of slow arms may take longer.
        seed: Of the inputs and of the order.
        on_block: Told the number of blocks done.
        apart: The same runtime in a process of its own, where every arm runs first: one that crashes there
            has failed, and is not run here. None = arms are taken not to crash.
    """
    first = {
        name: _crash(model, apart, sizes, threads, seed) or _first_calls(model, runtime, sizes, threads, seed)
        for name, model in models.items()
    }
    ran = {name: seconds for name, seconds in first.items() if isinstance(seconds, float)}
    laps = {name: Lap(failure=error) for name, error in first.items() if isinstance(error, str)}
    if ran:
        laps |= _laps(
            models,
            ran,
            runtime,
            Check(sizes=sizes, spreads=(1.0,), seed=seed, threads=threads),
            budget_seconds,
            on_block,
        )
    return Race(sizes=sizes, laps={name: laps[name] for name in models})


def _crash(model: OnnxModel, apart: Runtime | None, sizes: Mapping[str, int], threads: int, seed: int) -> str:
    """How the runtime took a process with it, or gave no answer; "" if it did not, or is not asked."""
    if apart is None:
        return ""
    try:
        with apart.load(model, LoadOptions(threads=threads)) as session:
            session.run(draw_feeds(model, sizes, spread=1.0, seed=seed))
    except ProcessDiedError as error:
        return str(error)
    except SessionError:
        return ""  # the first call here will say it
    return ""


def _first_calls(model: OnnxModel, runtime: Runtime, sizes: Mapping[str, int], threads: int, seed: int) -> float | str:
    """The best of a few calls after one that warms up, seconds, or the runtime's error."""
    try:
        with runtime.load(model, LoadOptions(threads=threads, purpose=Purpose.TIMING)) as session:
            call = session.bind(draw_feeds(model, sizes, spread=1.0, seed=seed))
            call()
            return min(_timed(call) for _ in range(_FIRST_CALLS))
    except SessionError as error:
        return str(error)


def _timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _laps(
    models: Mapping[str, OnnxModel],
    first: Mapping[str, float],
    runtime: Runtime,
    check: Check,
    budget_seconds: float,
    on_block: Callable[[int], None] | None,
) -> dict[str, Lap]:
    """Measure to the end what is not far behind, paired with the arm that was best at first."""
    best = min(first, key=lambda name: first[name])
    near = [name for name in first if first[name] <= _LEFT_BEHIND * first[best]]
    behind = {name: _lap(seconds, seconds / first[best]) for name, seconds in first.items() if name not in near}
    if len(near) == 1:
        return behind | {best: Lap(seconds=first[best], ratio=1.0, ratio_low=1.0, ratio_high=1.0)}
    comparison = bench(
        [Arm(name=name, model=models[name], runtime=runtime) for name in near],
        check,
        target="auto",
        baseline=best,
        plan=_plan(budget_seconds, check.seed),
        on_block=on_block,
    )
    fastest = min(record.ratio for record in comparison.records.values())
    measured = {
        name: Lap(
            seconds=record.median_seconds,
            ratio=record.ratio / fastest,
            ratio_low=record.ratio_low / fastest,
            ratio_high=record.ratio_high / fastest,
        )
        for name, record in comparison.records.items()
    }
    return behind | measured


def _lap(seconds: float, ratio: float) -> Lap:
    return Lap(seconds=seconds, ratio=ratio, ratio_low=ratio, ratio_high=ratio, left_behind=True)


def _plan(budget_seconds: float, seed: int) -> Plan:
    return Plan(
        budget_seconds=budget_seconds,
        warm_up_seconds=_WARM_UP_SHARE * budget_seconds,
        least_blocks=_LEAST_BLOCKS,
        seed=seed,
    )
