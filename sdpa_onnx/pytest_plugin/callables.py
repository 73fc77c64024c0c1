"""Time two callables and a clone of the baseline interleaved in this process; knows callables, not models.

The rule is that of METHOD B.4 with one launch: the interval includes the difference between two processes of one
program.
"""

import dataclasses
import math
import platform
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat

import numpy as np
from msgspec.structs import replace

from sdpa_onnx.core.records.records import TimingRecord
from sdpa_onnx.core.records.verdicts import Outcome, RatioVerdict
from sdpa_onnx.core.timing.paired import Calibration, RatioEstimate, StoppingLook
from sdpa_onnx.core.timing.statistics import bootstrap_median
from sdpa_onnx.errors import CaseError
from sdpa_onnx.measure.calibration import load_calibration
from sdpa_onnx.measure.samples import ArmSamples
from sdpa_onnx.measure.timing_notice import announced
from sdpa_onnx.measure.timing_plan import TimingPlan
from sdpa_onnx.measure.verdict_rule import CLONE, Decision, decide, ratio
from sdpa_onnx.measure.visits import Clock, SystemClock, VisitPlan, visit_arms
from sdpa_onnx.pytest_plugin.result import TimedArm, TimedPair, rounds_of
from sdpa_onnx.pytest_plugin.threads_used import ThreadsUsed, ThreadsWatch

__all__ = ["BASELINE", "CANDIDATE", "judge_pair", "time_callables"]

BASELINE, CANDIDATE = "baseline", "candidate"

# The runtime in the records of callables.
_RUNTIME = "python"
# One look; alpha is the rate of wrong verdicts that METHOD B.4 allows.
_LOOK = StoppingLook(launches=1, alpha=0.01)
# Greatest number of blocks of a launch, and the least for which METHOD B.3 found the rate of wrong verdicts near alpha.
_MOST_BLOCKS, _LEAST_BLOCKS = 160, 20
_VISIT_SECONDS = 0.01
_LONGEST_WARM_UP_SECONDS = 2.0
# Least duration of a timed batch of calls: the two readings of the clock, about 0.1 us, are then 0.2 % of it.
_BATCH_SECONDS = 50e-6
# Least duration of a Python call; the clock may read 0.
_SHORTEST_SECONDS = 1e-8
_TRIAL_CALLS = 5
# CPU time this much above wall time comes from other threads. Mirrors the rule for disturbed calls, METHOD B.4.
_THREADS_SHARE, _THREADS_SECONDS = 0.03, 3e-6
# If the ratios by the two clocks differ by more than this share, an arm waits, or has page faults. Source: METHOD B.4.
_CLOCKS_DIFFER = 0.015


def time_callables(
    baseline: Callable[[], object],
    candidate: Callable[[], object],
    *,
    seconds: float,
    seed: int = 0,
    clock: Clock | None = None,
) -> TimedPair:
    """Time two callables in random blocks, with a clone of the baseline as an arm that must be equal to it.

    Exceptions of the callables propagate. Tracing and profiling (coverage) are off during the measurement.

    Args:
        baseline, candidate: Called without arguments; their results are discarded.
        seconds: Time for the blocks; at least 20 are measured even if they take longer. Warm-up takes at most as long
            again, unless five calls of each arm take longer.
        seed: Seed of the order of visits.
        clock: None = the clock of the system.
    """
    clock = clock or SystemClock()
    with announced() as notice, _undisturbed():
        calls = {BASELINE: baseline, CANDIDATE: candidate, CLONE: baseline}
        trials = {name: _trial(calls[name], clock) for name in (BASELINE, CANDIDATE)}
        counts = {
            name: math.ceil(_BATCH_SECONDS / max(least, _SHORTEST_SECONDS)) for name, (least, _) in trials.items()
        }
        counts[CLONE] = counts[BASELINE]
        plan = VisitPlan(
            blocks=_MOST_BLOCKS,
            least_blocks=_LEAST_BLOCKS,
            visit_seconds=_VISIT_SECONDS,
            warm_up_seconds=min(_LONGEST_WARM_UP_SECONDS, seconds / 3.0),
            budget_seconds=seconds,
            seed=seed,
        )
        watch = ThreadsWatch()
        visits = visit_arms({name: _batch(call, counts[name]) for name, call in calls.items()}, plan, clock=clock)
        used = watch.used()
        others = notice.warnings()
    samples = {
        name: dataclasses.replace(
            sample,
            wall_seconds=sample.wall_seconds / counts[name],
            cpu_seconds=sample.cpu_seconds / counts[name],
        )
        for name, sample in visits.items()
    }
    return judge_pair(
        samples,
        counts=counts,
        waits=any(waits for _, waits in trials.values()),
        used=used,
        calibration=load_calibration(),
        doubts=others,
        seed=seed,
    )


def judge_pair(
    samples: Mapping[str, ArmSamples],
    *,
    counts: Mapping[str, int],
    waits: bool,
    used: ThreadsUsed | None = None,
    calibration: Calibration,
    doubts: tuple[str, ...] = (),
    seed: int = 0,
) -> TimedPair:
    """Form the records of both arms from samples of one launch.

    Args:
        samples: Samples of the baseline, the candidate and the clone.
        counts: Calls of each arm in a timed batch.
        waits: Whether a callable waits by itself (sleeps, reads): then wall time decides, never CPU time.
        used: The threads that worked during the measurement; None = judge from the samples.
        calibration: Difference between processes.
        doubts: Known reasons to doubt the samples, each one sentence.
        seed: Seed of the bootstrap.
    """
    arms = samples.values()
    helped = used is not None and used.several
    one_thread = not waits and not helped and all(_has_cpu_time(arm) and not _several_threads(arm) for arm in arms)
    plan = TimingPlan(looks=(_LOOK,), calibration=calibration, seed=seed)
    decision = decide(samples, BASELINE, look=_LOOK, plan=plan, threads=1 if one_thread else 2)
    by_clock = {name: _ratio(samples, name, calibration) for name in ("wall", "cpu")}
    undecidable = used.undecidable if used is not None else ""
    found = (*doubts, *_warnings(samples, decision, by_clock if one_thread else {}))
    warnings = (undecidable, *doubts) if undecidable else found
    timed = [
        TimedArm(
            record=replace(
                _plain(name, samples[name], decision, warnings)
                if undecidable
                else _record(name, samples[name], decision, by_clock, calibration, warnings),
                calls=samples[name].wall_seconds.size * counts[name],
                **({"outcome": Outcome.SKIPPED, "reason": undecidable} if undecidable and name == CANDIDATE else {}),
            ),
            rounds=rounds_of(samples[name], decision.clock),
            iterations=samples[name].wall_seconds.shape[2] * counts[name],
        )
        for name in (BASELINE, CANDIDATE)
    ]
    return TimedPair(baseline=timed[0], candidate=timed[1])


def _plain(name: str, sample: ArmSamples, decision: Decision, warnings: tuple[str, ...]) -> TimingRecord:
    """One arm by itself: no verdict, and no ratio but that of the baseline to itself."""
    median = bootstrap_median(sample.per_visit(decision.clock)[0])
    ratio = 1.0 if name == BASELINE else None
    return TimingRecord(
        arm=name,
        baseline=BASELINE,
        runtime=_RUNTIME,
        runtime_version=platform.python_version(),
        warnings=warnings,
        median_seconds=median.estimate,
        median_low=median.low,
        median_high=median.high,
        wall_min_seconds=float(sample.wall_seconds.min()),
        ratio=ratio,
        ratio_low=ratio,
        ratio_high=ratio,
        clock=decision.clock,
        disturbed=sample.disturbed,
        blocks=sample.wall_seconds.shape[1],
        steady=sample.steady,
        launches=sample.launches,
        confidence=1.0 - decision.look.alpha,
    )


def _record(
    name: str,
    sample: ArmSamples,
    decision: Decision,
    by_clock: Mapping[str, RatioEstimate | None],
    calibration: Calibration,
    warnings: tuple[str, ...],
) -> TimingRecord:
    """One arm; the candidate has the ratio."""
    plain = _plain(name, sample, decision, warnings)
    if name == BASELINE:
        return plain
    estimate = decision.estimates[name]
    low, high = estimate.interval(decision.look.alpha)
    return replace(
        plain,
        ratio=estimate.ratio,
        ratio_low=low,
        ratio_high=high,
        verdict=decision.verdicts[name],
        log_ratio_se=estimate.standard_error,
        degrees=estimate.degrees,
        between_sd=calibration.between_sd,
        detectable=estimate.detectable(decision.look.alpha),
        ratio_wall=_or_unknown(by_clock["wall"]),
        ratio_cpu=_or_unknown(by_clock["cpu"]),
    )


def _ratio(samples: Mapping[str, ArmSamples], clock: str, calibration: Calibration) -> RatioEstimate | None:
    """The ratio by one clock, or None if the clock measured no time."""
    try:
        return ratio(samples[CANDIDATE], samples[BASELINE], clock, calibration)
    except CaseError:
        return None


def _or_unknown(estimate: RatioEstimate | None) -> float | None:
    return None if estimate is None else estimate.ratio


def _warnings(
    samples: Mapping[str, ArmSamples], decision: Decision, by_clock: Mapping[str, RatioEstimate | None]
) -> Iterator[str]:
    for name, sample in samples.items():
        if not sample.steady and name != CLONE:
            yield f"The {name} reached no steady state in the warm-up."
    if decision.clone is not None and decision.verdicts[CANDIDATE] is RatioVerdict.NOISY:
        low, high = decision.clone.interval(decision.look.alpha)
        yield (
            f"A clone of the baseline takes {decision.clone.ratio:.3f} [{low:.3f}, {high:.3f}] times as long as the "
            "baseline: the machine is too noisy for a verdict."
        )
    wall, cpu = by_clock.get("wall"), by_clock.get("cpu")
    if wall is None or cpu is None or abs(wall.log_ratio - cpu.log_ratio) <= _CLOCKS_DIFFER:
        return
    low, high = wall.interval(decision.look.alpha)
    if not low <= cpu.ratio <= high:
        ratios = f"{wall.ratio:.3f} by wall time and {cpu.ratio:.3f} by CPU time"
        yield f"The ratio is {ratios}: one arm waits or sleeps."


def _has_cpu_time(sample: ArmSamples) -> bool:
    """Whether the CPU clock measures the call; it does not if another process or a device does the work."""
    return float(np.median(sample.cpu_seconds)) > 0.0


def _several_threads(sample: ArmSamples) -> bool:
    """Whether a call uses more CPU time than one thread can."""
    wall, cpu = float(np.median(sample.wall_seconds)), float(np.median(sample.cpu_seconds))
    return cpu > (1.0 + _THREADS_SHARE) * wall + _THREADS_SECONDS


def _trial(call: Callable[[], object], clock: Clock) -> tuple[float, bool]:
    """Least wall seconds of a few calls after the first, and whether the thread gave up its core voluntarily."""
    call()
    least, switches = math.inf, _voluntary_switches()
    for _ in range(_TRIAL_CALLS):
        start = clock.wall_ns()
        call()
        least = min(least, (clock.wall_ns() - start) * 1e-9)
    return least, 2 * (_voluntary_switches() - switches) > _TRIAL_CALLS


def _voluntary_switches() -> int:
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_nvcsw


def _batch(call: Callable[[], object], count: int) -> Callable[[], None]:
    """`count` calls as one."""

    def batch() -> None:
        for _ in repeat(None, count):
            call()

    return batch


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Disable the tracer and profiler of this thread: coverage slows Python down, and not all arms equally."""
    tracer, profiler = sys.gettrace(), sys.getprofile()
    sys.settrace(None)
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.settrace(tracer)
        sys.setprofile(profiler)
