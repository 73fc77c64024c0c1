"""The verdict on a ratio as text, for cells and for counts; judges nothing."""

from collections import Counter
from collections.abc import Iterable, Sequence

from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.core.records.records import TimingRecord
from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.report.text.labels import join_words
from sdpa_onnx.report.text.number_text import confidence_text, ratio_text, share
from sdpa_onnx.report.timing.comparisons import EQUAL_WITHIN, JudgedRatio, RecordedComparison

__all__ = ["confidences", "ratio_in_words", "verdict_cell", "verdict_counts", "verdict_word"]


# A verdict that a check of the measurement contradicts; see doubt.py.
_DOUBTFUL = "doubtful"


def verdict_word(verdict: RatioVerdict) -> str:
    """The verdict in a list or a count; noisy is a verdict on the machine, not on the arm."""
    return f"equal within {share(EQUAL_WITHIN)}" if verdict is RatioVerdict.EQUAL else verdict.value


def verdict_cell(judged: JudgedRatio) -> str:
    """The verdict in a table, whose note explains the rest: inconclusive (6 more); faster? if it is doubtful."""
    if judged.doubt is not None:
        return f"{judged.verdict.value}?"
    if judged.verdict is RatioVerdict.INCONCLUSIVE and judged.launches_needed > 0:
        return f"{judged.verdict.value} ({judged.launches_needed} more)"
    return judged.verdict.value


def ratio_in_words(judged: JudgedRatio) -> str:
    """The ratio with its interval: 0.83 x [0.80, 0.86]."""
    ratio = judged.ratio
    return ratio_text(ratio.value, ratio.low, ratio.high, times=" x")


def verdict_counts(ratios: Sequence[JudgedRatio]) -> str:
    """Count the verdicts: faster in 9, slower in 2, inconclusive in 4 and doubtful in 1 of 16 cases."""
    counts = Counter(_DOUBTFUL if one.doubt is not None else verdict_word(one.verdict) for one in ratios)
    if len(counts) == 1:
        where = "in the only case" if len(ratios) == 1 else f"in all {len(ratios)} cases"
        return f"{next(iter(counts))} {where}"
    ordered = [*map(verdict_word, RatioVerdict), _DOUBTFUL]
    words = [f"{word} in {counts[word]}" for word in ordered if counts[word]]
    return f"{join_words(words)} of {len(ratios)} cases"


def confidences(found: Iterable[RecordedComparison]) -> list[str]:
    """The confidences of the intervals of ratios: 95 %, 99 %; the baseline has no interval."""
    arms: list[TimingRecord] = [arm for one in found for arm in one.contenders or one.arms]
    return [confidence_text(value) for value in sorted({known(arm.confidence) for arm in arms})]
