"""Writes and reads pytest-benchmark's JSON format with our timing records in it.

The one place that knows the format. Knows bytes, not files; measures nothing. Our entries carry
the complete `TimingRecord` of their arm, and the figures that people and dashboards read once more, flat.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sdpa_onnx.core.compare.benchmark_stats import round_stats
from sdpa_onnx.core.records.records import TimingRecord, in_current_schema
from sdpa_onnx.core.records.timing_validity import impossible
from sdpa_onnx.errors import RecordFormatError

__all__ = [
    "OURS",
    "BenchmarkEntry",
    "BenchmarkJson",
    "OtherBenchmark",
    "encode_benchmarks",
    "extra_info",
    "read_benchmark_json",
]

# The key of our own data: in `extra_info` a list of records, at the top the environment and the versions. Not in
# `machine_info`, of which pytest-benchmark warns where two runs differ in anything.
OURS = "sdpa_onnx"

# Fields of a record that are also flat in `extra_info`.
_FLAT = (
    "arm",
    "baseline",
    "ratio",
    "ratio_low",
    "ratio_high",
    "verdict",
    "confidence",
    "clock",
    "median_seconds",
    "log_ratio_se",
    "degrees",
    "launches",
    "blocks",
    "disturbed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkEntry:
    """One arm as an entry of pytest-benchmark.

    Args:
        name: Of the test, with comparison and arm.
        fullname: The same with the file; unique in the JSON, the same in every run.
        group: Entries of one table: the comparison.
        record: Our measurement.
        rounds: Mean time of a call by the deciding clock, one number per visit, seconds.
        iterations: Calls of a visit.
        param: Id of the parameters of the test, or None; params: the parameters themselves.
    """

    name: str
    fullname: str
    group: str
    record: TimingRecord
    rounds: Sequence[float]
    iterations: int
    param: str | None = None
    params: Mapping[str, object] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Convert to the JSON entry, including the raw rounds."""
        return {
            "group": self.group,
            "name": self.name,
            "fullname": self.fullname,
            "params": None if self.params is None else {name: _plain(value) for name, value in self.params.items()},
            "param": self.param,
            "extra_info": extra_info(self.record),
            "options": {},
            "stats": {**round_stats(self.rounds), "data": list(self.rounds), "iterations": self.iterations},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherBenchmark:
    """An entry that is pytest-benchmark's own: one arm, timed alone, which allows no verdict."""

    fullname: str
    median_seconds: float
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkJson:
    """The content of a JSON file.

    Args:
        records: Our records; places: the `fullname` of the entry of each.
        others: Entries without a record of ours.
        environment, versions: The machine and its packages, as in a run header; empty if we did not write the file.
    """

    records: tuple[TimingRecord, ...]
    places: tuple[str, ...]
    others: tuple[OtherBenchmark, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def extra_info(record: TimingRecord) -> dict[str, Any]:
    """Our part of an entry: the record, and its main figures once more."""
    plain: dict[str, Any] = msgspec.to_builtins(record)
    return {name: plain[name] for name in _FLAT} | {OURS: [plain]}


def encode_benchmarks(
    entries: Sequence[BenchmarkEntry],
    *,
    machine_info: Mapping[str, Any],
    commit_info: Mapping[str, Any],
    ours: Mapping[str, Mapping[str, str]],
    written: str,
    version: str,
) -> bytes:
    """The JSON file.

    Args:
        entries: One per arm.
        machine_info, commit_info: As in pytest-benchmark.
        ours: "environment" and "versions", as in a run header.
        written: ISO 8601 time, with its zone.
        version: Name and version of the writer.
    """
    contents = {
        "machine_info": dict(machine_info),
        "commit_info": dict(commit_info),
        "benchmarks": [entry.as_dict() for entry in entries],
        "datetime": written,
        "version": version,
        OURS: dict(ours),
    }
    return msgspec.json.format(msgspec.json.encode(contents), indent=4) + b"\n"


class _Stats(msgspec.Struct, frozen=True):
    median: float
    rounds: int


class _Extra(msgspec.Struct, frozen=True):
    sdpa_onnx: tuple[TimingRecord, ...] = ()


class _Entry(msgspec.Struct, frozen=True):
    fullname: str
    stats: _Stats
    extra_info: _Extra = _Extra()


class _Run(msgspec.Struct, frozen=True):
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    versions: dict[str, str] = msgspec.field(default_factory=dict)


class _File(msgspec.Struct, frozen=True):
    benchmarks: tuple[_Entry, ...]
    sdpa_onnx: _Run = _Run()


def read_benchmark_json(data: bytes, *, where: str) -> BenchmarkJson:
    """Read a JSON file of pytest-benchmark, by any writer.

    Args:
        data: Contents of the file.
        where: Name of the file, for messages.

    Raises:
        RecordFormatError: If it is no such JSON, or one of our records in it is invalid; the field is named.
    """
    try:
        read = msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RecordFormatError(
            f"{where}: {error}.", hint="Use a file written by --benchmark-json, --benchmark-autosave or --sdpa-json."
        ) from error
    found = [
        (entry.fullname, in_current_schema(record, where=f"{where}: a"))
        for entry in read.benchmarks
        for record in entry.extra_info.sdpa_onnx
    ]
    for place, record in found:
        if fault := impossible(record):
            raise RecordFormatError(f"{where}: in {place}, {fault}.")
    return BenchmarkJson(
        records=tuple(record for _, record in found),
        places=tuple(place for place, _ in found),
        others=tuple(
            OtherBenchmark(fullname=entry.fullname, median_seconds=entry.stats.median, rounds=entry.stats.rounds)
            for entry in read.benchmarks
            if not entry.extra_info.sdpa_onnx
        ),
        environment=read.sdpa_onnx.environment,
        versions=read.sdpa_onnx.versions,
    )


def _plain(value: object) -> object:
    """A parameter of a test as a JSON value."""
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
