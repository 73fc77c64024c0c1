"""Whether the figures of a timing can be: a file may hold anything, and what is read decides over pull requests.

Only what no measurement can give is refused, never what is unlikely.
"""

from dataclasses import dataclass

from sdpa_onnx.core.records.timing_records import TimingRecord
from sdpa_onnx.core.records.verdicts import Outcome

__all__ = ["impossible"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    """What figures may be: least and most included, or the number that stands for "not told"."""

    least: float
    most: float
    untold: float | None = None

    def fault(self, value: float) -> str:
        """What is wrong with a value, or ""."""
        if self.least <= value <= self.most or value == self.untold:
            return ""
        untold = "" if self.untold is None else f" nor {self.untold:g}"
        return f"not between {self.least:g} and {self.most:g}{untold}"


# Two ways to compute one attention: a factor beyond a million is a fault of the file.
_LEAST_RATIO, _MOST_RATIO = 1e-6, 1e6
# The ends of an interval lie further out where a machine was noisy: ten log units at most, see `_MOST_LOG_SE`.
_LEAST_END, _MOST_END = 1e-12, 1e12
# Seconds: below the step of any clock, and eleven days.
_LEAST_SECONDS, _MOST_SECONDS = 1e-12, 1e6
# Standard error of a log ratio: beyond it nothing is known of the ratio; the least is far below a clock's step.
_LEAST_LOG_SE, _MOST_LOG_SE = 1e-12, 10.0
# An interval that holds the truth in less than half of all cases is none; 1 has no finite interval.
_LEAST_CONFIDENCE, _MOST_CONFIDENCE = 0.5, 0.999999
_MOST_DEGREES = 1e9
_MOST_COUNT = 1e12

_RATIO = _Limits(least=_LEAST_RATIO, most=_MOST_RATIO)
_CLOCK_RATIO = _Limits(least=_LEAST_RATIO, most=_MOST_RATIO, untold=-1)
_END = _Limits(least=_LEAST_END, most=_MOST_END)
_SECONDS = _Limits(least=_LEAST_SECONDS, most=_MOST_SECONDS, untold=0)
_OTHER_SECONDS = _Limits(least=0, most=_MOST_SECONDS, untold=-1)
_COUNT = _Limits(least=1, most=_MOST_COUNT)
_MEASURED = _Limits(least=1, most=_MOST_COUNT, untold=0)
_SHARE = _Limits(least=0, most=1)
_OTHER_SHARE = _Limits(least=0, most=_MOST_END, untold=-1)

_NUMBERS = {
    **dict.fromkeys(("median_seconds", "median_low", "median_high", "wall_min_seconds"), _SECONDS),
    **dict.fromkeys(("create_seconds", "first_seconds", "new_length_seconds", "idle_seconds"), _OTHER_SECONDS),
    **dict.fromkeys(("kernel_seconds", "host_seconds"), _OTHER_SECONDS),
    "ratio": _RATIO,
    **dict.fromkeys(("ratio_wall", "ratio_cpu"), _CLOCK_RATIO),
    **dict.fromkeys(("ratio_low", "ratio_high"), _END),
    **dict.fromkeys(("threads", "launches"), _COUNT),
    **dict.fromkeys(("calls", "blocks"), _MEASURED),
    "disturbed": _SHARE,
    "confidence": _Limits(least=_LEAST_CONFIDENCE, most=_MOST_CONFIDENCE),
    "log_ratio_se": _Limits(least=_LEAST_LOG_SE, most=_MOST_LOG_SE, untold=-1),
    "degrees": _Limits(least=1, most=_MOST_DEGREES, untold=-1),
    "between_sd": _Limits(least=0, most=_MOST_LOG_SE, untold=-1),
    **dict.fromkeys(("detectable", "roof_share"), _OTHER_SHARE),
}
_WORDS = {"clock": ("wall", "cpu"), "cache": ("warm", "cold")}


def impossible(record: TimingRecord) -> str:
    """What about a timing cannot be, its field named; "" where all can. A record that is not OK has no figures.

    Example:
        >>> impossible(TimingRecord(outcome=Outcome.FAILED, ratio=0.0))
        ''
    """
    if record.outcome is not Outcome.OK:
        return ""
    for name, limits in _NUMBERS.items():
        value = getattr(record, name)
        if fault := limits.fault(value):
            return f"the {name} {value:g} is {fault}"
    for name, words in _WORDS.items():
        if (word := getattr(record, name)) not in words:
            return f"the {name} {word[:20]!r} is neither {words[0]} nor {words[1]}"
    if record.ratio_low > record.ratio_high:
        return f"the ratio_low {record.ratio_low:g} is above the ratio_high {record.ratio_high:g}"
    return ""
