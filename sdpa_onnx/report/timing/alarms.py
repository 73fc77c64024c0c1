"""Reasons to doubt the timings, printed before the results: noisy comparisons, clocks that differ, other timings.

Which arm is faster is not stated here; which verdict is doubtful is in doubt.py.
"""

from collections.abc import Sequence

from sdpa_onnx.core.records.records import Record
from sdpa_onnx.report.text.labels import series_name, usual_factors
from sdpa_onnx.report.text.number_text import count
from sdpa_onnx.report.timing.case_names import CaseNames, case_names
from sdpa_onnx.report.timing.comparisons import RecordedComparison, comparisons
from sdpa_onnx.report.timing.doubt import CLOCKS, OTHER_TIMING, REMEDY, has_warning, why_clocks_differ

__all__ = ["alarm_lines", "is_alarm", "timing_alarms"]

# Greatest number of cases that are named; the others are counted.
_MOST_CASES = 3


def is_alarm(warning: str) -> bool:
    """Whether a warning of a record is printed as an alarm."""
    return warning.startswith((CLOCKS, OTHER_TIMING))


def timing_alarms(records: Sequence[Record]) -> list[str]:
    """The alarms on the timings among these records; empty if there are none."""
    found = comparisons(records)
    return alarm_lines(found, case_names(found, usual_factors(records)))


def alarm_lines(found: Sequence[RecordedComparison], names: CaseNames) -> list[str]:
    """Noisy comparisons first, then clocks that differ, then other timings on the machine, one line each."""
    return [*_noisy_lines(found, names), *_clock_lines(found, names), *_other_timing_lines(found, names)]


def _noisy_lines(found: Sequence[RecordedComparison], names: CaseNames) -> list[str]:
    noisy = [one for one in found if one.is_noisy]
    if not noisy:
        return []
    where = _listed([names.of([one.first]) for one in noisy])
    which = "its ratios" if len(noisy) == 1 else "their ratios"
    counted = f"{len(noisy)} of {count(len(found), 'comparison')}"
    clone = "the time of a clone of the baseline differed from that of the baseline"
    return [f"NOISY in {counted} ({where}): {clone}, so {which} are not reliable."]


def _clock_lines(found: Sequence[RecordedComparison], names: CaseNames) -> list[str]:
    """Print the ratios by both clocks, because it is not known which clock is right."""
    differing = [(one, arm) for one in found for arm in one.contenders if has_warning(arm, CLOCKS)]
    cases = [
        f"{series_name(arm)} over {arm.baseline} for {names.of([one.first])}: {arm.ratio_wall:.2f} x by wall time, "
        f"{arm.ratio_cpu:.2f} x by CPU time"
        for one, arm in differing
    ]
    arms = f"{count(len(differing), 'arm')} ({_listed(cases)})"
    why = why_clocks_differ([arm for _, arm in differing])
    return [f"Wall time and CPU time give different ratios for {arms}: {why}."] if differing else []


def _other_timing_lines(found: Sequence[RecordedComparison], names: CaseNames) -> list[str]:
    cases = [names.of([one.first]) for one in found if any(has_warning(arm, OTHER_TIMING) for arm in one.arms)]
    counted = f"{len(cases)} of {count(len(found), 'comparison')}"
    return [f"Another timing ran on this machine during {counted} ({_listed(cases)}): {REMEDY}."] if cases else []


def _listed(cases: Sequence[str]) -> str:
    more = [f"and {len(cases) - _MOST_CASES} more"] if len(cases) > _MOST_CASES else []
    return "; ".join([*cases[:_MOST_CASES], *more])
