"""Add arms to the session of pytest-benchmark: its table, `--benchmark-json`, `--benchmark-autosave`.

Without pytest-benchmark it does nothing. pytest-benchmark computes its own statistics from our visits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from sdpa_onnx.core.compare.benchmark_json import extra_info

if TYPE_CHECKING:
    from sdpa_onnx.core.compare.benchmark_json import BenchmarkEntry

__all__ = ["join_benchmark", "why_not_timed"]

# The name under which pytest-benchmark registers its session; None where it is missing or off (`-p no:benchmark`).
_SESSION = "pytest-benchmark"


@dataclass(slots=True, kw_only=True)
class _Arm:
    """The attributes that pytest-benchmark reads from the fixture of an entry."""

    name: str
    fullname: str
    group: str
    param: str | None
    params: Mapping[str, object] | None
    extra_info: dict[str, Any]
    cprofile_stats: None = None
    has_error: bool = False


def why_not_timed(config: pytest.Config) -> str | None:
    """The option of pytest-benchmark that turns timing off, for this plugin too; None if timing is on."""
    session = config.pluginmanager.get_plugin(_SESSION)
    if session is None:
        return None
    if session.skip:
        return "--benchmark-skip is given"
    return "--benchmark-disable is given" if session.disabled else None


def join_benchmark(config: pytest.Config, entry: "BenchmarkEntry") -> None:
    """Add one arm to the session of pytest-benchmark, if there is one."""
    session = config.pluginmanager.get_plugin(_SESSION)
    if session is None:
        return
    from pytest_benchmark.stats import Metadata

    arm = _Arm(
        name=entry.name,
        fullname=entry.fullname,
        group=entry.group,
        param=entry.param,
        params=entry.params,
        extra_info=extra_info(entry.record),
    )
    metadata = Metadata(arm, iterations=entry.iterations, options={})  # type: ignore[no-untyped-call]  # half of its functions have types
    for seconds in entry.rounds:
        metadata.stats.update(seconds)  # type: ignore[no-untyped-call]
    session.benchmarks.append(metadata)
