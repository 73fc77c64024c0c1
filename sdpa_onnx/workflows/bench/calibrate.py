"""Measure how much two processes of one model differ on this machine, and keep the figure for later comparisons.

Keeps nothing that was measured while other work ran on the machine; `core.timing.process_spread` has the statistics.
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
# METHOD B.3's own attention, at a small and a middle length: processes differ by 0.45 % at one, by 0.32 % at another.
_SPEC = AttentionSpec(q_num_heads=8, kv_num_heads=8, head_dim=64)
_OPSET = 18
_LENGTHS = (128, 512)
# 6 processes of 4 launches at 2 lengths are 40 independent differences: the figure is then good to about 11 %
# (standard error of a standard deviation: 1 / sqrt(2 x 40)).
_PROCESSES, _LAUNCHES = 6, 4
# Worth less than what is supposed of every machine, a figure would make comparisons worse.
_LEAST_DEGREES = Calibration().degrees


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationResult:
    """What a calibration found.

    Args:
        before: What comparisons have reckoned with so far.
        machine: Class of machine.
        idle: Cores that nobody used just before; None where the system does not say.
        cores: That this process may use.
        spread: As measured; None where nothing could be measured.
        disturbed: Share of calls that lost time to others.
        refusal: Why the figure is not kept, one sentence; "" if it is.
        path: Where it is kept, or None.
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
    """Time identical processes and keep how much they differ, if the machine was quiet.

    Args:
        threads: Threads inside one operator.
        budget_seconds: For each of the two lengths.
        patience_seconds: Longest wait for one answer of a runtime.
        seed: Of inputs and order.
        on_progress: Told what is being done.

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
    """Whether comparisons of identical processes give a figure to keep.

    Args:
        found: A comparison for each length; every arm is the same.
        before: What was reckoned with so far.
        idle: Cores that nobody used just before.
        others: Timings of others that overlapped.
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
        return f"Not kept: {others} other timing(s) ran on this machine meanwhile. Repeat when they have ended."
    if disturbed > DISTURBED_LIMIT:  # another clock would decide, and the figure would be of a machine at work
        return (
            f"Not kept: {disturbed:.0%} of the calls lost time to other processes, at most {DISTURBED_LIMIT:.0%} may. "
            "Repeat on a quiet machine."
        )
    if spread.degrees < _LEAST_DEGREES:
        return (
            f"Not kept: the figure is worth {spread.degrees:.1f} degrees of freedom, at least {_LEAST_DEGREES:g} are "
            "needed. Give more --seconds."
        )
    if not is_believable(spread.between_sd, spread.degrees):
        return f"Not kept: that processes differ by {spread.between_sd:.3%} cannot be believed. Repeat it later."
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
        on_progress=lambda words: on_progress(f"length {length}: {words}"),
    )


def _plan(budget_seconds: float, seed: int) -> TimingPlan:
    """All launches at one look; nothing but visits."""
    looks = (StoppingLook(launches=_LAUNCHES, alpha=0.01),)
    return TimingPlan(looks=looks, budget_seconds=budget_seconds, clone=False, extras=False, seed=seed)


def _launches(samples: Mapping[str, ArmSamples], threads: int) -> list[NDArray[np.float64]]:
    """Each launch (processes, blocks), one statistic a visit by the clock that decides."""
    clock = clock_of(samples, threads=threads)
    visits = np.stack([sample.per_visit(clock) for sample in samples.values()])
    return [visits[:, launch] for launch in range(visits.shape[1])]


def _disturbed(samples: Sequence[Mapping[str, ArmSamples]]) -> float:
    every = [sample for one in samples for sample in one.values()]
    calls = sum(sample.wall_seconds.size for sample in every)
    return sum(sample.disturbed * sample.wall_seconds.size for sample in every) / max(calls, 1)
