"""Time the forms of one attention against each other on a runtime, at one set of sizes.

A few calls each leave the slow ones behind; the rest are timed interleaved and paired. All run in worker processes: a
form that takes its process with it has failed. Decides nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sdpa_onnx.core.attention.form_choice import RacedArm
from sdpa_onnx.core.records.verdicts import Outcome
from sdpa_onnx.core.timing.paired import StoppingLook
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.measure.pool import WorkerPool
from sdpa_onnx.measure.timing_plan import TimingPlan
from sdpa_onnx.runtimes.arm_job import ArmJob
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.runtimes.workers import WorkerFailedError
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import draw_feeds
from sdpa_onnx.workflows.timing.comparison import bench
from sdpa_onnx.workflows.timing.job_folder import Arm, JobFolder

__all__ = ["FormRace", "RaceTime", "race"]

# An arm whose best of a few calls is this much slower than the best arm's cannot win: calls of one arm differ by less.
_LEFT_BEHIND = 1.5
_FIRST_CALLS = 3
# Launches, and blocks of each that are measured whatever they cost. METHOD B.4 has 4 and 40 for a claim; here a tie
# does no harm.
_LAUNCHES, _LEAST_BLOCKS = 2, 4
_ALPHA = 0.05
# Longest warm-up of one arm, as a share of the time for the comparison.
_WARM_UP_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceTime:
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
class FormRace:
    """All arms at one set of sizes, by name, in the order given."""

    sizes: Mapping[str, int]
    laps: Mapping[str, RaceTime]

    @property
    def raced(self) -> tuple[RacedArm, ...]:
        """The arms that ran, for the choice."""
        ran = {name: lap for name, lap in self.laps.items() if not lap.failure}
        return tuple(RacedArm(arm=name, ratio=lap.ratio, ratio_low=lap.ratio_low) for name, lap in ran.items())


def race(
    models: Mapping[str, OnnxModel],
    runtime: Runtime,
    sizes: Mapping[str, int],
    *,
    threads: int,
    budget_seconds: float,
    pool: WorkerPool,
    seed: int = 0,
) -> FormRace:
    """Time arms at one set of sizes.

    Args:
        models: By arm; all take the same inputs.
        runtime: Where they run; found by its name in a worker process.
        sizes: Size of every named axis.
        threads: Threads inside one operator.
        budget_seconds: For the comparison; one of slow arms may take longer.
        pool: Keeps the workers over several races.
        seed: Of the inputs and of the order.
    """
    arms = {name: Arm(name=name, model=model, runtime=runtime) for name, model in models.items()}
    check = CheckOptions(sizes=sizes, spreads=(1.0,), seed=seed, threads=threads)
    first = _first_calls(arms, check, pool)
    ran = {name: seconds for name, seconds in first.items() if isinstance(seconds, float)}
    laps = {name: RaceTime(failure=error) for name, error in first.items() if isinstance(error, str)}
    if ran:
        laps |= _laps(arms, ran, check, budget_seconds, pool)
    return FormRace(sizes=sizes, laps={name: laps[name] for name in models})


def _first_calls(arms: Mapping[str, Arm], check: CheckOptions, pool: WorkerPool) -> dict[str, float | str]:
    """By arm the best of a few calls after one that warms up, seconds, or the runtime's error."""
    found: dict[str, float | str] = {}
    with JobFolder() as folder:
        for name, arm in arms.items():
            try:
                feeds = draw_feeds(arm.model, check.sizes, spread=1.0, seed=check.seed)
                job = folder.job(arm, feeds, threads=check.threads)
            except ModelError as error:
                found[name] = str(error)
                continue
            found[name] = _best_call(job, pool)
    return found


def _best_call(job: ArmJob, pool: WorkerPool) -> float | str:
    try:
        with pool.lend(job) as worker:
            return float(worker.visit(_FIRST_CALLS).wall_ns.min()) * 1e-9
    except WorkerFailedError as error:
        return str(error)


def _laps(
    arms: Mapping[str, Arm], first: Mapping[str, float], check: CheckOptions, budget_seconds: float, pool: WorkerPool
) -> dict[str, RaceTime]:
    """Measure to the end what is not far behind, paired with the arm that was best at first."""
    best = min(first, key=lambda name: first[name])
    near = [name for name in first if first[name] <= _LEFT_BEHIND * first[best]]
    behind = {name: _lap(seconds, seconds / first[best]) for name, seconds in first.items() if name not in near}
    if len(near) == 1:
        return behind | {best: RaceTime(seconds=first[best], ratio=1.0, ratio_low=1.0, ratio_high=1.0)}
    comparison = bench(
        [arms[name] for name in near],
        check,
        target="auto",
        baseline=best,
        plan=_plan(budget_seconds, check.seed),
        pool=pool,
    )
    records = comparison.records
    fastest = min((record.ratio for record in records.values() if record.outcome is Outcome.OK), default=1.0)
    laps = {}
    for name, record in records.items():
        match record.outcome:
            case Outcome.OK:
                laps[name] = RaceTime(
                    seconds=record.median_seconds,
                    ratio=record.ratio / fastest,
                    ratio_low=record.ratio_low / fastest,
                    ratio_high=record.ratio_high / fastest,
                )
            case Outcome.SKIPPED:  # several threads on a busy machine: the first calls are all there is
                laps[name] = _lap(first[name], first[name] / first[best])
            case _:
                laps[name] = RaceTime(failure=record.reason)
    return behind | laps


def _lap(seconds: float, ratio: float) -> RaceTime:
    return RaceTime(seconds=seconds, ratio=ratio, ratio_low=ratio, ratio_high=ratio, left_behind=True)


def _plan(budget_seconds: float, seed: int) -> TimingPlan:
    return TimingPlan(
        looks=(StoppingLook(launches=_LAUNCHES, alpha=_ALPHA),),
        least_blocks=_LEAST_BLOCKS,
        budget_seconds=budget_seconds,
        warm_up_seconds=_WARM_UP_SHARE * budget_seconds,
        clone=False,
        extras=False,
        seed=seed,
    )
