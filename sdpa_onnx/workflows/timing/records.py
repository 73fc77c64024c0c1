"""A finished comparison written down, arm by arm. Measures and decides nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from sdpa_onnx.core.attention.roofline import AttentionWork, Ceilings, bound_by, roof_seconds
from sdpa_onnx.core.records.records import Outcome, RatioVerdict, Sizes, TimingRecord
from sdpa_onnx.core.timing.paired import RatioEstimate
from sdpa_onnx.core.timing.statistics import median_over_launches
from sdpa_onnx.errors import CaseError, ModelError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.measure.launch import ArmLaunch
from sdpa_onnx.measure.samples import Clock
from sdpa_onnx.measure.schedule import ScheduleResult
from sdpa_onnx.measure.timing_plan import TimingPlan
from sdpa_onnx.measure.verdict_rule import Decision, ratio
from sdpa_onnx.runtimes.base import RanReport
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.run_context import end_sizes, named_case
from sdpa_onnx.workflows.timing.graph_work import model_work, site_case
from sdpa_onnx.workflows.timing.job_folder import Arm

__all__ = ["RecordContext", "plain_record", "refused_record", "timed_record"]

# Clocks that differ by more tell of time that was not spent computing. Source: METHOD B.4.
_CLOCKS_DIFFER = 0.015
# A clock of a GPU that moves by more makes visits unlike. Source: METHOD B.5.
_GPU_CLOCK_MOVES = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordContext:
    """What is known of a comparison beside its samples.

    Args:
        check: Sizes, seed, threads.
        target: Name for the records.
        baseline: Arm that ratios refer to.
        plan: How much was measured.
        measured: The schedule's end.
        decision: Of its last look.
        ceilings: Of this machine for this case, or None.
        cache: "warm" or "cold".
        ran: What ran, by arm.
        warnings: For every arm.
        model_bytes: Size of the model's file by arm.
    """

    check: CheckOptions
    target: str
    baseline: str
    plan: TimingPlan
    measured: ScheduleResult
    decision: Decision
    ceilings: Ceilings | None
    cache: str
    ran: Mapping[str, RanReport]
    warnings: tuple[str, ...]
    model_bytes: Mapping[str, int]

    def device(self, name: str) -> str:
        """What an arm ran on, "cpu" or "cuda"."""
        return self.measured.launches[0][name].loaded.device


def plain_record(arm: Arm, check: CheckOptions, *, target: str, baseline: str) -> TimingRecord:
    """What is known of an arm before it runs."""
    case = named_case(arm.model, check, target)
    return TimingRecord(
        target=target,
        case=case.name,
        form=arm.form,
        opset=arm.opset,
        runtime=arm.runtime.name,
        group=case.name,
        spec=case.spec,
        past_seq_len=case.past_seq_len,
        sizes=_sizes(arm.model, check),
        dtype=arm.model.facts.dtype.value,
        arm=arm.name,
        baseline=baseline,
        threads=arm.threads or check.threads,
        python=arm.environment or ("" if arm.python is None else str(arm.python)),
        options=dict(arm.options),
        model_nodes=arm.model.node_counts(),
    )


def refused_record(
    arm: Arm, check: CheckOptions, outcome: Outcome, reason: str, *, target: str, baseline: str
) -> TimingRecord:
    """The record of an arm that was not timed."""
    plain = plain_record(arm, check, target=target, baseline=baseline)
    return msgspec.structs.replace(plain, outcome=outcome, reason=reason)


def timed_record(arm: Arm, told: RecordContext) -> TimingRecord:
    """The record of an arm that was timed."""
    plain = plain_record(arm, told.check, target=told.target, baseline=told.baseline)
    ran = told.ran.get(arm.name)
    record = _with_ratio(_with_times(plain, told, arm.name), told, arm.name)
    # Ceilings are those of the processor, for the threads of the comparison.
    is_below = told.device(arm.name) == "cpu" and plain.threads == told.check.threads
    record = _with_work(record, model_work(arm.model, told.check.sizes), told.ceilings if is_below else None)
    if ran is not None:
        record = msgspec.structs.replace(
            record,
            ran=dict(ran.node_counts),
            expanded=dict(ran.expanded),
            fused=dict(ran.fused),
            providers=dict(ran.providers),
        )
    return msgspec.structs.replace(
        record,
        warnings=(*_warnings(arm.name, ran, told), *record.warnings),
        model_bytes=told.model_bytes[arm.name],
        between_sd=told.plan.calibration.between_sd,
        cache=told.cache,
    )


def _warnings(name: str, ran: RanReport | None, told: RecordContext) -> tuple[str, ...]:
    launches = [launch[name] for launch in told.measured.launches]
    loaded = dict.fromkeys(warning for launch in launches for warning in launch.loaded.warnings)
    doubt = told.measured.doubts.get(name)
    failed = () if doubt is None else (f"Beside the timing itself something failed: {doubt}",)
    return (*(ran.warnings if ran else ()), *loaded, *told.warnings, *failed, *_gpu_clock_warning(launches))


def _gpu_clock_warning(launches: Sequence[ArmLaunch]) -> tuple[str, ...]:
    clocks = [visit.clock_mhz for launch in launches for visit in launch.visits if visit.clock_mhz > 0]
    if not clocks or max(clocks) <= (1.0 + _GPU_CLOCK_MOVES) * min(clocks):
        return ()
    return (f"The clock of the GPU went from {min(clocks):.0f} to {max(clocks):.0f} MHz while this was measured.",)


def _with_times(record: TimingRecord, told: RecordContext, name: str) -> TimingRecord:
    sample = told.measured.samples[name]
    launches = [launch[name] for launch in told.measured.launches]
    median = median_over_launches(np.median(sample.per_visit(told.decision.clock), axis=1))
    profiled = [launch.kernels for launch in launches if launch.kernels.kernel_seconds >= 0]
    return msgspec.structs.replace(
        record,
        median_seconds=median.estimate,
        median_low=median.low,
        median_high=median.high,
        wall_min_seconds=float(sample.wall_seconds.min()),
        clock=told.decision.clock,
        disturbed=sample.disturbed,
        calls=sample.wall_seconds.size,
        blocks=sample.wall_seconds.shape[1],
        launches=sample.launches,
        steady=sample.steady,
        switches=sample.switches,
        faults=sample.faults,
        create_seconds=_middle([launch.loaded.create_seconds for launch in launches]),
        first_seconds=_middle([launch.loaded.first_seconds for launch in launches]),
        new_length_seconds=_middle([launch.loaded.new_length_seconds for launch in launches]),
        idle_seconds=_middle([launch.idle_seconds for launch in launches]),
        kernel_seconds=_middle([one.kernel_seconds for one in profiled]),
        host_seconds=_middle([one.call_seconds - one.kernel_seconds for one in profiled]),
        peak_memory_bytes=int(_middle([launch.loaded.peak_bytes for launch in launches])),
        runtime_version=launches[0].loaded.version,
    )


def _with_ratio(record: TimingRecord, told: RecordContext, name: str) -> TimingRecord:
    decision, alpha = told.decision, told.decision.look.alpha
    known = msgspec.structs.replace(record, confidence=1.0 - sum(one.alpha for one in told.plan.looks))
    if name == told.baseline:
        return known
    estimate, verdict = decision.estimates[name], decision.verdicts[name]
    low, high = estimate.interval(alpha)
    # At least one where the word is open: what Holm's step asks of a table is more than what one ratio asks.
    needed = max(estimate.launches_needed(alpha), 1) if verdict is RatioVerdict.INCONCLUSIVE else 0
    wall, cpu = _by_clock(told, name, "wall"), _by_clock(told, name, "cpu")
    return msgspec.structs.replace(
        known,
        ratio=estimate.ratio,
        ratio_low=low,
        ratio_high=high,
        verdict=verdict,
        log_ratio_se=estimate.standard_error,
        degrees=estimate.degrees,
        detectable=estimate.detectable(alpha),
        launches_needed=needed,
        ratio_wall=-1.0 if wall is None else wall.ratio,
        ratio_cpu=-1.0 if cpu is None else cpu.ratio,
        warnings=(*_clock_warning(wall, cpu, alpha), *_moving_warning(name, decision)),
    )


def _by_clock(told: RecordContext, name: str, clock: Clock) -> RatioEstimate | None:
    """The ratio by one clock, or None where that clock tells nothing."""
    arms = told.measured.samples[name], told.measured.samples[told.baseline]
    on_cpu = {told.device(name), told.device(told.baseline)} == {"cpu"}
    if clock == "cpu" and (arms[0].quiet is not None or not on_cpu):
        return None
    try:
        return ratio(*arms, clock, told.plan.calibration, seed=told.plan.seed)
    except CaseError:
        return None


def _clock_warning(wall: RatioEstimate | None, cpu: RatioEstimate | None, alpha: float) -> tuple[str, ...]:
    """Where the two ratios differ by more than their noise: page faults, waiting, or a disturbed machine."""
    if wall is None or cpu is None:
        return ()
    noise = max(_CLOCKS_DIFFER, wall.half_width(alpha), cpu.half_width(alpha))
    if abs(wall.log_ratio - cpu.log_ratio) <= noise:
        return ()
    ratios = f"{wall.ratio:.3f} by wall time and {cpu.ratio:.3f} by CPU time"
    return (f"The ratio is {ratios}, which is more than either is uncertain.",)


def _moving_warning(name: str, decision: Decision) -> tuple[str, ...]:
    return (f"The ratio of {name} was still changing while it was measured.",) if name in decision.moving else ()


def _with_work(record: TimingRecord, work: AttentionWork | None, ceilings: Ceilings | None) -> TimingRecord:
    if work is None:
        return record
    counted = msgspec.structs.replace(
        record,
        useful_flops=work.useful_flops,
        executed_flops=work.executed_flops,
        exps=work.exps,
        bytes_moved=work.bytes_moved,
    )
    if ceilings is None or not record.median_seconds:
        return counted
    return msgspec.structs.replace(
        counted,
        roof_share=roof_seconds(work, ceilings) / record.median_seconds,
        bound_by=bound_by(work, ceilings, host_seconds=record.host_seconds),
    )


def _middle(seconds: list[float] | list[int]) -> float:
    """Median of what was measured, -1 where nothing was."""
    measured = [value for value in seconds if value >= 0]
    return float(np.median(measured)) if measured else -1.0


def _sizes(model: OnnxModel, check: CheckOptions) -> Sizes:
    """Sizes for charts: of the first attention, else of the named axes."""
    try:
        case = site_case(model, model.sites[0], check.sizes)
    except (ModelError, IndexError):
        return end_sizes(check)
    return Sizes(
        batch_size=case.batch_size,
        q_seq_len=case.q_seq_len,
        kv_seq_len=case.kv_seq_len,
        head_dim=case.spec.head_dim,
        q_num_heads=case.spec.q_num_heads,
    )
