"""The first table of a report: groups of cases by arm, with the ratio and the verdict; judges nothing.

Case by arm if that fits the width, else a row per arm under each group, with the verdict in words.
"""

from collections.abc import Iterable, Sequence

from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.report.text.labels import join_words, series_name
from sdpa_onnx.report.text.number_text import NOT_KNOWN, figure, median_text, share
from sdpa_onnx.report.text.table import Table, text_table
from sdpa_onnx.report.timing.case_groups import ArmRange, CaseGroup, CaseGroups
from sdpa_onnx.report.timing.case_names import CaseNames
from sdpa_onnx.report.timing.comparisons import EQUAL_WITHIN, RecordedComparison

__all__ = ["case_table", "medians_table", "short_arms"]

# Least width of the column of cases: below it, nearly every label would be broken.
_LEAST_LABEL = 18
# If a table with a row per arm has more arms, a group shows only its fastest and its slowest.
_MOST_ARMS = 3
_WRONG, _BEST, _WORST, _OPEN, _EQUAL = "x", "*", "!", "?", "="
_ONLY_EXTREMES = " Of each group the fastest and the slowest arm; the report has all."
_LEGEND = {
    _WRONG: "outputs wrong",
    _BEST: "fastest",
    _WORST: "largest slow-down",
    _EQUAL: f"equal within {share(EQUAL_WITHIN)}",
    _OPEN: "not decided",
}


def case_table(groups: CaseGroups, width: int | None = None) -> Table:
    """The groups as a table.

    Args:
        groups: At least one.
        width: Width of a line in characters; None = as wide as needed.
    """
    names = short_arms(groups.arms)
    leading = [one for one in groups.baselines if any(group.fastest == one for group in groups.groups)]
    labels = max(len(group.label) for group in groups.groups)
    for baselines, label in ((leading, labels), ((), min(labels, _LEAST_LABEL))):
        wide = _wide(groups, names, baselines)
        if width is None or label + _width_of_numbers(wide) <= width:
            return wide
    return _long(groups, names)


def _width_of_numbers(table: Table) -> int:
    """Characters that all columns but the first need, with the narrow gaps before them."""
    rows = table.sections[0].rows
    return sum(
        1 + max([*map(len, column.head.split()), *(len(row[place]) for row in rows)])
        for place, column in enumerate(table.columns)
        if place
    )


def medians_table(found: Sequence[RecordedComparison], names: CaseNames, *, most: int) -> Table:
    """Medians and shares of the roof of arms that were timed alone: there is no ratio.

    Args:
        found: The comparisons.
        names: The names of their cases.
        most: Greatest number of rows; a note counts those left out.
    """
    arms = [arm for one in found for arm in one.arms]
    rows = (
        {
            "case": names.of([arm]),
            "arm": series_name(arm),
            "median [95 %]": median_text(arm.median_seconds, arm.median_low, arm.median_high),
            "roof": share(arm.roof_share),
        }
        for arm in arms[:most]
    )
    more = f" {len(arms) - most} more in the report." if len(arms) > most else ""
    return text_table(
        "Time of a call, without an arm to compare it with",
        rows,
        numbers=("median [95 %]", "roof"),
        note=f"Unless stated: {names.usual}.{more}",
    )


def short_arms(arms: Sequence[str]) -> dict[str, str]:
    """Name -> name without the runtime, if all arms have the same: ort-cpu attention 23 -> attention 23."""
    first = arms[0].partition(" ")[0] if arms else ""
    is_shared = all(arm.startswith(f"{first} ") and len(arm) > len(first) + 1 for arm in arms)
    return {arm: arm.removeprefix(f"{first} ") if is_shared else arm for arm in arms}


def _range_words(values: Iterable[float]) -> str:
    """Smallest and largest ratio: 0.53-0.94; one number if both are the same when rounded."""
    ordered = sorted(values)
    low, high = (_ratio(one) for one in (ordered[0], ordered[-1]))
    return low if low == high else f"{low}-{high}"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else figure(value)


def _title(groups: CaseGroups, names: dict[str, str]) -> str:
    runtimes = {arm.removesuffix(name).strip() for arm, name in names.items()} - {""}
    on = f" on {join_words(sorted(runtimes))}" if runtimes else ""
    return f"Time{on} over that of {join_words(groups.baselines)}: below 1 is faster"


def _wide(groups: CaseGroups, names: dict[str, str], leading: Sequence[str]) -> Table:
    """A row per group, a column per arm.

    Args:
        groups: The rows.
        names: Short names of the arms.
        leading: Baselines with a column, because one is the fastest of a group.
    """
    rows = [
        {
            "case": group.label,
            **{one: f"1 {_BEST}" if group.fastest == one else "1  " for one in leading},
            **{names[arm]: _cell(group.range_of(arm)) for arm in groups.arms},
        }
        for group in groups.groups
    ]
    cells = [cell for row in rows for head, cell in row.items() if head != "case"]
    marks = [mark for mark in _LEGEND if any(cell.endswith(f" {mark}") for cell in cells)]
    is_doubtful = any(one.doubtful for group in groups.groups for one in group.ranges)
    legend = ", ".join(
        f"{mark} {_LEGEND[mark]}{' or doubtful' if mark == _OPEN and is_doubtful else ''}" for mark in marks
    )
    if any(not group.fastest and not any(one.is_open for one in group.ranges) for group in groups.groups):
        legend += f"{', ' if legend else ''}no {_BEST}: no single winner"
    doubt = "proven unless marked" if {_OPEN, _EQUAL} & set(marks) else "all proven"
    return text_table(
        _title(groups, names),
        rows,
        numbers=(*leading, *names.values()),
        note=f"{_usual(groups)} {legend}; {doubt}." if legend else _usual(groups),
    )


def _usual(groups: CaseGroups) -> str:
    return f"Unless stated: {groups.usual}."


def _cell(found: ArmRange | None) -> str:
    """The range with its mark; two characters are kept for the mark so that the digits stay aligned."""
    if found is None:
        return f"{NOT_KNOWN}  "
    if found.low is None or found.high is None:
        return f"{_without_ratio(found)}  "
    marks = {
        _WRONG: found.is_wrong,
        _WORST: found.is_worst,
        _BEST: found.is_fastest,
        _OPEN: found.is_open,
        _EQUAL: bool(found.verdicts.get(RatioVerdict.EQUAL)),
    }
    mark = next((mark for mark, applies in marks.items() if applies), " ")
    return f"{_range_words((found.low, found.high))} {mark}"


def _without_ratio(found: ArmRange) -> str:
    if found.verdicts.get(RatioVerdict.NOISY):
        return RatioVerdict.NOISY.value
    return next((outcome.value for outcome in found.missing), NOT_KNOWN)


def _long(groups: CaseGroups, names: dict[str, str]) -> Table:
    """A row per arm under each group: for narrow terminals and for many arms."""
    shown = ((group, one) for group in groups.groups for one in _extremes(group, len(names)))
    return text_table(
        _title(groups, names),
        ({"case": group.label, **_long_cells(one, names)} for group, one in shown),
        heading="case",
        numbers=("ratio",),
        note=_usual(groups) + (_ONLY_EXTREMES if len(names) > _MOST_ARMS else ""),
    )


def _extremes(group: CaseGroup, arms: int) -> Sequence[ArmRange]:
    timed = sorted((one for one in group.ranges if one.high is not None), key=lambda one: one.high or 0.0)
    return group.ranges if arms <= _MOST_ARMS or len(timed) < 2 else (timed[0], timed[-1])


def _long_cells(found: ArmRange, names: dict[str, str]) -> dict[str, str]:
    if found.low is None or found.high is None:
        return {"arm": names[found.arm], "ratio": NOT_KNOWN, "verdict": _without_ratio(found)}
    numbers = {
        f"{verdict.value}{mark}": number
        for verdict, whole in sorted(found.verdicts.items())
        for mark, number in (("", whole - found.doubtful.get(verdict, 0)), (_OPEN, found.doubtful.get(verdict, 0)))
        if number
    }
    verdict = next(iter(numbers)) if len(numbers) == 1 else ", ".join(f"{one} {numbers[one]}" for one in numbers)
    words = {"outputs wrong": found.is_wrong, "the largest": found.is_worst, "the fastest": found.is_fastest}
    extra = "".join(f", {word}" for word, applies in words.items() if applies)
    return {
        "arm": names[found.arm],
        "ratio": _range_words((found.low, found.high)),
        "verdict": f"{verdict}{extra}",
    }
