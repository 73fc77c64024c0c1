"""Measure how much two processes of one model differ on this machine, and store the figure for later comparisons.

Does not store a figure that was measured while other work ran on the machine, and does not compute the statistics:
`core.timing.process_spread` does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.core.timing.paired import Calibration, StoppingLook
from sdpa_onnx.core.timing.process_spread import ProcessSpread, process_spread
from sdpa_onnx.measure.calibration import is_believable, load_calibration, machine_class, store_calibration
from sdpa_onnx.measure.machine_load import idle_cores, usable_cores
from sdpa_onnx.measure.pool import WorkerPool
from sdpa_onnx.measure.samples import ArmSamples
from sdpa_onnx.measure.timing_notice import announced
from sdpa_onnx.measure.timing_plan import TimingPlan
from sdpa_onnx.measure.verdict_rule import DISTURBED_LIMIT, clock_of
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.export.export_target import export_target
from sdpa_onnx.workflows.timing.comparison import TimedComparison, bench
from sdpa_onnx.workflows.timing.job_folder import Arm

__all__ = ["CalibrationResult", "calibrate", "judge_calibration"]

_RUNTIME = "ort-cpu"
# The attention of METHOD B.3, at a small and a middle length: processes differ by 0.45 % at one, 0.32 % at the other.
_SPEC = AttentionSpec(q_num_heads=8, kv_num_heads=8, head_dim=64)
_OPSET = 18
_LENGTHS = (128, 512)
# 6 processes of 4 launches at 2 lengths are 40 independent differences: the figure is then accurate to about 11 %
# (standard error of a standard deviation: 1 / sqrt(2 x 40)).
_PROCESSES, _LAUNCHES = 6, 4
# With fewer degrees of freedom than the default calibration, a figure would make comparisons worse.
_LEAST_DEGREES = Calibration().degrees


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationResult:
    """The result of a calibration.

    Args:
        before: The calibration in use until now.
        machine: Class of machine.
        idle: Idle cores just before; None where the system does not report it.
        cores: Cores that this process may use.
        spread: As measured; None where nothing could be measured.
        disturbed: Share of calls that lost time to other processes.
        refusal: Why the figure is not stored, one sentence; "" if it is.
        path: File of the stored figure, or None.
    """

    before: Calibration
    machine: str
    idle: float | None
    cores: int
    spread: ProcessSpread | None = None
    disturbed: float = 0.0
    refusal: str = ""
    path: Path | None = None


def calibrate(
    *,
    threads: int,
    budget_seconds: float,
    patience_seconds: float,
    seed: int = 0,
    on_progress: Callable[[str], None] = lambda _: None,
) -> CalibrationResult:
    """Time identical processes and store how much they differ, if the machine was quiet.

    Args:
        threads: Threads inside one operator.
        budget_seconds: For each of the two lengths.
        patience_seconds: Longest wait for one answer of a runtime.
        seed: Of inputs and order.
        on_progress: Called with a description of each step.

    Raises:
        FolderError: If the figure cannot be written.
    """
    before, idle = load_calibration(), idle_cores()
    with announced() as notice, WorkerPool(fresh=True, patience_seconds=patience_seconds) as pool:
        plan = _plan(budget_seconds, seed)
        found = [_compared(length, threads, plan, pool, on_progress) for length in _LENGTHS]
        others = len(notice.others())
    done = judge_calibration(found, before=before, idle=idle, others=others, threads=threads, seed=seed)
    if done.refusal or done.spread is None:
        return done
    kept = Calibration(between_sd=done.spread.between_sd, degrees=done.spread.degrees, machine=done.machine)
    return replace(done, path=store_calibration(kept))


def judge_calibration(
    found: Sequence[TimedComparison],
    *,
    before: Calibration,
    idle: float | None,
    others: int,
    threads: int,
    seed: int = 0,
) -> CalibrationResult:
    """Decide whether comparisons of identical processes give a figure to store.

    Args:
        found: A comparison for each length; every arm is the same.
        before: The calibration in use until now.
        idle: Idle cores just before.
        others: Number of other timings that overlapped.
        threads: Threads inside one operator.
        seed: Of the bootstrap.
    """
    done = CalibrationResult(before=before, machine=machine_class(), idle=idle, cores=len(usable_cores()))
    failed = [record for one in found for record in one.records.values() if record.outcome is not Outcome.OK]
    if failed:
        return replace(done, refusal=f"Nothing was measured: {failed[0].reason}")
    samples = [one.samples for one in found]
    disturbed = _disturbed(samples)
    spread = process_spread([times for one in samples for times in _launches(one, threads)], seed=seed)
    return replace(done, spread=spread, disturbed=disturbed, refusal=_refusal(spread, others, disturbed))


def _refusal(spread: ProcessSpread, others: int, disturbed: float) -> str:
    if others:
        return f"Not kept: {others} other timing(s) ran on this machine meanwhile. Repeat after they have finished."
    if disturbed > DISTURBED_LIMIT:  # another clock would decide, and the figure would be that of a busy machine
        return (
            f"Not kept: {disturbed:.0%} of the calls lost time to other processes, at most {DISTURBED_LIMIT:.0%} may. "
            "Repeat on a quiet machine."
        )
    if spread.degrees < _LEAST_DEGREES:
        return (
            f"Not kept: the figure has {spread.degrees:.1f} degrees of freedom, at least {_LEAST_DEGREES:g} are "
            "needed. Use more --seconds."
        )
    if not is_believable(spread.between_sd, spread.degrees):
        return f"Not kept: a difference of {spread.between_sd:.3%} between processes is implausible. Repeat it later."
    return ""


def _compared(
    length: int, threads: int, plan: TimingPlan, pool: WorkerPool, on_progress: Callable[[str], None]
) -> TimedComparison:
    """Identical processes at one length."""
    model = export_target(_SPEC, opset=_OPSET, form=None, dtype=Dtype.FLOAT32)
    runtime = get_runtime(_RUNTIME)
    arms = [Arm(name=f"process {number + 1}", model=model, runtime=runtime) for number in range(_PROCESSES)]
    sizes = {"batch_size": 1, "q_seq_len": length, "kv_seq_len": length}
    check = CheckOptions(sizes=sizes, spreads=(1.0,), seed=plan.seed, threads=threads)
    return bench(
        arms,
        check,
        target="calibration",
        baseline=arms[0].name,
        plan=plan,
        pool=pool,
        on_progress=lambda step: on_progress(f"length {length}: {step}"),
    )


def _plan(budget_seconds: float, seed: int) -> TimingPlan:
    """All launches at one look, with visits only."""
    looks = (StoppingLook(launches=_LAUNCHES, alpha=0.01),)
    return TimingPlan(looks=looks, budget_seconds=budget_seconds, clone=False, extras=False, seed=seed)


def _launches(samples: Mapping[str, ArmSamples], threads: int) -> list[NDArray[np.float64]]:
    """For each launch an array (processes, blocks): one statistic per visit, by the clock that decides."""
    clock = clock_of(samples, threads=threads)
    visits = np.stack([sample.per_visit(clock) for sample in samples.values()])
    return [visits[:, launch] for launch in range(visits.shape[1])]


def _disturbed(samples: Sequence[Mapping[str, ArmSamples]]) -> float:
    every = [sample for one in samples for sample in one.values()]
    calls = sum(sample.wall_seconds.size for sample in every)
    return sum(sample.disturbed * sample.wall_seconds.size for sample in every) / max(calls, 1)
