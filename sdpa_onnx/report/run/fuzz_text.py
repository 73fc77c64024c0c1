"""What a fuzz run found, in plain lines for a terminal or a pipe; decides nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sdpa_onnx.report.text.layout import bullet, paragraph
from sdpa_onnx.workflows.fuzz.groups import FuzzGroup
from sdpa_onnx.workflows.fuzz.records import evidence_of, repeat_command
from sdpa_onnx.workflows.fuzz.run import CaseResult

__all__ = ["FuzzStory", "fuzz_lines", "fuzz_summary"]

# A runtime's error may hold a whole graph.
_LONGEST_MESSAGE = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzStory:
    """What is told of a run.

    Args:
        runtime: Name; version: "onnxruntime 1.32.0".
        seed: Family of cases.
        start: First number; next_number: where to go on.
        counts: What came of the cases.
        groups: What was found, worst first.
        wall_seconds: Of the cases; core_seconds: of all processes together, starts included.
        is_finished: Whether all cases ran that were asked for.
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
        """Cases that ran."""
        return sum(self.counts.values())


def fuzz_lines(story: FuzzStory, width: int) -> Iterator[str]:
    """The report: each group with its smallest case and the command that repeats it, then the summary."""
    for group in story.groups:
        for line in _group(group, story, width):
            yield _printable(line)
        yield ""
    for sentence in fuzz_summary(story):
        yield from paragraph(sentence, width)


def fuzz_summary(story: FuzzStory) -> list[str]:
    """What ran, what came of it, how fast, and how to go on."""
    rates = [f"{story.done / seconds:,.0f}" if seconds > 0.0 else "?" for seconds in _both(story)]
    told = [came for came in CaseResult if came is not CaseResult.NOT_JUDGED or story.counts.get(came, 0)]
    counted = ", ".join(f"{story.counts.get(came, 0):,} {came}" for came in told)
    first = f"{story.runtime} ({story.version}), seed {story.seed}: {story.done:,} {_cases(story.done)}"
    return [
        f"{first}{_range(story)}: {counted}.",
        f"{story.wall_seconds:,.0f} s: {rates[0]} cases per second, {rates[1]} per second of one core.",
        f"To go on: sdpa-onnx fuzz --runtime {story.runtime} --seed {story.seed} --start {story.next_number}",
    ]


def _cases(number: int) -> str:
    return "case" if number == 1 else "cases"


def _both(story: FuzzStory) -> tuple[float, float]:
    return story.wall_seconds, story.core_seconds


def _range(story: FuzzStory) -> str:
    if not story.done:
        return ""
    stopped = "" if story.is_finished else ", stopped early"
    return f" (numbers {story.start:,} to {story.next_number - 1:,}{stopped})"


def _group(group: FuzzGroup, story: FuzzStory, width: int) -> Iterator[str]:
    finding = group.smallest
    yield from bullet(_short(f"{group.count:,} {_cases(group.count)}: {group.title}"), width)
    told = [
        f"E.g. case {finding.number} ({finding.case_id}, {finding.words}, {finding.source}): {evidence_of(finding)}"
    ]
    if group.count > 1:
        shared = f" In all of them: {', '.join(sorted(group.common))}." if group.common else ""
        told.append(f"The first is case {group.first.number}.{shared}")
    if group.reduced is not None:
        told.append(_smallest(group))
    told += [group.note] if group.note else []
    for sentence in told:
        yield from paragraph(_short(sentence), width, indent="  ")
    yield f"  {repeat_command(story.runtime, story.seed, finding.number)}"  # never broken: it is there to be copied


def _smallest(group: FuzzGroup) -> str:
    reduced = group.reduced
    if reduced is None:
        return ""
    nodes = ", ".join(f"{count} {name}" for name, count in reduced.model.node_counts().items())
    what = reduced.case or nodes
    end = "" if reduced.is_finished else " The time was up: a smaller case may exist."
    return f"Smallest: {what}, opset {reduced.model.opset}: {reduced.message}{end}"


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= _LONGEST_MESSAGE else f"{plain[:_LONGEST_MESSAGE]} ..."


def _printable(text: str) -> str:
    """Nothing that a runtime said may steer the terminal."""
    return "".join(one if one.isprintable() else "?" for one in text)
