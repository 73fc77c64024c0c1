from dataclasses import replace

import msgspec
import pytest

from sdpa_onnx.core.compare.history import GroupKey, StoredRun, differences, history_of
from sdpa_onnx.core.records.records import Outcome, RatioVerdict, Record
from tests.report.synthetic_history import run_header, stored, upgraded, versions

FUSED = "ort-cpu attention 23"
OTHER_MACHINE = {"cpu": "Another CPU", "cores": "4", "python": "3.11.9"}


def _with(run: StoredRun, arm: str, **changes: object) -> StoredRun:
    """The run with fields of every record of an arm replaced."""
    records: list[Record] = [
        msgspec.structs.replace(record, **changes) if getattr(record, "arm", "") == arm else record
        for record in run.records
    ]
    return replace(run, records=records)


def test_a_change_is_found_where_the_version_changed() -> None:
    """The operator became slower with onnxruntime 1.32.0 in both cases, the decomposed graph did not."""
    (group,) = history_of(upgraded()).groups
    changed = {(one.newest.target, one.newest.arm): [change.index for change in one.changes] for one in group.series}
    assert changed == {
        ("sdpa", "ort-cpu decomposed 18"): [],
        ("sdpa", FUSED): [5],
        ("encoder-self", "ort-cpu decomposed 18"): [],
        ("encoder-self", FUSED): [5],
    }
    assert differences(group.runs[4].header, group.runs[5].header) == ["onnxruntime 1.31.0 -> 1.32.0"]


def test_a_history_without_a_change_has_none() -> None:
    """Half a percent of noise is no change."""
    (group,) = history_of(stored(day) for day in range(1, 16)).groups
    assert not any(series.changes for series in group.series)


def test_runs_are_put_in_the_order_of_time() -> None:
    """The order of the folder does not matter."""
    (group,) = history_of(reversed(upgraded())).groups
    assert [run.name for run in group.runs] == [f"2026-07-{day:02}" for day in range(1, 11)]


def test_seconds_never_count() -> None:
    """A machine that is three times as slow on some days, all arms together, has no change."""
    days = [stored(day) for day in range(1, 13)]
    slow = [_with(run, FUSED, median_seconds=3.0) if number > 5 else run for number, run in enumerate(days)]
    assert not any(series.changes for group in history_of(slow).groups for series in group.series)


@pytest.mark.parametrize(
    "changes",
    [{"environment": OTHER_MACHINE}, {"versions": versions(torch="2.14.0")}],
    ids=["another machine", "another version of the reference"],
)
def test_what_cannot_be_compared_is_apart(changes: dict[str, object]) -> None:
    """Runs on another machine or with another reference form separate series; the newest come first."""
    runs = [*(stored(day) for day in range(1, 6)), *(stored(day, {FUSED: 1.4}, **changes) for day in range(6, 11))]
    newest, older = history_of(runs).groups
    assert [len(newest.runs), len(older.runs)] == [5, 5]
    assert newest.key != older.key
    assert not any(series.changes for group in (newest, older) for series in group.series)


def test_a_group_says_what_its_ratios_refer_to() -> None:
    """Machine, threads, reference and its version; the version that the worker saw goes before that of the run."""
    (group,) = history_of([stored(1)]).groups
    key = GroupKey(machine="Invented CPU at 2.5 GHz, 2 cores", threads=1, reference="torch", reference_version="2.13.0")
    assert group.key == key
    for told in ("2.12.1", "torch 2.12.1"):
        (group,) = history_of([_with(stored(1), "torch", runtime_version=told)]).groups
        assert group.key == replace(key, reference_version="2.12.1")


@pytest.mark.parametrize(
    "spoilt", [{"outcome": Outcome.FAILED}, {"verdict": RatioVerdict.NOISY}, {"ratio": None}], ids=repr
)
def test_what_was_not_measured_is_left_out(spoilt: dict[str, object]) -> None:
    """A failed arm, a noisy table and an interval without a lower end make no point, and are counted."""
    history = history_of([*(stored(day) for day in range(1, 4)), _with(stored(4), FUSED, **spoilt)])
    (group,) = history.groups
    assert {one.newest.arm: len(one.points) for one in group.series} == {"ort-cpu decomposed 18": 4, FUSED: 3}
    assert history.left_out == {"2026-07-04": 2}


def test_unfinished_runs_and_runs_without_a_ratio_are_skipped() -> None:
    """They are listed by name with the folders that could not be read."""
    cut = StoredRun(name="cut", header=run_header(2, finished=None, done_cells=3), records=stored(2).records)
    empty = StoredRun(name="empty", header=run_header(3), records=[])
    history = history_of([stored(1), cut, empty], {"broken": "run.json: no JSON."})
    assert [run.name for group in history.groups for run in group.runs] == ["2026-07-01"]
    assert history.skipped == {
        "broken": "run.json: no JSON.",
        "cut": "it was not finished (3 of 96 cells)",
        "empty": "it has no ratio",
    }


def test_the_last_timing_of_an_arm_in_a_run_counts() -> None:
    """An arm that was timed twice is one point."""
    run = stored(1)
    again = _with(run, FUSED, ratio=0.7, ratio_low=0.69, ratio_high=0.71)
    (group,) = history_of([replace(run, records=[*run.records, *again.records])]).groups
    assert [one.newest.ratio for one in group.series if one.newest.arm == FUSED] == [0.7, 0.7]


def test_wide_standard_errors_hide_a_change() -> None:
    """The standard error of the record is used: the same step with a large error is not reported."""
    runs = [_with(run, FUSED, log_ratio_se=0.2) for run in upgraded()]
    assert not any(series.changes for group in history_of(runs).groups for series in group.series)


def test_differences_name_all_that_is_recorded() -> None:
    """A version, an added package, Python, and the plan; the name of a machine is not included."""
    before = run_header(1, plan_hash="a")
    environment = {**before.environment, "python": "3.12.1", "os": "Linux 6.2"}
    after = run_header(2, plan_hash="b", versions=versions(openvino="2026.3.0"), environment=environment)
    assert differences(before, after) == [
        "openvino none -> 2026.3.0",
        "python 3.11.9 -> 3.12.1",
        "the plan of the suite",
    ]
