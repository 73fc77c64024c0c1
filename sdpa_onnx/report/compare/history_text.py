"""A history as sentences and tables: which levels changed, by how much, since which run; compares nothing."""

import math
from collections.abc import Iterator, Sequence

from sdpa_onnx.core.compare.change_points import HISTORY_ALPHA, ChangePoint
from sdpa_onnx.core.compare.history import GroupKey, History, HistoryGroup, HistorySeries, differences
from sdpa_onnx.core.records.records import TimingRecord
from sdpa_onnx.report.text.labels import arm_in_words, case_in_words, join_words, series_name, usual_factors
from sdpa_onnx.report.text.number_text import count, ratio_text, share
from sdpa_onnx.report.text.table import Table, text_table

__all__ = ["case_words", "group_words", "history_sentences", "history_tables", "marks"]

_NOTE = (
    "Ratio: time of an arm over that of the reference in the same run, with the interval of the run; below 1 = faster. "
    "Change: the level moved by more than chance and the usual differences between runs explain."
)


# Greatest number of arms that a sentence names; the table lists all.
_MOST_ARMS = 3

# Source: the simulation in tests/core/compare/test_change_points.py.
_FALSE_ALARMS = (
    f"A history without any change is reported as changed with a probability of at most {share(HISTORY_ALPHA)}, if "
    "repeated runs differ by about 1 %."
)


def history_sentences(history: History) -> list[str]:
    """The verdict, then each change, what cannot be compared, and what was left out."""
    return [
        _verdict(history),
        *(sentence for group in history.groups for sentence in _changes(group)),
        *_apart(history.groups),
        *(
            f"{count(number, 'timing')} of {name} failed or was too noisy to count."
            for name, number in history.left_out.items()
        ),
        *(
            f"{name} is skipped: {reason}{'' if reason.endswith('.') else '.'}"
            for name, reason in history.skipped.items()
        ),
        _FALSE_ALARMS,
    ]


def _verdict(history: History) -> str:
    """How many series became slower or faster, by how much at most, and when."""
    runs = count(len({run.name for group in history.groups for run in group.runs}), "run")
    series = [(group, one) for group in history.groups for one in group.series]
    parts = [
        text
        for word, sign in (("slower", 1), ("faster", -1))
        if (text := _changed(word, [pair for pair in series if _moved(pair[1], sign)], sign))
    ]
    if not parts:
        return f"No level change in {runs} ({count(len(series), 'series', 'series')})."
    return f"{join_words(parts)}, of {count(len(series), 'series', 'series')} in {runs}."


def _moved(series: HistorySeries, sign: int) -> bool:
    return any(change.log_change * sign > 0 for change in series.changes)


def _changed(word: str, found: Sequence[tuple[HistoryGroup, HistorySeries]], sign: int) -> str:
    """2 series became slower, by up to 1.22 x from 2026-07-06 on; "" if none did."""
    moves = [
        (abs(change.log_change), group.runs[series.points[change.index].run].name)
        for group, series in found
        for change in series.changes
        if change.log_change * sign > 0
    ]
    if not moves:
        return ""
    size, since = max(moves)
    most = "by" if len(moves) == 1 else "by up to"
    return f"{count(len(found), 'series', 'series')} became {word}, {most} {math.exp(size):.2f} x from {since} on"


def history_tables(history: History) -> list[Table]:
    """For each machine and reference: the series, then the runs and what changed between them."""
    return [table for group in history.groups for table in (_series_table(group), _runs_table(group))]


def group_words(key: GroupKey) -> str:
    """The reference of a group and its machine: torch 2.13.0 on AMD EPYC, 2 cores, 1 thread."""
    reference = f"{key.reference} {key.reference_version}".strip()
    return f"{reference} on {key.machine}, {count(key.threads, 'thread')}"


def case_words(group: HistoryGroup, series: HistorySeries) -> str:
    """Target and case of a series."""
    usual = usual_factors([one.newest for one in group.series])
    parts = (series.newest.target, case_in_words(series.newest, usual))
    return ", ".join(dict.fromkeys(part for part in parts if part))


def marks(group: HistoryGroup) -> dict[int, str]:
    """Map the index of a run to what changed since the run before; runs without a change are left out."""
    changed = {
        index: differences(before.header, after.header)
        for index, (before, after) in enumerate(zip(group.runs, group.runs[1:], strict=False), 1)
    }
    return {index: join_words(words) for index, words in changed.items() if words}


def _changes(group: HistoryGroup) -> Iterator[str]:
    """One sentence per run at which levels changed: arms that change together usually share one cause."""
    at: dict[int, list[tuple[HistorySeries, ChangePoint]]] = {}
    for series in group.series:
        for change in series.changes:
            at.setdefault(series.points[change.index].run, []).append((series, change))
    for run, found in sorted(at.items()):
        largest = sorted(found, key=lambda one: -abs(one[1].log_change))[:_MOST_ARMS]
        arms = [
            f"{arm_in_words(series.newest)} in {case_words(group, series)} is {_change_words(change)}"
            for series, change in largest
        ]
        more = [f"{len(found) - _MOST_ARMS} more changed less"] if len(found) > _MOST_ARMS else []
        only = " Only the newest run shows it; the next run will confirm it or not." if _is_newest(found) else ""
        yield f"From {group.runs[run].name} on, {'; '.join([*arms, *more])}. {_cause(group, run)}{only}"


def _is_newest(found: Sequence[tuple[HistorySeries, ChangePoint]]) -> bool:
    return all(change.after == 1 and change.index == len(series.points) - 1 for series, change in found)


def _cause(group: HistoryGroup, run: int) -> str:
    before, after = group.runs[run - 1], group.runs[run]
    changed = differences(before.header, after.header)
    where = f"between {before.name} and {after.name}"
    return f"Changed {where}: {join_words(changed)}." if changed else f"No version changed {where}."


def _change_words(change: ChangePoint) -> str:
    factor, low, high = (math.exp(value) for value in (change.log_change, change.log_low, change.log_high))
    word = "slower" if change.log_change > 0 else "faster"
    levels = f"{math.exp(change.log_before):.2f} -> {math.exp(change.log_after):.2f} of the reference"
    return f"{word}: {ratio_text(factor, low, high, times=' x')} ({levels})"


def _apart(groups: Sequence[HistoryGroup]) -> Iterator[str]:
    """Why there is more than one group."""
    if len(groups) > 1:
        names = join_words([f"{group_words(group.key)} ({count(len(group.runs), 'run')})" for group in groups])
        yield f"Ratios are compared only within one machine and one version of the reference: {names}."


def _series_table(group: HistoryGroup) -> Table:
    rows = (
        {
            "case": case_words(group, one),
            "arm": series_name(one.newest),
            "runs": str(len(one.points)),
            "first": _ratio(one.points[0].record),
            "newest": _ratio(one.newest),
            "change": ", ".join(
                f"{math.exp(change.log_change):.2f} x from {group.runs[one.points[change.index].run].name} on"
                for change in one.changes
            )
            or "none",
        }
        for one in group.series
    )
    title = f"Ratio to {group_words(group.key)}"
    return text_table(title, rows, heading="case", numbers=("runs", "first", "newest"), note=_NOTE)


def _ratio(record: TimingRecord) -> str:
    return ratio_text(record.ratio, record.ratio_low, record.ratio_high)


def _runs_table(group: HistoryGroup) -> Table:
    changed = marks(group)
    rows = (
        {
            "run": run.name,
            "started": run.header.started,
            "what changed": changed.get(index, "nothing" if index else ""),
        }
        for index, run in enumerate(group.runs)
    )
    return text_table(f"Runs with {group_words(group.key)}", rows)
