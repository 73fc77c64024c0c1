"""Write the timing record of each arm of a finished comparison. Measures and decides nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from sdpa_onnx.core.attention.roofline import AttentionWork, Ceilings, bound_by, roof_seconds
from sdpa_onnx.core.records.records import Outcome, RatioVerdict, Sizes, TimingRecord
from sdpa_onnx.core.timing.paired import RatioEstimate
from sdpa_onnx.core.timing.statistics import call_times, median_over_launches
from sdpa_onnx.errors import CaseError, ModelError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.measure.launch import ArmLaunch
from sdpa_onnx.measure.samples import Clock
from sdpa_onnx.measure.schedule import ScheduleResult
from sdpa_onnx.measure.timing_plan import TimingPlan
from sdpa_onnx.measure.verdict_rule import Decision, ratio
from sdpa_onnx.runtimes.base import RanReport
from sdpa_onnx.runtimes.torch_compiled import TORCH_COMPILE
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.run_context import end_sizes, named_case
from sdpa_onnx.workflows.timing.graph_work import CountedWork, site_case
from sdpa_onnx.workflows.timing.job_folder import Arm

__all__ = ["RecordContext", "plain_record", "refused_record", "timed_record"]

# A larger difference between the clocks means time that was not spent computing. Source: METHOD B.4.
_CLOCKS_DIFFER = 0.015
# If the GPU clock changes by more, visits are not comparable. Source: METHOD B.5.
_GPU_CLOCK_MOVES = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordContext:
    """The context that all records of a comparison share.

    Args:
        check: Sizes, seed, threads.
        target: Name for the records.
        baseline: Arm that ratios refer to.
        plan: How much was measured.
        measured: The result of the schedule.
        decision: Of its last look.
        ceilings: Of this machine for this case, or None.
        cache: "warm" or "cold".
        ran: Kernels and nodes that ran, by arm.
        warnings: For every arm.
        model_bytes: Size of the model's file by arm.
        works: Of one call, by arm.
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
    model_bytes: Mapping[str, int | None]
    works: Mapping[str, CountedWork] = field(default_factory=dict)

    def device(self, name: str) -> str:
        """Device that an arm ran on, "cpu" or "cuda"."""
        return self.measured.launches[0][name].loaded.device


def plain_record(arm: Arm, check: CheckOptions, *, target: str, baseline: str) -> TimingRecord:
    """The record of an arm before it runs."""
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


def timed_record(arm: Arm, context: RecordContext) -> TimingRecord:
    """The record of an arm that was timed."""
    plain = plain_record(arm, context.check, target=context.target, baseline=context.baseline)
    ran = context.ran.get(arm.name)
    record = _with_ratio(_with_times(plain, context, arm.name), context, arm.name)
    # Ceilings hold for the CPU and the threads of the comparison only.
    is_below = context.device(arm.name) == "cpu" and plain.threads == context.check.threads
    counted = context.works.get(arm.name, CountedWork(work=None))
    record = _with_work(record, counted.work, context.ceilings if is_below else None)
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
        warnings=(*_warnings(arm.name, ran, context), *record.warnings, *((counted.reason,) if counted.reason else ())),
        model_bytes=context.model_bytes[arm.name],
        between_sd=context.plan.calibration.between_sd,
        cache=context.cache,
    )


def _warnings(name: str, ran: RanReport | None, context: RecordContext) -> tuple[str, ...]:
    launches = [launch[name] for launch in context.measured.launches]
    loaded = dict.fromkeys(warning for launch in launches for warning in launch.loaded.warnings)
    doubt = context.measured.doubts.get(name)
    failed = () if doubt is None else (f"An extra measurement failed: {doubt}",)
    return (*(ran.warnings if ran else ()), *loaded, *context.warnings, *failed, *_gpu_clock_warning(launches))


def _gpu_clock_warning(launches: Sequence[ArmLaunch]) -> tuple[str, ...]:
    clocks = [visit.clock_mhz for launch in launches for visit in launch.visits if visit.clock_mhz > 0]
    if not clocks or max(clocks) <= (1.0 + _GPU_CLOCK_MOVES) * min(clocks):
        return ()
    return (f"The clock of the GPU varied from {min(clocks):.0f} to {max(clocks):.0f} MHz during the measurement.",)


def _with_times(record: TimingRecord, context: RecordContext, name: str) -> TimingRecord:
    sample = context.measured.samples[name]
    launches = [launch[name] for launch in context.measured.launches]
    median = median_over_launches(np.median(sample.per_visit(context.decision.clock), axis=1))
    profiled = [launch.kernels for launch in launches if launch.kernels.kernel_seconds >= 0]
    peak = _middle([launch.loaded.peak_bytes for launch in launches])
    calls, is_single = call_times(sample.wall_seconds), context.device(name) == "cpu"
    return msgspec.structs.replace(
        record,
        median_seconds=median.estimate,
        median_low=median.low,
        median_high=median.high,
        wall_min_seconds=float(sample.wall_seconds.min()),
        nodes=next((one.nodes for one in profiled if one.nodes), ()) if context.plan.nodes else (),
        p50_seconds=calls.p50 if is_single else None,
        p90_seconds=calls.p90 if is_single else None,
        p99_seconds=calls.p99 if is_single else None,
        calls_per_second=calls.per_second,
        clock=context.decision.clock,
        disturbed=sample.disturbed,
        calls=sample.wall_seconds.size,
        blocks=sample.wall_seconds.shape[1],
        launches=sample.launches,
        steady=sample.steady,
        switches=sample.switches,
        faults=sample.faults,
        create_seconds=_middle([launch.loaded.create_seconds for launch in launches]),
        first_seconds=_middle([launch.loaded.first_seconds for launch in launches]),
        compile_seconds=launches[0].loaded.first_seconds if record.runtime == TORCH_COMPILE else None,
        new_length_seconds=_middle([launch.loaded.new_length_seconds for launch in launches]),
        idle_seconds=_middle([launch.idle_seconds for launch in launches]),
        kernel_seconds=_middle([one.kernel_seconds for one in profiled]),
        host_seconds=_middle([one.call_seconds - one.kernel_seconds for one in profiled]),
        peak_memory_bytes=None if peak is None else int(peak),
        runtime_version=launches[0].loaded.version,
    )


def _with_ratio(record: TimingRecord, context: RecordContext, name: str) -> TimingRecord:
    decision, alpha = context.decision, context.decision.look.alpha
    known = msgspec.structs.replace(record, confidence=1.0 - sum(one.alpha for one in context.plan.looks))
    if name == context.baseline:
        return msgspec.structs.replace(known, ratio=1.0, ratio_low=1.0, ratio_high=1.0)
    estimate, verdict = decision.estimates[name], decision.verdicts[name]
    low, high = estimate.interval(alpha)
    # At least one without a verdict: Holm's step requires more of a table than of a single ratio.
    needed = max(estimate.launches_needed(alpha), 1) if verdict is RatioVerdict.INCONCLUSIVE else 0
    wall, cpu = _by_clock(context, name, "wall"), _by_clock(context, name, "cpu")
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
        ratio_wall=None if wall is None else wall.ratio,
        ratio_cpu=None if cpu is None else cpu.ratio,
        warnings=(*_clock_warning(wall, cpu, alpha), *_moving_warning(name, decision)),
    )


def _by_clock(context: RecordContext, name: str, clock: Clock) -> RatioEstimate | None:
    """The ratio by one clock, or None where that clock is not usable."""
    arms = context.measured.samples[name], context.measured.samples[context.baseline]
    on_cpu = {context.device(name), context.device(context.baseline)} == {"cpu"}
    if clock == "cpu" and (arms[0].quiet is not None or not on_cpu):
        return None
    try:
        return ratio(*arms, clock, context.plan.calibration, seed=context.plan.seed)
    except CaseError:
        return None


def _clock_warning(wall: RatioEstimate | None, cpu: RatioEstimate | None, alpha: float) -> tuple[str, ...]:
    """A warning if the two ratios differ by more than their noise: page faults, waiting, or a disturbed machine."""
    if wall is None or cpu is None:
        return ()
    noise = max(_CLOCKS_DIFFER, wall.half_width(alpha), cpu.half_width(alpha))
    if abs(wall.log_ratio - cpu.log_ratio) <= noise:
        return ()
    ratios = f"{wall.ratio:.3f} by wall time and {cpu.ratio:.3f} by CPU time"
    return (f"The ratio is {ratios}: the difference is larger than the uncertainty of either.",)


def _moving_warning(name: str, decision: Decision) -> tuple[str, ...]:
    return (f"The ratio of {name} was still changing during the measurement.",) if name in decision.moving else ()


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


def _middle(values: Sequence[float | None]) -> float | None:
    """Median of the measured values, None if none was measured; a worker reports -1 for one that was not."""
    measured = [value for value in values if value is not None and value >= 0]
    return float(np.median(measured)) if measured else None


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
