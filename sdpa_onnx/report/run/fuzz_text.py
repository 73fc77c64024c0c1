"""The report of a fuzz run as lines for a terminal or a pipe; decides nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sdpa_onnx.report.text.layout import bullet, paragraph
from sdpa_onnx.workflows.fuzz.groups import FuzzGroup
from sdpa_onnx.workflows.fuzz.records import evidence_of, repeat_command
from sdpa_onnx.workflows.fuzz.run import CaseResult

__all__ = ["FuzzReport", "fuzz_lines", "fuzz_summary", "fuzz_verdict"]

# The error message of a runtime may contain a whole graph.
_LONGEST_MESSAGE = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzReport:
    """The results of a fuzz run that the report prints.

    Args:
        runtime: Name; version: "onnxruntime 1.32.0".
        seed: Seed of the family of cases.
        start: First case number; next_number: the number at which a later run continues.
        counts: Number of cases by result.
        groups: Findings, the worst first.
        wall_seconds: Wall time of the cases; core_seconds: CPU time of all processes, including their start.
        is_finished: Whether all requested cases ran.
    """

    runtime: str
    version: str
    seed: int
    start: int
    next_number: int
    counts: Mapping[CaseResult, int]
    groups: Sequence[FuzzGroup]
    wall_seconds: float
    core_seconds: float
    is_finished: bool

    @property
    def done(self) -> int:
        """Number of cases that ran."""
        return sum(self.counts.values())


def fuzz_verdict(story: FuzzReport) -> str:
    """How many kinds of findings there are in how many cases, and the worst."""
    cases = f"{story.done:,} random {_cases(story.done)} on {story.runtime}"
    if not story.groups:
        return f"No finding in {cases}."
    kinds = "1 kind of finding" if len(story.groups) == 1 else f"{len(story.groups)} kinds of findings"
    return f"{kinds} in {cases}, the worst: {_short(story.groups[0].title).rstrip('.')}."


def fuzz_lines(story: FuzzReport, width: int) -> Iterator[str]:
    """The verdict, each group with its smallest case and the command that repeats it, then the summary."""
    yield from paragraph(_printable(fuzz_verdict(story)), width)
    for group in story.groups:
        for line in _group(group, story, width):
            yield _printable(line)
        yield ""
    for sentence in fuzz_summary(story):
        yield from paragraph(sentence, width)


def fuzz_summary(story: FuzzReport) -> list[str]:
    """The number of cases by result, the rate, and the command that continues the run."""
    rates = [f"{story.done / seconds:,.0f}" if seconds > 0.0 else "?" for seconds in _both(story)]
    rare = (CaseResult.NO_ANSWER, CaseResult.NOT_JUDGED)
    shown = [one for one in CaseResult if one not in rare or story.counts.get(one, 0)]
    counted = ", ".join(f"{story.counts.get(one, 0):,} {one}" for one in shown)
    first = f"{story.runtime} ({story.version}), seed {story.seed}: {story.done:,} {_cases(story.done)}"
    return [
        f"{first}{_range(story)}: {counted}.",
        f"{story.wall_seconds:,.0f} s: {rates[0]} cases per second, {rates[1]} per second of one core.",
        f"To continue: sdpa-onnx fuzz --runtime {story.runtime} --seed {story.seed} --start {story.next_number}",
    ]


def _cases(number: int) -> str:
    return "case" if number == 1 else "cases"


def _both(story: FuzzReport) -> tuple[float, float]:
    return story.wall_seconds, story.core_seconds


def _range(story: FuzzReport) -> str:
    if not story.done:
        return ""
    stopped = "" if story.is_finished else ", stopped early"
    return f" (numbers {story.start:,} to {story.next_number - 1:,}{stopped})"


def _group(group: FuzzGroup, story: FuzzReport, width: int) -> Iterator[str]:
    finding = group.smallest
    yield from bullet(_short(f"{group.count:,} {_cases(group.count)}: {group.title}"), width)
    what = f"{finding.case_id}, {finding.words}, {finding.source}"
    sentences = [f"Example: case {finding.number} ({what}): {evidence_of(finding)}"]
    if group.count > 1:
        shared = f" All have in common: {', '.join(sorted(group.common))}." if group.common else ""
        sentences.append(f"The first is case {group.first.number}.{shared}")
    if group.reduced is not None:
        sentences.append(_smallest(group))
    sentences += [group.note] if group.note else []
    for sentence in sentences:
        yield from paragraph(_short(sentence), width, indent="  ")
    again = repeat_command(story.runtime, story.seed, finding.number, after=finding.after)
    yield f"  {again}"  # never broken across lines: users copy it


def _smallest(group: FuzzGroup) -> str:
    reduced = group.reduced
    if reduced is None:
        return ""
    nodes = ", ".join(f"{count} {name}" for name, count in reduced.model.node_counts().items())
    what = reduced.case or nodes
    end = "" if reduced.is_finished else " The time limit was reached: a smaller case may exist."
    runs = len(reduced.before)
    after = f", after {runs} other {'run' if runs == 1 else 'runs'} of its session" if runs else ""
    return f"Smallest: {what}, opset {reduced.model.opset}{after}: {reduced.message}{end}"


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= _LONGEST_MESSAGE else f"{plain[:_LONGEST_MESSAGE]} ..."


def _printable(text: str) -> str:
    """Replace control characters: the text of a runtime must not control the terminal."""
    return "".join(one if one.isprintable() else "?" for one in text)
