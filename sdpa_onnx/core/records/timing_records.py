"""The timing record: one per arm of a comparison.

Does not check that its figures are possible: timing_validity.py does.
"""

import msgspec

from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.records.one_line import ratio_part
from sdpa_onnx.core.records.record_base import BaseRecord, Sizes
from sdpa_onnx.core.records.verdicts import RatioVerdict

__all__ = ["NodeTime", "TimingRecord"]


class NodeTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time of one node of a graph, by the runtime's own profile.

    Args:
        node: Its name in the optimised graph; operator: its type.
        seconds: Of one call of the model, median over the profiled calls; nodes inside it, such as those of the branch
            of an If, count to it.
    """

    node: str
    operator: str
    seconds: float


class TimingRecord(BaseRecord, frozen=True, kw_only=True, tag_field="kind", tag="timing"):
    """One arm of an interleaved comparison.

    Args:
        group: The comparison; its arms were timed in one interleaved run.
        sizes: Sizes of the case.
        spec, past_seq_len: What the case computes and the keys in its cache, if it is one attention by itself;
            None for a larger model.
        dtype: Element type.
        arm: Name of this arm; baseline: name of the arm that ratios refer to.
        median_seconds, median_low, median_high: Median over launches of the median
            visit, by the chosen clock, seconds per call, with the 95 % t interval over launches; for one launch
            the interval is that number. None if it was not timed, like every figure below.
        wall_min_seconds: Smallest wall time of a call.
        p50_seconds, p90_seconds, p99_seconds: Percentiles of the wall time of single calls, over all launches; on a
            machine that others use, their load is in it. None where there are too few calls (10 for p90, 100 for p99),
            and on a GPU, where a sample is the mean of several calls.
        calls_per_second: Of one process that calls without pause: calls over their wall time.
        ratio, ratio_low, ratio_high: This arm over the baseline, paired block by
            block (below 1 = faster), with its interval; 1 for the baseline.
        clock: "wall" or "cpu"; threads: threads inside one operator.
        disturbed: Share of calls that lost time to other processes.
        calls, blocks: Number of calls and blocks; steady: warm-up reached a steady state.
        useful_flops, executed_flops: Operations of one call that count and that a
            kernel without skipping does.
        exps: Exponentials of one call; bytes_moved: fused lower bound.
        roof_share: Share of the measured GEMM + exp roof that the arm reaches
            on useful work, 0..1.
        verdict: Verdict on the ratio (METHOD B.4); None for the baseline and in records of earlier versions.
        launches: Number of processes of this arm that were measured; 1 = in our own process.
        confidence: Of the interval of the ratio.
        log_ratio_se, degrees: Standard error of the log ratio, differences between processes included, and the
            degrees of freedom of its t distribution; None if it was not estimated.
        between_sd: The calibration that it uses.
        detectable: Smallest slow-down found with 80 % power, as a share; None if unknown.
        launches_needed: Approximate number of further launches for a verdict; 0 if there is one.
        ratio_wall, ratio_cpu: The ratio by each clock; None if unknown.
        create_seconds, first_seconds, new_length_seconds, idle_seconds: Session creation, first run, first run at
            another length, run after idling; wall time, median over launches; None if not measured.
        compile_seconds: First run of an arm that compiles its module in it, in the first launch.
        nodes: The nodes that took longest, longest first; empty where it was not requested or is not reported.
        kernel_seconds: Time inside kernels of a call; host_seconds: the rest of the call; None if not measured.
        peak_memory_bytes: Greatest resident memory of the first run above the loaded state; None if unknown.
        cache: "warm" or "cold": whether calls found their inputs in the processor's caches.
        bound_by: What bounds the case on this machine: "products", "exponentials", "memory" or "host"; "" if unknown.
        switches, faults: Involuntary context switches and page faults over all visits; None if not counted.
        runtime_version: As the worker reports it; python: label of another environment, "" for ours.
        options: Settings of the runtime that differ from the default.
        model_nodes: Nodes of the file by operator type; model_bytes: its size, None if unknown.
        samples: File of raw samples, relative to the run folder.
        ran: Operator types that ran, with their node counts.
        expanded, fused, providers: As in `AgreementRecord`.
    """

    group: str = ""
    sizes: Sizes = Sizes()
    spec: AttentionSpec | None = None
    past_seq_len: int | None = None
    dtype: str = ""
    arm: str = ""
    baseline: str = ""
    median_seconds: float | None = None
    median_low: float | None = None
    median_high: float | None = None
    wall_min_seconds: float | None = None
    p50_seconds: float | None = None
    p90_seconds: float | None = None
    p99_seconds: float | None = None
    calls_per_second: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    clock: str = "wall"
    threads: int = 1
    disturbed: float | None = None
    calls: int | None = None
    blocks: int | None = None
    steady: bool | None = None
    useful_flops: int | None = None
    executed_flops: int | None = None
    exps: int | None = None
    bytes_moved: int | None = None
    roof_share: float | None = None
    verdict: RatioVerdict | None = None
    launches: int | None = None
    confidence: float | None = None
    log_ratio_se: float | None = None
    degrees: float | None = None
    between_sd: float | None = None
    detectable: float | None = None
    launches_needed: int | None = None
    ratio_wall: float | None = None
    ratio_cpu: float | None = None
    create_seconds: float | None = None
    first_seconds: float | None = None
    new_length_seconds: float | None = None
    idle_seconds: float | None = None
    compile_seconds: float | None = None
    kernel_seconds: float | None = None
    host_seconds: float | None = None
    peak_memory_bytes: int | None = None
    cache: str = "warm"
    bound_by: str = ""
    switches: int | None = None
    faults: int | None = None
    runtime_version: str = ""
    python: str = ""
    options: dict[str, str] = msgspec.field(default_factory=dict)
    model_nodes: dict[str, int] = msgspec.field(default_factory=dict)
    model_bytes: int | None = None
    samples: str = ""
    ran: dict[str, int] = msgspec.field(default_factory=dict)
    expanded: dict[str, int] = msgspec.field(default_factory=dict)
    fused: dict[str, int] = msgspec.field(default_factory=dict)
    providers: dict[str, int] = msgspec.field(default_factory=dict)
    nodes: tuple[NodeTime, ...] = ()

    @property
    def _in_short(self) -> tuple[object, ...]:
        median = "" if self.median_seconds is None else f"{self.median_seconds:.3g} s"
        own = None if self.arm == self.baseline else self.ratio
        ratio = ratio_part(own, self.ratio_low, self.ratio_high, self.baseline)
        return (self.case or self.target, self.arm, median, ratio, self.verdict)
