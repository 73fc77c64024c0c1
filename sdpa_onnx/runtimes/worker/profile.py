"""Read ONNX Runtime's own profile: the time of a run and that inside its kernels. Runs nothing."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

__all__ = ["kernel_times"]


def kernel_times(path: Path, calls: int) -> tuple[float, float]:
    """Medians over the last runs: seconds inside kernels, and seconds of the whole run; -1 if there are no runs.

    A kernel inside another one (the branch of an If) counts once. Runs before the last `calls` are warm-up. Writing
    the profile itself lies in the run and not in its kernels, about a microsecond a node.
    """
    events = json.loads(path.read_text(encoding="utf-8"))
    runs = [event for event in events if event.get("name") == "model_run"]
    kernels = sorted(
        (event["ts"], event["dur"]) for event in events if str(event.get("name", "")).endswith("_kernel_time")
    )
    if not runs:
        return -1.0, -1.0
    inside = statistics.median(_inside(kernels, run) for run in runs[-calls:])
    whole = statistics.median(run["dur"] for run in runs[-calls:])
    return inside * 1e-6, whole * 1e-6


def _inside(kernels: list[tuple[int, int]], run: dict[str, Any]) -> int:
    total, end = 0, run["ts"]
    for start, length in kernels:
        if start >= end and start + length <= run["ts"] + run["dur"]:
            total += length
            end = start + length
    return total
