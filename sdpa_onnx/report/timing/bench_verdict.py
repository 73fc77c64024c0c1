"""The first sentences of `bench`: what is wrong, which arm is faster, or what one arm alone takes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.core.records.records import Outcome, TimingRecord, is_beyond_budget
from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.report.text.labels import join_words
from sdpa_onnx.report.text.number_text import count, duration, share
from sdpa_onnx.report.timing.bench_points import ComparisonLine, SizedComparison, arm_names, sizes_words
from sdpa_onnx.report.timing.comparisons import JudgedRatio, RecordedComparison
from sdpa_onnx.report.timing.doubt import CLOCKS, REMEDY, has_warning, why_clocks_differ
from sdpa_onnx.report.timing.verdict_text import ratio_in_words, verdict_word
from sdpa_onnx.runtimes.torch_compiled import TORCH_COMPILE

if TYPE_CHECKING:
    from sdpa_onnx.workflows.bench.bench_files import BenchResult

__all__ = ["median_note", "verdict_sentences"]

# Arms and sizes that are named one by one; with more the tables are shorter than the sentences.
_MOST_ARMS, _MOST_NAMED_SIZES = 4, 3
_MODULE_RUNTIME = "torch"
# Of the warning of an arm whose float16 nodes ran in float32. Twin: runtimes/ort_ran.py.
_WIDENED = " ran in float32"


def verdict_sentences(results: "Sequence[BenchResult]", along: ComparisonLine, *, against: str) -> Iterator[str]:
    """The verdict, one sentence an arm; wrong numbers first, because the time of a wrong result is worth nothing.

    Args:
        results: Finished comparisons.
        along: The same, those that have a time.
        against: Target of the module that was timed too; "" = none.
    """
    for one in results:
        if why := one.numbers.module_error:
            yield f"Your module does not run at {sizes_words(one.sizes)}, so nothing is compared with it there: {why}."
    if wrong := sorted({name for one in results for name in one.numbers.warnings}):
        times = "its time does" if len(wrong) == 1 else "their times do"
        yield f"The numbers of {join_words(wrong)} are not right, so {times} not count."
    skipped = [one for one in results if all(is_beyond_budget(record) for record in one.records)]
    if not along.sized:
        limit = ": the time limit was reached first; use a larger --budget"
        yield f"Nothing was timed{limit if skipped else ''}."
        return
    if len(along.sized) == 1:
        yield from _at_one_size(along.sized[0], _that_count(along.sized[0], results), against)
    else:
        yield from _over_sizes(along, [(one, _that_count(one, results)) for one in along.sized])
    if skipped:
        where = "; ".join(sizes_words(one.sizes) for one in skipped[:_MOST_NAMED_SIZES])
        more = f" and {len(skipped) - _MOST_NAMED_SIZES} more" if len(skipped) > _MOST_NAMED_SIZES else ""
        yield f"Skipped because of the time limit: {where}{more}."


def _that_count(one: SizedComparison, results: "Sequence[BenchResult]") -> tuple[TimingRecord, ...]:
    """The arms whose ratio is one of two right results: what computes something else is neither faster nor slower."""
    wrong = {name for result in results if result.sizes == one.sizes for name in result.numbers.warnings}
    return tuple(arm for arm in one.comparison.contenders if not wrong & {arm.arm, arm.baseline})


def _at_one_size(one: SizedComparison, contenders: Sequence[TimingRecord], against: str) -> Iterator[str]:
    comparison = one.comparison
    if not comparison.contenders:
        yield _alone(comparison.first)
        return
    if comparison.is_noisy:
        yield "No verdict: the machine is too noisy, because a second process of the baseline took another time."
        return
    for arm in contenders[:_MOST_ARMS]:
        yield _compared(arm, comparison.judged(arm), _subject(arm, comparison, against), _baseline(comparison, against))
        if comparison.judged(arm).proven is RatioVerdict.SLOWER:
            yield from _casts(arm, comparison)
    if len(contenders) > _MOST_ARMS:
        yield f"{count(len(contenders) - _MOST_ARMS, 'more arm')}: see the table."


def _casts(arm: TimingRecord, comparison: RecordedComparison) -> Iterator[str]:
    """That a slower arm computes float16 in float32 and the baseline does not; nothing of other arms."""
    baselines = [other for other in comparison.arms if other.arm == arm.baseline]
    if any(_WIDENED in warning for other in baselines for warning in other.warnings):
        return
    for warning in arm.warnings:
        if _WIDENED in warning:
            yield f"{arm.runtime} has no float16 kernels for nodes of {arm.arm}: {warning}"


def _alone(arm: TimingRecord) -> str:
    is_shared = arm.clock == "cpu"  # the median leaves out what others took, and the rate does not
    clock, load = (" of CPU time", " while other processes use the machine") if is_shared else ("", "")
    rate = f": {arm.calls_per_second:,.0f} calls per second{load}" if arm.calls_per_second else ""
    roof = f", {share(arm.roof_share)} of what this machine allows" if arm.roof_share else ""
    return f"{arm.arm} takes {duration(arm.median_seconds)}{clock} a call{rate}{roof}."


def _compared(arm: TimingRecord, judged: JudgedRatio, subject: str, baseline: str) -> str:
    """The ratio and its verdict; by both clocks if they differ, and with the reason if the verdict is doubtful."""
    doubt = "" if judged.doubt is None else f"? Doubtful, because {judged.doubt}: {REMEDY}"
    if has_warning(arm, CLOCKS) and arm.ratio_wall and arm.ratio_cpu:
        low, high = sorted((arm.ratio_wall, arm.ratio_cpu))
        clocks = f"{arm.ratio_wall:.2f} x by wall time, {arm.ratio_cpu:.2f} x by CPU time"
        why = doubt or f"; {why_clocks_differ([arm])}"
        return (
            f"{subject} takes {low:.2f} to {high:.2f} x the time of {baseline}, depending on the clock ({clocks}): "
            f"{verdict_word(judged.verdict)}{why}."
        )
    if doubt:
        return (
            f"{subject} takes {ratio_in_words(judged)} the time of {baseline}: {verdict_word(judged.verdict)}{doubt}."
        )
    more = judged.launches_needed if judged.verdict is RatioVerdict.INCONCLUSIVE else 0
    needs = f" (needs about {count(more, 'more launch', 'more launches')})" if more else ""
    return f"{subject} takes {ratio_in_words(judged)} the time of {baseline}: {verdict_word(judged.verdict)}{needs}."


def _subject(arm: TimingRecord, comparison: RecordedComparison, against: str) -> str:
    if not against:
        return arm.arm
    if arm.runtime == TORCH_COMPILE:
        return "Your module with torch.compile"
    files = {other.arm for other in comparison.arms if other.runtime not in (_MODULE_RUNTIME, TORCH_COMPILE)}
    return f"On {arm.runtime} the file" if len(files) == 1 else arm.arm


def _baseline(comparison: RecordedComparison, against: str) -> str:
    name = comparison.first.baseline
    runtime = next((arm.runtime for arm in comparison.arms if arm.arm == name), "")
    return "your module in eager mode" if against and runtime == _MODULE_RUNTIME else name


def _over_sizes(
    along: ComparisonLine, counting: Sequence[tuple[SizedComparison, tuple[TimingRecord, ...]]]
) -> Iterator[str]:
    """For each arm in how many comparisons it is faster or slower than the baseline."""
    names = [
        name
        for name in arm_names(along)
        if any(name == arm.arm for one in along.sized for arm in one.comparison.contenders)
    ]
    if not names:
        for one in along.sized[:_MOST_NAMED_SIZES]:
            yield f"At {sizes_words(one.sizes)}: {_alone(one.comparison.first)}"
    for name in names[:_MOST_ARMS]:
        judged = [one.comparison.judged(arm) for one, arms in counting for arm in arms if arm.arm == name]
        if not judged:
            continue
        baseline = along.sized[0].comparison.first.baseline
        faster, slower = (
            sum(one.proven is verdict for one in judged) for verdict in (RatioVerdict.FASTER, RatioVerdict.SLOWER)
        )
        doubts = Counter(one.doubt for one in judged if one.doubt is not None)
        cause = max(doubts, key=doubts.__getitem__, default="")
        why = f" At {doubts.total()} it is doubtful, because {cause}: {REMEDY}."
        yield (
            f"{name} is faster than {baseline} at {faster} and slower at {slower} of {len(judged)} sizes."
            f"{why if doubts else ''}"
        )
        if slower:
            first = next((arm, one.comparison) for one, arms in counting for arm in arms if arm.arm == name)
            yield from _casts(*first)


def median_note(found: Sequence[RecordedComparison]) -> str:
    """Why a ratio is not the quotient of two medians, with the arm where they differ most; "" where all agree.

    They agree if the quotient lies in the interval of the ratio.
    """
    outside = []
    for one in found:
        base = next((arm for arm in one.arms if arm.arm == arm.baseline), None)
        for arm in one.contenders:
            if base is None or arm.baseline != base.arm or arm.outcome is not Outcome.OK:
                continue
            quotient = known(arm.median_seconds) / known(base.median_seconds)
            if arm.ratio is not None and not known(arm.ratio_low) <= quotient <= known(arm.ratio_high):
                outside.append((abs(quotient / arm.ratio - 1), arm, base, quotient))
    if not outside:
        return ""
    _, arm, base, quotient = max(outside, key=lambda one: one[0])
    return (
        f"A ratio is not the quotient of two medians: {arm.arm} has {duration(arm.median_seconds)} over "
        f"{duration(base.median_seconds)} of {base.arm}, which is {quotient:.2f}, and a ratio of "
        f"{known(arm.ratio):.2f}. The ratio compares visits of the same moment, block by block, so a disturbance hits "
        "both; a median takes each arm by itself. Trust the ratio."
    )
