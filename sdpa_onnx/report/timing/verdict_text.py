"""The verdict on a ratio as text, short for cells and complete for sentences; judges nothing."""

from collections import Counter
from collections.abc import Iterable, Sequence

from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.core.records.records import TimingRecord
from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.report.text.labels import join_words
from sdpa_onnx.report.text.number_text import confidence_text, count, ratio_text, share
from sdpa_onnx.report.timing.comparisons import EQUAL_WITHIN, JudgedRatio, RecordedComparison

__all__ = ["confidences", "judged_in_words", "ratio_in_words", "verdict_cell", "verdict_counts", "verdict_word"]


def verdict_word(verdict: RatioVerdict) -> str:
    """The verdict in a list or a count; noisy is a verdict on the machine, not on the arm."""
    return f"equal within {share(EQUAL_WITHIN)}" if verdict is RatioVerdict.EQUAL else verdict.value


def verdict_cell(judged: JudgedRatio) -> str:
    """The verdict in a table, whose note explains equal and the number of launches: inconclusive (6 more)."""
    if judged.verdict is RatioVerdict.INCONCLUSIVE and judged.launches_needed > 0:
        return f"{judged.verdict.value} ({judged.launches_needed} more)"
    return judged.verdict.value


def judged_in_words(judged: JudgedRatio) -> str:
    """The verdict at the end of a sentence; if inconclusive, about how many more launches it needs."""
    word = verdict_word(judged.verdict)
    match judged.verdict:
        case RatioVerdict.INCONCLUSIVE if judged.launches_needed > 0:
            return f"{word} (needs about {count(judged.launches_needed, 'more launch', 'more launches')})"
        case RatioVerdict.NOISY:
            return f"{word}: the time of a clone of the baseline differed"
        case _:
            return word


def ratio_in_words(judged: JudgedRatio) -> str:
    """The ratio with its interval: 0.83 x [0.80, 0.86]."""
    ratio = judged.ratio
    return ratio_text(ratio.value, ratio.low, ratio.high, times=" x")


def verdict_counts(ratios: Sequence[JudgedRatio]) -> str:
    """Count the verdicts: faster in 9, slower in 2 and inconclusive in 5 of 16 cases."""
    counts = Counter(one.verdict for one in ratios)
    if len(ratios) == 1:
        return f"{verdict_word(ratios[0].verdict)} in the only case"
    if len(counts) == 1:
        return f"{verdict_word(ratios[0].verdict)} in all {len(ratios)} cases"
    words = [f"{verdict_word(verdict)} in {counts[verdict]}" for verdict in RatioVerdict if counts[verdict]]
    return f"{join_words(words)} of {len(ratios)} cases"


def confidences(found: Iterable[RecordedComparison]) -> list[str]:
    """The confidences of the intervals of ratios: 95 %, 99 %; the baseline has no interval."""
    arms: list[TimingRecord] = [arm for one in found for arm in one.contenders or one.arms]
    return [confidence_text(value) for value in sorted({known(arm.confidence) for arm in arms})]
