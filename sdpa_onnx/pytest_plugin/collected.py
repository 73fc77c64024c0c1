"""The comparisons of one pytest session, for its summary, its JSON and pytest-benchmark; measures nothing."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sdpa_onnx.core.compare.benchmark_json import BenchmarkEntry
    from sdpa_onnx.pytest_plugin.result import PairedResult, TimedPair

__all__ = ["COLLECTED", "SessionComparisons", "keep"]


@dataclass(slots=True)
class SessionComparisons:
    """The comparisons of a session, in the order in which they were made.

    Args:
        path: Path of the JSON file, or None.
        file_message: Whether that file was written, one sentence; "" before the end of the session.
        results: One per comparison; entries: one per arm.
        labels: Names used so far, by test, so that no two comparisons share one.
    """

    path: Path | None = None
    file_message: str = ""
    results: list["PairedResult"] = field(default_factory=list)
    entries: list["BenchmarkEntry"] = field(default_factory=list)
    labels: set[tuple[str, str]] = field(default_factory=set)

    def label(self, test: str, name: str | None) -> str:
        """The name, with a number appended if the test has used it before; "" for the first without a name."""
        label, number = name or "", 1
        while (test, label) in self.labels:
            number += 1
            label = f"{name} {number}" if name else str(number)
        self.labels.add((test, label))
        return label


COLLECTED = pytest.StashKey[SessionComparisons]()


def keep(item: pytest.Item, pair: "TimedPair", *, name: str | None, margin: float) -> "PairedResult":
    """Store one comparison, pass both arms to pytest-benchmark if it is active, and return the result."""
    from sdpa_onnx.pytest_plugin.join_benchmark import join_benchmark
    from sdpa_onnx.pytest_plugin.result import paired_result

    collected = item.config.stash[COLLECTED]
    label = collected.label(item.nodeid, name)
    result = paired_result(pair, test=item.nodeid, name=label, margin=margin)
    collected.results.append(result)
    for entry in _entries(item, pair, label):
        collected.entries.append(entry)
        join_benchmark(item.config, entry)
    return result


def _entries(item: pytest.Item, pair: "TimedPair", label: str) -> list["BenchmarkEntry"]:
    """Both arms as entries; the name of a test contains its parameters in brackets."""
    from msgspec.structs import replace

    from sdpa_onnx.core.compare.benchmark_json import BenchmarkEntry

    call = getattr(item, "callspec", None)
    group = " ".join(filter(None, (item.name, label)))
    where = " ".join(filter(None, (item.nodeid, label)))
    return [
        BenchmarkEntry(
            name=f"{group} {arm.record.arm}",
            fullname=f"{where} {arm.record.arm}",
            group=group,
            record=replace(arm.record, target=item.nodeid, case=label or item.name, group=where),
            rounds=arm.rounds,
            iterations=arm.iterations,
            param=None if call is None else call.id,
            params=None if call is None else call.params,
        )
        for arm in (pair.baseline, pair.candidate)
    ]
