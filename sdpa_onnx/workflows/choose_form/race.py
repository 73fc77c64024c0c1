"""Time the forms of one attention against each other on a runtime, at one set of sizes.

A few first calls exclude the slow forms; the others are timed interleaved and paired. All run in worker
processes, so that a crash is a failure of one form. Does not choose the form.
"""

from collections.abc import Mapping

from sdpa_onnx.core.records.record_base import known
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
from sdpa_onnx.workflows.choose_form.race_time import FormRace, RaceTime
from sdpa_onnx.workflows.timing.comparison import bench
from sdpa_onnx.workflows.timing.job_folder import Arm, JobFolder

__all__ = ["race"]

# An arm whose best first call is this many times slower than the best arm's cannot win: calls of one arm vary less.
_SLOW_RATIO = 1.5
_FIRST_CALLS = 3
# Launches, and the minimum number of blocks of each. METHOD B.4 requires 4 and 40 for a claim; here a tie is harmless.
_LAUNCHES, _LEAST_BLOCKS = 2, 4
_ALPHA = 0.05
# Maximum warm-up of one arm, as a share of the time for the comparison.
_WARM_UP_SHARE = 0.1


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
        models: Models by arm; all have the same inputs.
        runtime: The runtime that runs them; a worker process finds it by name.
        sizes: Size of every named axis.
        threads: Threads inside one operator.
        budget_seconds: Time for the comparison; slow arms may take longer.
        pool: Keeps the workers for several races.
        seed: Seed of the inputs and of the order.
    """
    arms = {name: Arm(name=name, model=model, runtime=runtime) for name, model in models.items()}
    check = CheckOptions(sizes=sizes, spreads=(1.0,), seed=seed, threads=threads)
    first = _first_calls(arms, check, pool)
    ran = {name: seconds for name, seconds in first.items() if isinstance(seconds, float)}
    times = {name: RaceTime(failure=error) for name, error in first.items() if isinstance(error, str)}
    if ran:
        times |= _times(arms, ran, check, budget_seconds, pool)
    return FormRace(sizes=sizes, times={name: times[name] for name in models})


def _first_calls(arms: Mapping[str, Arm], check: CheckOptions, pool: WorkerPool) -> dict[str, float | str]:
    """By arm: seconds of the best of a few calls after one warm-up call, or the runtime's error."""
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
        with pool.lend(job) as (worker, _):
            return float(worker.visit(_FIRST_CALLS).wall_ns.min()) * 1e-9
    except WorkerFailedError as error:
        return str(error)


def _times(
    arms: Mapping[str, Arm], first: Mapping[str, float], check: CheckOptions, budget_seconds: float, pool: WorkerPool
) -> dict[str, RaceTime]:
    """Measure the arms that are not too slow, paired with the arm whose first calls were fastest."""
    best = min(first, key=lambda name: first[name])
    near = [name for name in first if first[name] <= _SLOW_RATIO * first[best]]
    slow = {name: _rough_time(seconds, seconds / first[best]) for name, seconds in first.items() if name not in near}
    if len(near) == 1:
        return slow | {best: RaceTime(seconds=first[best], ratio=1.0, ratio_low=1.0, ratio_high=1.0)}
    comparison = bench(
        [arms[name] for name in near],
        check,
        target="auto",
        baseline=best,
        plan=_plan(budget_seconds, check.seed),
        pool=pool,
    )
    records = comparison.records
    fastest = min((record.ratio for record in records.values() if record.ratio is not None), default=1.0)
    times = {}
    for name, record in records.items():
        match record.outcome:
            case Outcome.OK:
                times[name] = RaceTime(
                    seconds=known(record.median_seconds),
                    ratio=known(record.ratio) / fastest,
                    ratio_low=known(record.ratio_low) / fastest,
                    ratio_high=known(record.ratio_high) / fastest,
                )
            case Outcome.SKIPPED:  # several threads on a busy machine: only the first calls were measured
                times[name] = _rough_time(first[name], first[name] / first[best])
            case _:
                times[name] = RaceTime(failure=record.reason)
    return slow | times


def _rough_time(seconds: float, ratio: float) -> RaceTime:
    return RaceTime(seconds=seconds, ratio=ratio, ratio_low=ratio, ratio_high=ratio, is_rough=True)


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
