"""The output of `bench`: a line per arm, ratios over lengths, crossover lengths, and how to read them.

Lines fit 110 characters; figures that are not printed are in the records.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sdpa_onnx.core.records.record_base import known
from sdpa_onnx.core.records.records import BUDGET_REASON, Outcome, TimingRecord, is_beyond_budget
from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.core.timing.crossover import Crossover
from sdpa_onnx.core.timing.paired import Calibration
from sdpa_onnx.report.text.labels import clock_in_words, join_words, plain
from sdpa_onnx.report.text.layout import TextLine, Tone, bullet, paragraph, table_lines
from sdpa_onnx.report.text.number_text import (
    NOT_KNOWN,
    bytes_text,
    confidence_text,
    count,
    duration,
    figure,
    percent,
    ratio_text,
    share,
)
from sdpa_onnx.report.text.table import Table, text_table
from sdpa_onnx.report.timing.alarms import is_alarm, timing_alarms
from sdpa_onnx.report.timing.bench_points import (
    ComparisonLine,
    SizedComparison,
    along_length,
    arm_names,
    overtakings,
    sizes_words,
)
from sdpa_onnx.report.timing.bench_verdict import median_note, verdict_sentences
from sdpa_onnx.report.timing.comparisons import JudgedRatio, RecordedComparison
from sdpa_onnx.report.timing.verdict_text import verdict_cell, verdict_word
from sdpa_onnx.workflows.bench.bench_files import BenchResult

__all__ = [
    "BENCH_WIDTH",
    "BenchText",
    "bench_lines",
    "bench_text",
    "crossover_sentences",
    "node_tables",
    "ratio_tables",
]

# Line width in characters if the width of the terminal is not known.
BENCH_WIDTH = 110
# Nodes of a graph that are listed.
_MOST_NODES = 10
# Number of lengths whose columns fit in BENCH_WIDTH next to the name of an arm.
_LENGTHS_A_TABLE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchText:
    """The output of `bench` before layout.

    Args:
        verdicts: The first sentences.
        alarms: What must not be missed.
        tables: Times, ratios, first runs, nodes.
        notes: How to read them, and what is missing.
    """

    verdicts: tuple[str, ...]
    alarms: tuple[str, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...]


def bench_text(
    results: Sequence[BenchResult], refused: Sequence[TimingRecord], *, against: str = "", lengths: int = 0
) -> BenchText:
    """Gather the output.

    Args:
        results: Finished comparisons.
        refused: Arms that could not take part, with the reason.
        against: Target of the module that was timed too; "" = none.
        lengths: Greatest number of lengths in a table; 0 = as many as fit in BENCH_WIDTH.
    """
    along = along_length(results)
    tables = (
        [
            _times_table(along),
            *ratio_tables(along, lengths or _LENGTHS_A_TABLE),
            _starts_table(along),
            *node_tables(along),
        ]
        if along.sized
        else []
    )
    note = median_note([one.comparison for one in along.sized])
    return BenchText(
        verdicts=tuple(verdict_sentences(results, along, against=against)),
        alarms=tuple(timing_alarms([record for one in results for record in one.records])),
        tables=tuple(tables),
        notes=(
            *crossover_sentences(along),
            *_missing(results, refused),
            *([note] if note else []),
            *_legend(along),
            *_numbers(results),
        ),
    )


def bench_lines(
    results: Sequence[BenchResult], refused: Sequence[TimingRecord], *, width: int, against: str = ""
) -> list[TextLine]:
    """The output as lines of a width in characters; the first is the verdict. Arguments as in `bench_text`."""
    text = bench_text(results, refused, against=against)
    lines = [TextLine(text=line, tone=Tone.ROW) for one in text.verdicts for line in paragraph(one, width)]
    lines += [TextLine(text=line, tone=Tone.ROW) for one in text.alarms for line in bullet(one, width)]
    for table in text.tables:
        lines += [TextLine(text="", tone=Tone.ROW), *table_lines(table, width)]
    return [
        *lines,
        *([TextLine(text="", tone=Tone.ROW)] if text.tables else []),
        *(TextLine(text=line, tone=Tone.ROW) for one in text.notes for line in bullet(one, width)),
    ]


def bench_verdict(
    results: Sequence[BenchResult], refused: Sequence[TimingRecord], *, width: int, against: str = ""
) -> list[TextLine]:
    """The verdict alone, one sentence in as many lines as it needs; arguments as `bench_lines`."""
    first = next(verdict_sentences(results, along_length(results), against=against), "")
    reason = next((f" {one.arm or one.runtime}: {one.reason}" for one in refused if not results), "")
    return [TextLine(text=text, tone=Tone.ROW) for text in paragraph(f"{first}{reason}", width)]


def _times_table(along: ComparisonLine) -> Table:
    """A line per arm, one section per set of sizes; without ratios where nothing is compared."""
    arms = [arm for one in along.sized for arm in one.comparison.arms]
    footnotes = tuple(dict.fromkeys(plain(warning) for arm in arms for warning in _doubts(arm)))
    ratio = f"ratio [{join_words(sorted({confidence_text(known(arm.confidence)) for arm in arms}))}]"
    is_compared = any(one.comparison.contenders or one.comparison.missing for one in along.sized)

    def rows() -> Iterator[dict[str, str]]:
        for one in along.sized:
            for arm in (*one.comparison.arms, *one.comparison.missing):
                is_timed = arm in one.comparison.arms
                name = _marked(arm, footnotes) if is_timed else arm.arm
                compared = _ratio_and_verdict(arm, one.comparison) if is_timed else (NOT_KNOWN, arm.outcome.value)
                yield {
                    "sizes": sizes_words(one.sizes),
                    "arm": name,
                    "median": duration(arm.median_seconds),
                    **(dict(zip((ratio, "verdict"), compared, strict=True)) if is_compared else {}),
                    "p50": duration(arm.p50_seconds),
                    "p90": duration(arm.p90_seconds),
                    "p99": duration(arm.p99_seconds),
                    "calls/s": NOT_KNOWN if arm.calls_per_second is None else figure(arm.calls_per_second),
                }

    numbers = ("median", ratio, "p50", "p90", "p99", "calls/s")
    return text_table("Time of a call", rows(), heading="sizes", numbers=numbers, footnotes=footnotes)


def _marked(arm: TimingRecord, footnotes: Sequence[str]) -> str:
    marks = [f"[{footnotes.index(plain(warning)) + 1}]" for warning in dict.fromkeys(_doubts(arm))]
    return " ".join([arm.arm, *marks])


def _ratio_and_verdict(arm: TimingRecord, comparison: RecordedComparison) -> tuple[str, str]:
    is_baseline = arm.arm == arm.baseline
    return (
        "baseline" if is_baseline else ratio_text(arm.ratio, arm.ratio_low, arm.ratio_high),
        ", ".join([*([] if is_baseline else [verdict_cell(comparison.judged(arm))]), *_wrong(arm)]),
    )


def _starts_table(along: ComparisonLine) -> Table:
    """What a call does not show: first runs, memory, and how near to the machine's limit it is."""
    arms = [(one, arm) for one in along.sized for arm in one.comparison.arms]
    compiles = any(arm.compile_seconds is not None for _, arm in arms)
    rows = (
        {
            "sizes": sizes_words(one.sizes),
            "arm": arm.arm,
            **({"compile": duration(arm.compile_seconds)} if compiles else {}),
            "first": NOT_KNOWN if arm.compile_seconds is not None else duration(arm.first_seconds),
            "new length": duration(arm.new_length_seconds),
            "idle": duration(arm.idle_seconds),
            "memory": bytes_text(arm.peak_memory_bytes),
            "roof": share(arm.roof_share),
            "bound by": arm.bound_by or NOT_KNOWN,
        }
        for one, arm in arms
    )
    numbers = ("compile", "first", "new length", "idle", "memory", "roof")
    return text_table("First runs, memory and roof", rows, heading="sizes", numbers=numbers)


def node_tables(along: ComparisonLine) -> Iterator[Table]:
    """For each arm whose runtime reports it, the nodes that take most of a call."""
    for one in along.sized:
        for arm in one.comparison.arms:
            if arm.nodes:
                yield _node_table(one, arm)


def _node_table(one: SizedComparison, arm: TimingRecord) -> Table:
    call = None if arm.kernel_seconds is None or arm.host_seconds is None else arm.kernel_seconds + arm.host_seconds
    parts = [(node.node, node.operator, node.seconds) for node in arm.nodes[:_MOST_NODES]]
    if call and (left := call - sum(seconds for _, _, seconds in parts)) > 0:
        parts.append(("all else", "", left))
    rows = (
        {
            "sizes": sizes_words(one.sizes),
            "node": node,
            "operator": operator,
            "time": duration(seconds),
            "share": share(seconds / call if call else None),
        }
        for node, operator, seconds in parts
    )
    note = "By the runtime's own profile, in a session of its own; all else: other nodes and the time between them."
    return text_table(f"Time by node: {arm.arm}", rows, heading="sizes", numbers=("time", "share"), note=note)


def _doubts(arm: TimingRecord) -> list[str]:
    """Warnings on this arm; those on the whole comparison are printed first in the output."""
    return [warning for warning in arm.warnings if not is_alarm(warning)]


def _wrong(arm: TimingRecord) -> list[str]:
    """Wrong numbers, printed with the verdict; a footnote has the evidence. Twin: workflows/bench/arm_agreement.py."""
    words = ("Numbers wrong:", "Numbers suspicious:")
    return [word.rstrip(":").lower() for word in words if any(warning.startswith(word) for warning in arm.warnings)]


def ratio_tables(along: ComparisonLine, lengths: int = _LENGTHS_A_TABLE) -> list[Table]:
    """Ratios: a line per arm and a column per length; a few lengths per table."""
    if not along.axis:
        return []
    chunks = range(0, len(along.sized), lengths)
    return [_ratio_table(along, along.sized[start : start + lengths]) for start in chunks]


def _ratio_table(along: ComparisonLine, sized: Sequence[SizedComparison]) -> Table:
    missing = [arm.arm for one in along.sized for arm in one.comparison.missing]
    names = dict.fromkeys((*arm_names(along), *missing))
    rows = (
        {"arm": name, **{str(along.length(one)): _ratio_cell(name, one.comparison) for one in sized}} for name in names
    )
    return text_table(f"Ratio to {along.sized[0].comparison.first.baseline} over {along.axis}", rows)


def _ratio_cell(name: str, comparison: RecordedComparison) -> str:
    arm = next((arm for arm in (*comparison.arms, *comparison.missing) if arm.arm == name), None)
    if arm is None:
        return NOT_KNOWN
    if arm.outcome is not Outcome.OK:
        return arm.outcome.value
    if arm.arm == arm.baseline:
        return f"baseline, {duration(arm.median_seconds)}"
    return f"{ratio_text(arm.ratio, arm.ratio_low, arm.ratio_high)} {_short_verdict(comparison.judged(arm))}"


def _short_verdict(judged: JudgedRatio) -> str:
    return f"{judged.verdict}{'' if judged.doubt is None else '?'}"


def crossover_sentences(along: ComparisonLine) -> list[str]:
    """The lengths at which the order changes, one sentence each; then the arms without a change."""
    baseline = along.sized[0].comparison.first.baseline if along.sized else ""
    found = overtakings(along)
    sentences = [
        _crossover_words(name, baseline, one, along.axis) for name, changes in found.items() for one in changes
    ]
    unchanged = [name for name, changes in found.items() if not changes]
    if unchanged:
        sentences.append(f"No change of order with {baseline} is proven for {join_words(unchanged)}.")
    return sentences


def _crossover_words(name: str, baseline: str, change: Crossover, axis: str) -> str:
    winner, loser = (name, baseline) if change.wins_above else (baseline, name)
    return (
        f"{winner} overtakes {loser} at {axis} of about {change.length:.0f}: proven slower at {change.low}, proven "
        f"faster at {change.high}."
    )


def _missing(results: Sequence[BenchResult], refused: Sequence[TimingRecord]) -> Iterator[str]:
    """Arms without a time, with the reason, each once; the verdict says it if the time limit reached none of them."""
    is_limit = all(is_beyond_budget(record) for one in results for record in one.records)
    failed = [record for one in results for record in one.records if record.outcome is not Outcome.OK and not is_limit]
    reasons = {(record.arm, record.outcome, plain(record.reason)): None for record in (*refused, *failed)}
    for arm, outcome, reason in reasons:
        yield f"{arm}: {outcome}. {'The time limit was reached.' if reason == BUDGET_REASON else reason}"


def _legend(along: ComparisonLine) -> Iterator[str]:
    arms = [arm for one in along.sized for arm in one.comparison.arms]
    if not arms:
        return
    clocks = join_words(sorted({clock_in_words(arm.clock) for arm in arms}))
    launches = join_words(
        [count(number, "launch", "launches") for number in sorted({known(arm.launches) for arm in arms})]
    )
    threads = join_words([count(number, "thread") for number in sorted({arm.threads for arm in arms})])
    caches = join_words(sorted({arm.cache for arm in arms}))
    disturbed = max(known(arm.disturbed) for arm in arms)
    how = (
        f"{clocks}, {threads}, {launches} in processes of their own, {caches} cache, up to {percent(disturbed)} of "
        "calls disturbed."
    )
    yield (
        f"Median: {how} p50, p90, p99: wall time of single calls, with what other processes took. Calls/s: one process "
        "that calls without pause."
    )
    if any(one.comparison.contenders for one in along.sized):
        baseline = join_words(sorted({arm.baseline for arm in arms}))
        yield (
            f"Ratio: time over that of {baseline} in the same interleaved run, below 1 = faster. "
            f"Verdict: {verdict_word(RatioVerdict.EQUAL)}; inconclusive (about how many more launches would decide)."
        )
    between = max(arm.between_sd or 0.0 for arm in arms)
    if between > 0 and any(one.comparison.contenders for one in along.sized):
        is_usual = between == Calibration().between_sd
        source = "default; `sdpa-onnx bench --calibrate` measures it on this machine" if is_usual else "calibrated"
        yield f"Assumed difference between two processes of one model: {percent(between)} ({source})."
    yield (
        "First, new length, idle: one run after loading, at another length, after a pause. Memory: peak of the first "
        "run above the loaded state. Roof: share of the rate that products and exponentials allow on this machine."
    )


def _numbers(results: Sequence[BenchResult]) -> Iterator[str]:
    """One line on whether the numbers are right."""
    unjudged = {name: why for one in results for name, why in one.numbers.unjudged.items()}
    wrong = {name for one in results for name in one.numbers.warnings}
    ran = {record.arm for one in results for record in one.records if record.outcome is Outcome.OK}
    right = sorted(ran - set(unjudged) - wrong)
    parts = [
        *([f"right for {join_words(right)}"] if right else []),
        *([f"not right for {join_words(sorted(wrong))}"] if wrong else []),
        *(f"not judged for {name}: {why.rstrip('.')}" for name, why in unjudged.items()),
    ]
    if parts:
        yield f"Numbers at these sizes, by the float64 oracle: {'; '.join(parts)}."
