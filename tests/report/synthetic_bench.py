"""Comparisons of `bench` made up, so that tables and charts have known numbers."""

import math
from collections.abc import Mapping

import numpy as np

from sdpa_onnx.core.records.records import Outcome, Sizes, TimingRecord
from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.measure.samples import ArmSamples
from sdpa_onnx.workflows.bench.arm_agreement import ArmAgreement
from sdpa_onnx.workflows.bench.bench_files import BenchResult

BASELINE = "torch"


def timing(arm: str, ratio: float = 1.0, *, length: int = 128, error: float = 0.005, **more: object) -> TimingRecord:
    """A record of an arm that took `ratio` ms, with an interval of three standard errors."""
    low, high = math.exp(math.log(ratio) - 3 * error), math.exp(math.log(ratio) + 3 * error)
    word = RatioVerdict.FASTER if high < 1 else RatioVerdict.SLOWER if low > 1 else RatioVerdict.INCONCLUSIVE
    is_baseline = arm == BASELINE
    found: dict[str, object] = {
        "target": "files",
        "case": f"case {length}",
        "group": f"case {length}",
        "sizes": Sizes(batch_size=1, q_seq_len=length, kv_seq_len=length, head_dim=64, q_num_heads=8),
        "dtype": "float32",
        "arm": arm,
        "baseline": BASELINE,
        "runtime": arm.partition(" ")[0],
        "median_seconds": 1e-3 * ratio,
        "median_low": 0.99e-3 * ratio,
        "median_high": 1.01e-3 * ratio,
        "ratio": ratio,
        "ratio_low": 1.0 if is_baseline else low,
        "ratio_high": 1.0 if is_baseline else high,
        "verdict": None if is_baseline else word,
        "confidence": 0.99,
        "launches": 4,
        "disturbed": 0.0,
        "steady": True,
        "log_ratio_se": None if is_baseline else error,
        "degrees": None if is_baseline else 11.0,
        "between_sd": 0.0057,
        "launches_needed": 3 if word is RatioVerdict.INCONCLUSIVE else 0,
        "first_seconds": 0.0123,
        "new_length_seconds": 0.0021,
        "idle_seconds": 0.0017,
        "peak_memory_bytes": 3_500_000,
        "roof_share": 0.42,
        "bound_by": "products",
    }
    return TimingRecord(**{**found, **more})  # type: ignore[arg-type]


def failed(arm: str, reason: str, *, length: int = 128) -> TimingRecord:
    return TimingRecord(
        target="files",
        case=f"case {length}",
        group=f"case {length}",
        arm=arm,
        baseline=BASELINE,
        outcome=Outcome.FAILED,
        reason=reason,
    )


def benched(*records: TimingRecord, length: int = 128, numbers: ArmAgreement | None = None) -> BenchResult:
    """One comparison at a length."""
    ones = np.full((4, 12, 2), 1e-3)
    return BenchResult(
        sizes={"batch_size": 1, "q_seq_len": length, "kv_seq_len": length},
        records=records,
        numbers=numbers or ArmAgreement(),
        samples={one.arm: ArmSamples(wall_seconds=ones, cpu_seconds=ones) for one in records if one.median_seconds},
    )


def over_lengths(ratios: Mapping[int, float], *, arm: str = "ort-cpu") -> list[BenchResult]:
    """An arm and torch at several lengths."""
    return [
        benched(timing(BASELINE, length=length), timing(arm, ratio, length=length), length=length)
        for length, ratio in ratios.items()
    ]
