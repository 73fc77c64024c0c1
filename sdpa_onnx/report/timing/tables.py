"""The table of timing as text cells: median, ratio, verdict.

Records of earlier versions, which were timed in one process and have no verdict, keep their old table.
"""

from collections.abc import Iterator, Mapping, Sequence

from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.core.records.records import TimingRecord
from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.report.text.labels import clock_in_words, join_words, plain, series_name
from sdpa_onnx.report.text.number_text import (
    NOT_KNOWN,
    confidence_text,
    count,
    figure,
    median_text,
    percent,
    ratio_text,
    share,
)
from sdpa_onnx.report.text.table import Table, text_table
from sdpa_onnx.report.timing.alarms import is_alarm
from sdpa_onnx.report.timing.bench_verdict import median_note
from sdpa_onnx.report.timing.case_names import CaseNames
from sdpa_onnx.report.timing.comparisons import RecordedComparison
from sdpa_onnx.report.timing.verdict_text import confidences, verdict_cell, verdict_word

__all__ = ["TIMING_TITLE", "case_heading", "has_launches", "timing_table"]

TIMING_TITLE = "Time of a call"
_MEDIAN = "median [95 %]"


def has_launches(arms: Sequence[TimingRecord]) -> bool:
    """Whether arms were measured in worker processes and judged, not in one process as in earlier versions."""
    return any(arm.verdict is not None or known(arm.launches) > 1 for arm in arms)


def timing_table(found: Sequence[RecordedComparison], names: CaseNames) -> Table:
    """Median and ratio of every arm, one section per case; requested arms that did not run have their outcome."""
    arms = [arm for one in found for arm in one.arms]
    footnotes = tuple(dict.fromkeys(warning for arm in arms for warning in _marked_warnings(arm)))
    found_confidences = confidences(found)
    ratio = f"ratio [{found_confidences[0]}]" if len(found_confidences) == 1 else "ratio"
    is_judged = has_launches(arms)
    with_clock = len({arm.clock for arm in arms}) > 1
    tail = ("verdict", "slowdown found", "roof") if is_judged else ("useful GFLOP/s", "roof", "nodes run")
    cells = _judged_cells if is_judged else _plain_cells

    def rows() -> Iterator[dict[str, str]]:
        for one in found:
            case = {"case": case_heading(one, names, with_clock=with_clock)}
            for arm in one.arms:
                median = median_text(arm.median_seconds, arm.median_low, arm.median_high)
                first = {"arm": _marked_name(arm, footnotes), _MEDIAN: median}
                compared = _ratio_cell(arm, with_confidence=len(found_confidences) > 1)
                yield {**case, **first, ratio: compared, **dict(zip(tail, cells(one, arm), strict=True))}
            for arm in one.missing:
                outcome = {"arm": series_name(arm), _MEDIAN: arm.outcome.value}
                yield {**case, **outcome, **dict.fromkeys((ratio, *tail), NOT_KNOWN)}

    return text_table(
        TIMING_TITLE,
        rows(),
        heading="case",
        numbers={_MEDIAN, ratio, *tail} - {"verdict"},
        note=_judged_note(found, names) if is_judged else _plain_note(found, names),
        footnotes=footnotes,
    )


def case_heading(one: RecordedComparison, names: CaseNames, *, with_clock: bool = False) -> str:
    """One case: its description, and the number of launches behind its figures."""
    launches = max(known(arm.launches) for arm in one.arms)
    words = [
        names.of([one.first]),
        count(launches, "launch", "launches") if has_launches(one.arms) else "",
        clock_in_words(one.first.clock) if with_clock else "",
        "cold cache" if one.first.cache == "cold" else "",
    ]
    return "; ".join(word for word in words if word)


def _marked_warnings(arm: TimingRecord) -> list[str]:
    """Warnings on this arm, each once; alarms on the whole comparison are printed above the table."""
    return list(dict.fromkeys(plain(warning) for warning in arm.warnings if not is_alarm(warning)))


def _marked_name(arm: TimingRecord, footnotes: Sequence[str]) -> str:
    marks = [f"[{footnotes.index(warning) + 1}]" for warning in _marked_warnings(arm)]
    return " ".join([series_name(arm), *marks])


def _plain_cells(_: RecordedComparison, arm: TimingRecord) -> tuple[str, str, str]:
    return (
        figure(arm.useful_flops / known(arm.median_seconds) / 1e9) if arm.useful_flops else NOT_KNOWN,
        share(arm.roof_share),
        str(sum(arm.ran.values())) if arm.ran else NOT_KNOWN,
    )


def _judged_cells(one: RecordedComparison, arm: TimingRecord) -> tuple[str, str, str]:
    is_baseline = arm.arm == arm.baseline
    return (
        NOT_KNOWN if is_baseline else verdict_cell(one.judged(arm)),
        NOT_KNOWN if is_baseline or one.is_noisy else percent(arm.detectable),
        share(arm.roof_share),
    )


def _ratio_cell(arm: TimingRecord, *, with_confidence: bool) -> str:
    if arm.arm == arm.baseline:
        return "baseline"
    confidence = f" {confidence_text(known(arm.confidence))}" if with_confidence else ""
    return ratio_text(arm.ratio, arm.ratio_low, arm.ratio_high) + confidence


def _plain_note(found: Sequence[RecordedComparison], names: CaseNames) -> str:
    return (
        f"Unless stated: {_shared(found, names)}. Ratio: time over that of {_baselines(found)} in "
        "the same interleaved run, below 1 = faster; if its interval contains 1, nothing is claimed. Useful: masked "
        "pairs are not counted. Roof: share of the bound from measured matrix products and exponentials. Nodes run: "
        f"after the optimisation of the runtime. {_chance(found)}"
    )


def _judged_note(found: Sequence[RecordedComparison], names: CaseNames) -> str:
    is_doubtful = any(one.judged(arm).doubt is not None for one in found for arm in one.contenders)
    doubtful = " with a question mark, doubtful;" if is_doubtful else ""
    return (
        f"Unless stated: {_shared(found, names)}. Ratio: time over that of {_baselines(found)}, "
        "below 1 = faster; each arm has its own processes, a new one per launch, visited in random order. Verdict: "
        f"faster and slower hold for all arms of a case together; {verdict_word(RatioVerdict.EQUAL)}; inconclusive "
        f"(about how many more launches would decide);{doubtful} noisy: the time of a clone of the baseline differed, "
        "so no ratio of that case is valid. Slowdown found: the slowdown that is detected with a probability of 80 %. "
        "Roof: share of the bound from measured matrix products and exponentials. "
        f"{_chance(found)} {median_note(found)}"
    ).rstrip()


def _shared(found: Sequence[RecordedComparison], names: CaseNames) -> str:
    arms = [arm for one in found for arm in one.arms]
    threads = join_words([count(number, "thread") for number in sorted({arm.threads for arm in arms})])
    clock = join_words(sorted({clock_in_words(arm.clock) for arm in arms}))
    return ", ".join(word for word in (names.usual, threads, clock) if word)


def _baselines(found: Sequence[RecordedComparison]) -> str:
    return join_words(sorted({arm.baseline for one in found for arm in one.arms if arm.baseline})) or "the baseline"


def _chance(found: Sequence[RecordedComparison]) -> str:
    """The number of intervals that are expected to miss the true value by chance."""
    arms = [arm for one in found for arm in one.contenders]
    by_confidence: Mapping[str, list[TimingRecord]] = {
        word: [arm for arm in arms if confidence_text(known(arm.confidence)) == word] for word in confidences(found)
    }
    counted = join_words([f"{count(len(members), 'interval')} of {word}" for word, members in by_confidence.items()])
    missed = sum(1 - known(arm.confidence) for arm in arms)
    return f"Of {counted}, {missed:.2g} are expected to miss the true ratio by chance."
