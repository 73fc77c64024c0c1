"""Builds time series of many runs: the ratio of each arm to its reference, run by run, with change points.

Compares ratios only, never seconds, and only on one machine with one version of the reference. Reads no file and
writes no text.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from sdpa_onnx.core.compare.change_points import ChangePoint, change_points
from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.core.records.records import Outcome, Record, TimingRecord
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.core.records.verdicts import RatioVerdict

__all__ = [
    "GroupKey",
    "History",
    "HistoryGroup",
    "HistoryPoint",
    "HistorySeries",
    "StoredRun",
    "differences",
    "history_of",
]

# Distribution whose version is a runtime's, where it is not the runtime's own name.
_DISTRIBUTIONS = {"ort-cpu": "onnxruntime", "ort-cuda": "onnxruntime"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A stored run; its name is the name of its folder."""

    name: str
    header: RunHeader
    records: Sequence[Record]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKey:
    """Properties that must be equal for ratios to be comparable.

    Args:
        machine: Processor and number of cores.
        threads: Threads inside one operator.
        reference: The arm that ratios refer to; reference_version: version of its runtime, "" if unknown.
    """

    machine: str
    threads: int
    reference: str
    reference_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint:
    """One arm in one run: the index of the run in its group, and the record."""

    run: int
    record: TimingRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySeries:
    """One arm of one case over the runs of a group; changes index `points`."""

    points: tuple[HistoryPoint, ...]
    changes: tuple[ChangePoint, ...] = ()

    @property
    def newest(self) -> TimingRecord:
        return self.points[-1].record


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryGroup:
    """Runs with comparable ratios, in chronological order, and their series."""

    key: GroupKey
    runs: tuple[StoredRun, ...]
    series: tuple[HistorySeries, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The history of a folder of runs.

    Args:
        groups: Groups of runs; the group with the newest run comes first.
        left_out: Run -> number of its timings that are in no series because they failed or their table was noisy.
        skipped: Folder -> why it was not read or not used.
    """

    groups: tuple[HistoryGroup, ...]
    left_out: Mapping[str, int]
    skipped: Mapping[str, str]


def history_of(runs: Iterable[StoredRun], skipped: Mapping[str, str] | None = None) -> History:
    """Sort runs by time and find where the ratios of an arm changed.

    Args:
        runs: Readable runs in any order; unfinished runs and runs without a ratio are skipped, with a reason.
        skipped: Folders skipped earlier, with reasons.
    """
    reasons = dict(skipped or {})
    by_group: dict[GroupKey, list[tuple[StoredRun, list[TimingRecord]]]] = defaultdict(list)
    left_out: dict[str, int] = {}
    for run in sorted(runs, key=lambda run: (run.header.started, run.name)):
        timed = [record for record in run.records if isinstance(record, TimingRecord)]
        compared = [record for record in timed if _has_ratio(record)]
        if not run.header.is_finished:
            reasons[run.name] = f"it was not finished ({run.header.done_cells} of {run.header.planned_cells} cells)"
        elif not compared:
            reasons[run.name] = "it has no ratio"
        else:
            left_out[run.name] = sum(not _has_ratio(record) and record.arm != record.baseline for record in timed)
            for key, records in _by_group(run, compared, timed).items():
                by_group[key].append((run, records))
    groups = _groups(by_group)
    return History(groups=groups, left_out={name: n for name, n in left_out.items() if n}, skipped=reasons)


def differences(before: RunHeader, after: RunHeader) -> list[str]:
    """List recorded differences: package versions, Python, the plan; versions as `name old -> new`."""
    names = sorted({*before.versions, *after.versions})
    versions = [(name, before.versions.get(name, ""), after.versions.get(name, "")) for name in names]
    versions.append(("python", before.environment.get("python", ""), after.environment.get("python", "")))
    found = [f"{name} {old or 'none'} -> {new or 'none'}" for name, old, new in versions if old != new]
    return [*found, *(["the plan of the suite"] if before.plan_hash != after.plan_hash else [])]


def _has_ratio(record: TimingRecord) -> bool:
    usable = record.outcome is Outcome.OK and record.verdict is not RatioVerdict.NOISY
    return usable and record.arm != record.baseline and record.ratio is not None


def _by_group(
    run: StoredRun, compared: Sequence[TimingRecord], timed: Sequence[TimingRecord]
) -> dict[GroupKey, list[TimingRecord]]:
    references = {(record.group, record.arm): record for record in timed if record.arm == record.baseline}
    environment = run.header.environment
    machine = f"{environment.get('cpu') or 'unknown processor'}, {environment.get('cores') or 'unknown'} cores"
    found: dict[GroupKey, list[TimingRecord]] = defaultdict(list)
    for record in compared:
        reference = references.get((record.group, record.baseline))
        version = _version(reference, run.header) if reference is not None else ""
        key = GroupKey(machine=machine, threads=record.threads, reference=record.baseline, reference_version=version)
        found[key].append(record)
    return found


def _version(record: TimingRecord, header: RunHeader) -> str:
    distribution = _DISTRIBUTIONS.get(record.runtime, record.runtime)
    # A worker's version starts with the name of the distribution, the header's does not.
    return record.runtime_version.removeprefix(f"{distribution} ") or header.versions.get(distribution, "")


def _groups(found: Mapping[GroupKey, Sequence[tuple[StoredRun, Sequence[TimingRecord]]]]) -> tuple[HistoryGroup, ...]:
    parts = {key: list(_series(runs)) for key, runs in found.items()}
    # The false alarm rate holds for the whole history, so all its series are counted.
    tried = sum(len(series.points) > 1 for part in parts.values() for series in part)
    groups = [
        HistoryGroup(
            key=key,
            runs=tuple(run for run, _ in found[key]),
            series=tuple(HistorySeries(points=one.points, changes=_changes(one, tried)) for one in part),
        )
        for key, part in parts.items()
    ]
    return tuple(sorted(groups, key=lambda group: group.runs[-1].header.started, reverse=True))


def _series(runs: Sequence[tuple[StoredRun, Sequence[TimingRecord]]]) -> Iterator[HistorySeries]:
    points: dict[tuple[str, ...], list[HistoryPoint]] = defaultdict(list)
    for index, (_, records) in enumerate(runs):
        for record in records:
            key = (record.target, record.case, record.dtype, record.arm)
            # If an arm was timed twice in a run, the last timing counts, as everywhere in a run.
            kept = points[key][:-1] if points[key] and points[key][-1].run == index else points[key]
            points[key] = [*kept, HistoryPoint(run=index, record=record)]
    yield from (HistorySeries(points=tuple(found)) for found in points.values())


def _changes(series: HistorySeries, tried: int) -> tuple[ChangePoint, ...]:
    values = [math.log(known(point.record.ratio)) for point in series.points]
    errors = [_standard_error(point.record) for point in series.points]
    return tuple(change_points(values, errors, series=max(tried, 1)))


def _standard_error(record: TimingRecord) -> float:
    """Standard error of the log ratio; for records of earlier versions it is computed from their interval."""
    if record.log_ratio_se is not None:
        return record.log_ratio_se
    quantile = NormalDist().inv_cdf((1.0 + known(record.confidence)) / 2.0)
    return math.log(known(record.ratio_high) / known(record.ratio_low)) / (2.0 * quantile)
