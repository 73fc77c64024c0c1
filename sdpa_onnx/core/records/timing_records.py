"""The timing record: one per arm of a comparison.

Does not check that its figures are possible: timing_validity.py does.
"""

import msgspec

from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.records.record_base import BaseRecord, Sizes
from sdpa_onnx.core.records.verdicts import RatioVerdict

__all__ = ["TimingRecord"]


class TimingRecord(BaseRecord, frozen=True, kw_only=True, tag_field="kind", tag="timing"):
    """One arm of an interleaved comparison.

    Args:
        group: The comparison; its arms were timed in one interleaved run.
        sizes: Sizes of the case.
        spec, past_seq_len: What the case computes and the keys in its cache, if it is one attention by itself;
            None and -1 for a larger model.
        dtype: Element type.
        arm: Name of this arm; baseline: name of the arm that ratios refer to.
        median_seconds, median_low, median_high: Median over launches of the median
            visit, by the chosen clock, seconds per call, with the 95 % t interval over launches; for one launch
            the interval is that number.
        wall_min_seconds: Smallest wall time of a call.
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
            degrees of freedom of its t distribution; -1 if it was not estimated.
        between_sd: The calibration that it uses.
        detectable: Smallest slow-down found with 80 % power, as a share; -1 if unknown.
        launches_needed: Approximate number of further launches for a verdict; 0 if there is one.
        ratio_wall, ratio_cpu: The ratio by each clock; -1 if unknown.
        create_seconds, first_seconds, new_length_seconds, idle_seconds: Session creation, first run, first run at
            another length, run after idling; wall time, median over launches; -1 if not measured.
        kernel_seconds: Time inside kernels of a call; host_seconds: the rest of the call; -1 if not measured.
        peak_memory_bytes: Greatest resident memory of the first run above the loaded state; -1 if unknown.
        cache: "warm" or "cold": whether calls found their inputs in the processor's caches.
        bound_by: What bounds the case on this machine: "products", "exponentials", "memory" or "host"; "" if unknown.
        switches, faults: Involuntary context switches and page faults over all visits; -1 if not counted.
        runtime_version: As the worker reports it; python: label of another environment, "" for ours.
        options: Settings of the runtime that differ from the default.
        model_nodes: Nodes of the file by operator type; model_bytes: its size, -1 if unknown.
        samples: File of raw samples, relative to the run folder.
        ran: Operator types that ran, with their node counts.
        expanded, fused, providers: As in `AgreementRecord`.
    """

    group: str = ""
    sizes: Sizes = Sizes()
    spec: AttentionSpec | None = None
    past_seq_len: int = -1
    dtype: str = ""
    arm: str = ""
    baseline: str = ""
    median_seconds: float = 0.0
    median_low: float = 0.0
    median_high: float = 0.0
    wall_min_seconds: float = 0.0
    ratio: float = 1.0
    ratio_low: float = 1.0
    ratio_high: float = 1.0
    clock: str = "wall"
    threads: int = 1
    disturbed: float = 0.0
    calls: int = 0
    blocks: int = 0
    steady: bool = True
    useful_flops: int = 0
    executed_flops: int = 0
    exps: int = 0
    bytes_moved: int = 0
    roof_share: float = -1.0
    verdict: RatioVerdict | None = None
    launches: int = 1
    confidence: float = 0.95
    log_ratio_se: float = -1.0
    degrees: float = -1.0
    between_sd: float = -1.0
    detectable: float = -1.0
    launches_needed: int = 0
    ratio_wall: float = -1.0
    ratio_cpu: float = -1.0
    create_seconds: float = -1.0
    first_seconds: float = -1.0
    new_length_seconds: float = -1.0
    idle_seconds: float = -1.0
    kernel_seconds: float = -1.0
    host_seconds: float = -1.0
    peak_memory_bytes: int = -1
    cache: str = "warm"
    bound_by: str = ""
    switches: int = -1
    faults: int = -1
    runtime_version: str = ""
    python: str = ""
    options: dict[str, str] = msgspec.field(default_factory=dict)
    model_nodes: dict[str, int] = msgspec.field(default_factory=dict)
    model_bytes: int = -1
    samples: str = ""
    ran: dict[str, int] = msgspec.field(default_factory=dict)
    expanded: dict[str, int] = msgspec.field(default_factory=dict)
    fused: dict[str, int] = msgspec.field(default_factory=dict)
    providers: dict[str, int] = msgspec.field(default_factory=dict)
