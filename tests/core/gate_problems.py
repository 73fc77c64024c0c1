"""Records for the gates' tests: one sound case, to be spoilt in one respect at a time."""

import math

import msgspec

from sdpa_onnx.core.compare.gate_effects import Machine
from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.compare.gates import RunSide, compare_paired, compare_stored
from sdpa_onnx.core.records.gate_records import Gate, GateRecord
from sdpa_onnx.core.records.records import AgreementRecord, Record, Sizes, TimingRecord
from sdpa_onnx.core.records.verdicts import Verdict

SIZES = Sizes(batch_size=1, q_seq_len=512, kv_seq_len=512, head_dim=64, q_num_heads=8)
MACHINE = Machine(environment={"cpu": "A", "cores": "2", "cores_usable": "2"}, versions={"torch": "2.13.0"})

AGREED = AgreementRecord(
    target="sdpa",
    case="b1_q512",
    form="attention",
    opset=23,
    runtime="ort-cpu",
    site="attention_0",
    sizes=SIZES,
    dtype="float32",
    verdict=Verdict.OK,
    inputs="spread 1",
)
TIMED = TimingRecord(
    target="sdpa",
    case="b1_q512",
    group="b1_q512",
    form="attention",
    opset=23,
    runtime="ort-cpu",
    sizes=SIZES,
    dtype="float32",
    arm="ort-cpu attention 23",
    baseline="torch",
    median_seconds=0.005,
    median_low=0.0049,
    median_high=0.0051,
    ratio=1.0,
    ratio_low=1.0,
    ratio_high=1.0,
    disturbed=0.0,
    log_ratio_se=0.003,
    degrees=11.0,
    launches=4,
    confidence=0.99,
    peak_memory_bytes=100 * 2**20,
    model_nodes={"Attention": 1},
    model_bytes=20 * 2**20,
    ran={"Attention": 10},
    providers={"CPUExecutionProvider": 10},
)
TORCH = TimingRecord(
    target="sdpa",
    case="b1_q512",
    group="b1_q512",
    runtime="torch",
    sizes=SIZES,
    dtype="float32",
    arm="torch",
    baseline="torch",
    median_seconds=0.006,
    median_low=0.0059,
    median_high=0.0061,
    ratio=1.0,
    ratio_low=1.0,
    ratio_high=1.0,
    disturbed=0.0,
    confidence=0.99,
    launches=4,
)


def agreed(**changes: object) -> AgreementRecord:
    return msgspec.structs.replace(AGREED, **changes)


def timed(*, ratio: float = 1.0, **changes: object) -> TimingRecord:
    return msgspec.structs.replace(TIMED, ratio=ratio, **changes)


def beside(ratio: float, **changes: object) -> tuple[TimingRecord, TimingRecord]:
    """BASE and HEAD timed interleaved."""
    base = msgspec.structs.replace(TIMED, arm="BASE", baseline="BASE")
    return base, msgspec.structs.replace(
        TIMED, arm="HEAD", baseline="BASE", ratio=ratio, median_seconds=0.005 * ratio, **changes
    )


def stored(base: list[Record], head: list[Record], gate: Gate, limits: GateLimits | None = None) -> list[GateRecord]:
    """Records of one gate for two runs on one machine."""
    rows = compare_stored(
        RunSide(records=base, machine=MACHINE), RunSide(records=head, machine=MACHINE), limits or GateLimits()
    )
    return [row for row in rows if row.gate is gate]


def paired(*pairs: tuple[TimingRecord, TimingRecord], limits: GateLimits | None = None) -> list[GateRecord]:
    """Records of the time gate for interleaved comparisons."""
    rows = compare_paired([], [], pairs, limits or GateLimits())
    return [row for row in rows if row.gate is Gate.TIME]


def half_width(standard_error: float = 0.003, degrees: float = 11.0, alpha: float = 0.002) -> float:
    """Half of the interval of a log ratio at the first look."""
    from scipy.stats import t

    return float(t.ppf(1 - alpha / 2, degrees)) * standard_error


def at_low_end(low: float, **figures: float) -> float:
    """The ratio whose interval begins there."""
    return math.exp(math.log(low) + half_width(**figures))


def at_high_end(high: float, **figures: float) -> float:
    """The ratio whose interval ends there."""
    return math.exp(math.log(high) - half_width(**figures))
