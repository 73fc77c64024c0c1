"""Synthetic histories for tests: invented ratios over invented runs, no machine read."""

from dataclasses import replace

import msgspec

from sdpa_onnx.core.compare.history import StoredRun
from sdpa_onnx.core.records.records import TimingRecord
from sdpa_onnx.core.records.run_header import RunHeader
from tests.report.synthetic import comparison, header, wobble

# Half the width of an interval, as a share.
HALF = 0.008


def run_header(day: int, **changes: object) -> RunHeader:
    """The header of a run of this day of July."""
    started = f"2026-07-{day:02}T10:00:00+00:00"
    return replace(header(), **({"suite": "ci", "started": started, "finished": started} | changes))


def timed(day: int, ratios: dict[str, float], *, target: str = "sdpa", seq_len: int = 512) -> list[TimingRecord]:
    """The comparison of a day: the ratio of each arm, with half a percent of noise."""
    found = []
    for record in comparison(target, seq_len=seq_len):
        ratio = ratios.get(record.arm, 0.9) * (1 + 0.005 * wobble(day, record.arm, target, seq_len))
        low, high = (ratio * (1 - HALF), ratio * (1 + HALF)) if record.arm != "torch" else (1.0, 1.0)
        ratio = ratio if record.arm != "torch" else 1.0
        found.append(msgspec.structs.replace(record, ratio=ratio, ratio_low=low, ratio_high=high))
    return found


def stored(day: int, ratios: dict[str, float] | None = None, **changes: object) -> StoredRun:
    """A run of a day with two cases."""
    records = [*timed(day, ratios or {}), *timed(day, ratios or {}, target="encoder-self", seq_len=256)]
    return StoredRun(name=f"2026-07-{day:02}", header=run_header(day, **changes), records=records)


def versions(**changes: str) -> dict[str, str]:
    """The usual versions with some replaced."""
    return {**header().versions, **changes}


def upgraded(days: int = 10, at: int = 6, ratio: float = 1.1) -> list[StoredRun]:
    """A history in which onnxruntime went from 1.31.0 to 1.32.0 on a day, and the Attention operator became slower."""
    arm = "ort-cpu attention 23"
    old = [stored(day, {arm: 0.9}, versions=versions(onnxruntime="1.31.0")) for day in range(1, at)]
    return [*old, *(stored(day, {arm: ratio}) for day in range(at, days + 1))]
