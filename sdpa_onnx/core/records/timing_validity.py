"""Check that the figures of a timing record are possible: a file may contain anything, and decides over pull requests.

Refuses only figures that no measurement can produce, never unlikely ones.
"""

from dataclasses import dataclass

from sdpa_onnx.core.records.timing_records import TimingRecord
from sdpa_onnx.core.records.verdicts import Outcome

__all__ = ["impossible"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    """Range of a figure: least and most included; a timed arm may lack it only if it is optional."""

    least: float
    most: float
    is_optional: bool = False

    def fault(self, value: float | None) -> str:
        """Why a value is impossible, as the end of a sentence, or ""."""
        if value is None:
            return "" if self.is_optional else "is missing"
        if self.least <= value <= self.most:
            return ""
        return f"{value:g} is not between {self.least:g} and {self.most:g}"


# Two arms compute the same attention: a factor above a million is an error in the file.
_LEAST_RATIO, _MOST_RATIO = 1e-6, 1e6
# The limits of an interval are further out on a noisy machine: ten log units at most, see `_MOST_LOG_SE`.
_LEAST_LIMIT, _MOST_LIMIT = 1e-12, 1e12
# Seconds: below the resolution of any clock, and eleven days.
_LEAST_SECONDS, _MOST_SECONDS = 1e-12, 1e6
# Standard error of a log ratio: above the most the ratio is unknown; the least is far below a clock's resolution.
_LEAST_LOG_SE, _MOST_LOG_SE = 1e-12, 10.0
# An interval that covers the truth in less than half of all cases is useless; 1 has no finite interval.
_LEAST_CONFIDENCE, _MOST_CONFIDENCE = 0.5, 0.999999
_MOST_DEGREES = 1e9
_MOST_COUNT = 1e12

_RATIO = _Limits(least=_LEAST_RATIO, most=_MOST_RATIO)
_CLOCK_RATIO = _Limits(least=_LEAST_RATIO, most=_MOST_RATIO, is_optional=True)
_INTERVAL_LIMIT = _Limits(least=_LEAST_LIMIT, most=_MOST_LIMIT)
_SECONDS = _Limits(least=_LEAST_SECONDS, most=_MOST_SECONDS)
_OTHER_SECONDS = _Limits(least=0, most=_MOST_SECONDS, is_optional=True)
_COUNT = _Limits(least=1, most=_MOST_COUNT)
_MEASURED = _Limits(least=1, most=_MOST_COUNT, is_optional=True)
_SHARE = _Limits(least=0, most=1)
_OTHER_SHARE = _Limits(least=0, most=_MOST_LIMIT, is_optional=True)

_NUMBERS = {
    **dict.fromkeys(("median_seconds", "median_low", "median_high"), _SECONDS),
    "wall_min_seconds": _Limits(least=_LEAST_SECONDS, most=_MOST_SECONDS, is_optional=True),
    **dict.fromkeys(("create_seconds", "first_seconds", "new_length_seconds", "idle_seconds"), _OTHER_SECONDS),
    **dict.fromkeys(("kernel_seconds", "host_seconds", "compile_seconds"), _OTHER_SECONDS),
    **dict.fromkeys(("p50_seconds", "p90_seconds", "p99_seconds"), _OTHER_SECONDS),
    "calls_per_second": _Limits(least=0, most=_MOST_COUNT, is_optional=True),
    "ratio": _RATIO,
    **dict.fromkeys(("ratio_wall", "ratio_cpu"), _CLOCK_RATIO),
    **dict.fromkeys(("ratio_low", "ratio_high"), _INTERVAL_LIMIT),
    **dict.fromkeys(("threads", "launches"), _COUNT),
    **dict.fromkeys(("calls", "blocks"), _MEASURED),
    "disturbed": _SHARE,
    "confidence": _Limits(least=_LEAST_CONFIDENCE, most=_MOST_CONFIDENCE),
    "log_ratio_se": _Limits(least=_LEAST_LOG_SE, most=_MOST_LOG_SE, is_optional=True),
    "degrees": _Limits(least=1, most=_MOST_DEGREES, is_optional=True),
    "between_sd": _Limits(least=0, most=_MOST_LOG_SE, is_optional=True),
    **dict.fromkeys(("detectable", "roof_share"), _OTHER_SHARE),
}
_CHOICES = {"clock": ("wall", "cpu"), "cache": ("warm", "cold")}


def impossible(record: TimingRecord) -> str:
    """Why a timing is impossible, with the field; "" if it is possible.

    A record that is not OK has no figures. An arm that is OK and was not timed, only loaded, has no median.

    Example:
        >>> impossible(TimingRecord(median_seconds=1.0))
        'the median_low is missing'
    """
    if record.outcome is not Outcome.OK:
        return ""
    for name, limits in _NUMBERS.items():
        value = getattr(record, name)
        is_needed = record.median_seconds is not None
        if (value is not None or is_needed) and (fault := limits.fault(value)):
            return f"the {name} {fault}"
    for name, choices in _CHOICES.items():
        if (value := getattr(record, name)) not in choices:
            return f"the {name} {value[:20]!r} is neither {choices[0]} nor {choices[1]}"
    if record.ratio_low is not None and record.ratio_high is not None and record.ratio_low > record.ratio_high:
        return f"the ratio_low {record.ratio_low:g} is above the ratio_high {record.ratio_high:g}"
    return ""
