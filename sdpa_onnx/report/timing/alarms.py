"""What speaks against the timings themselves, told before what they say: noisy tables, clocks that differ, company.

Says nothing of who is faster.
"""

from collections.abc import Sequence

from sdpa_onnx.core.records.records import Record, TimingRecord
from sdpa_onnx.report.text.labels import CommonFactors, case_in_words, series_name, usual_factors
from sdpa_onnx.report.text.number_text import count
from sdpa_onnx.report.timing.comparisons import RecordedComparison, comparisons

__all__ = ["alarm_lines", "is_told_as_alarm", "timing_alarms"]

# Cases that are named; the others are counted.
_MOST_CASES = 3
# How the warnings begin that are told here. Twins: workflows/timing/records.py, measure/timing_notice.py.
_CLOCKS = "The ratio is "
_COMPANY = "Another timing of sdpa_onnx"


def is_told_as_alarm(warning: str) -> bool:
    """Whether a warning of a record has its sentence here."""
    return warning.startswith((_CLOCKS, _COMPANY))


def timing_alarms(records: Sequence[Record]) -> list[str]:
    """What a reader must know before the tables of these records; nothing where nothing is wrong."""
    return alarm_lines(comparisons(records), usual_factors(records))


def alarm_lines(found: Sequence[RecordedComparison], usual: CommonFactors) -> list[str]:
    """Noisy tables first, then clocks that differ, then other timings on the machine, one line each."""
    return [*_noisy_lines(found, usual), *_clock_lines(found, usual), *_company_lines(found, usual)]


def _noisy_lines(found: Sequence[RecordedComparison], usual: CommonFactors) -> list[str]:
    noisy = [one for one in found if one.is_noisy]
    if not noisy:
        return []
    where = _listed([_where(one, usual) for one in noisy])
    which = "its ratios" if len(noisy) == 1 else "their ratios"
    counted = f"{len(noisy)} of {count(len(found), 'comparison')}"
    clone = "a clone of the baseline came out different from the baseline"
    return [f"NOISY in {counted} ({where}): {clone}, so none of {which} can be trusted."]


def _clock_lines(found: Sequence[RecordedComparison], usual: CommonFactors) -> list[str]:
    """Which clock is right cannot be said, so both ratios are."""
    told = [(one, arm) for one in found for arm in one.contenders if _has(arm, _CLOCKS)]
    cases = [
        f"{series_name(arm)} over {arm.baseline} in {_where(one, usual)}: {arm.ratio_wall:.2f} x by wall time, "
        f"{arm.ratio_cpu:.2f} x by CPU time"
        for one, arm in told
    ]
    arms = f"{count(len(told), 'arm')} ({_listed(cases)})"
    return [f"The two clocks tell different ratios for {arms}: something waits or sleeps there."] if told else []


def _company_lines(found: Sequence[RecordedComparison], usual: CommonFactors) -> list[str]:
    told = [_where(one, usual) for one in found if any(_has(arm, _COMPANY) for arm in one.arms)]
    counted = f"{len(told)} of {count(len(found), 'comparison')}"
    return [f"Another timing ran on this machine at the same time as {counted} ({_listed(told)})."] if told else []


def _has(arm: TimingRecord, beginning: str) -> bool:
    return any(warning.startswith(beginning) for warning in arm.warnings)


def _where(one: RecordedComparison, usual: CommonFactors) -> str:
    return ", ".join(word for word in (one.first.target, case_in_words(one.first, usual)) if word)


def _listed(cases: Sequence[str]) -> str:
    more = [f"and {len(cases) - _MOST_CASES} more"] if len(cases) > _MOST_CASES else []
    return "; ".join([*cases[:_MOST_CASES], *more])
