"""What the comparisons of one pytest session gave, for its summary, its JSON and pytest-benchmark; measures nothing."""

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
        path: Where their JSON goes, or None.
        told: What became of that file, one sentence; "" before the end.
        results: One per comparison; entries: one per arm.
        labels: Names that were given so far, by test, so that no two comparisons share one.
    """

    path: Path | None = None
    told: str = ""
    results: list["PairedResult"] = field(default_factory=list)
    entries: list["BenchmarkEntry"] = field(default_factory=list)
    labels: set[tuple[str, str]] = field(default_factory=set)

    def label(self, test: str, name: str | None) -> str:
        """The name, with a number behind it if the test has used it before; "" for the first without a name."""
        label, number = name or "", 1
        while (test, label) in self.labels:
            number += 1
            label = f"{name} {number}" if name else str(number)
        self.labels.add((test, label))
        return label


COLLECTED = pytest.StashKey[SessionComparisons]()


def keep(item: pytest.Item, pair: "TimedPair", *, name: str | None, margin: float) -> "PairedResult":
    """Note one comparison, hand both arms to pytest-benchmark where it is active, and give the result."""
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
    """Both arms; parameters stand in the test's own name, which has them in brackets."""
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
