"""Read ONNX Runtime's own profile: the time of a run, inside its kernels, and of each node. Runs nothing."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

__all__ = ["UNKNOWN", "Profile", "read_profile"]

Profile = dict[str, Any]
# Of a runtime that has no profile.
UNKNOWN: Profile = {"kernels": -1.0, "call": -1.0, "nodes": []}

_KERNEL = "_kernel_time"
# More nodes than a reader looks at.
_MOST_NODES = 20


def read_profile(path: Path, calls: int) -> Profile:
    """Medians over the last runs.

    A kernel inside another one (the branch of an If) counts once, to the outer node. Runs before the last `calls` are
    warm-up. Writing the profile itself lies in the run and not in its kernels, about a microsecond a node.

    Returns:
        "kernels": seconds inside kernels; "call": seconds of the whole run; both -1 if there are no runs. "nodes": the
        nodes that took longest, longest first, each with "node", "operator" and "seconds".
    """
    events = json.loads(path.read_text(encoding="utf-8"))
    runs = [event for event in events if event.get("name") == "model_run"][-calls:]
    kernels = sorted(
        (event for event in events if str(event.get("name", "")).endswith(_KERNEL)),
        key=lambda event: (event["ts"], event["dur"]),
    )
    if not runs:
        return UNKNOWN
    inside = [_outermost(kernels, run) for run in runs]
    return {
        "kernels": statistics.median(sum(kernel["dur"] for kernel in found) for found in inside) * 1e-6,
        "call": statistics.median(run["dur"] for run in runs) * 1e-6,
        "nodes": _nodes(inside),
    }


def _outermost(kernels: list[dict[str, Any]], run: dict[str, Any]) -> list[dict[str, Any]]:
    """The kernels of a run that are not inside another one."""
    found, end = [], run["ts"]
    for kernel in kernels:
        if kernel["ts"] >= end and kernel["ts"] + kernel["dur"] <= run["ts"] + run["dur"]:
            found.append(kernel)
            end = kernel["ts"] + kernel["dur"]
    return found


def _nodes(runs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Median time of each node over the runs; one that a run does not reach took no time in it."""
    totals: dict[tuple[str, str], list[int]] = {}
    for number, kernels in enumerate(runs):
        for kernel in kernels:
            key = kernel["name"][: -len(_KERNEL)], str(kernel.get("args", {}).get("op_name", ""))
            totals.setdefault(key, [0] * len(runs))[number] += kernel["dur"]
    found: list[dict[str, Any]] = [
        {"node": node, "operator": operator, "seconds": statistics.median(durations) * 1e-6}
        for (node, operator), durations in totals.items()
    ]
    return sorted(found, key=lambda one: -one["seconds"])[:_MOST_NODES]
