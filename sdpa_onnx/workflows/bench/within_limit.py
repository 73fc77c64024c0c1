"""Judge and time the arms of a task within its time limit; what it does not reach is skipped."""

from collections.abc import Callable
from dataclasses import dataclass

from sdpa_onnx.core.records.records import Record
from sdpa_onnx.measure.time_limit import interrupted_at
from sdpa_onnx.workflows.bench.bench_files import (
    BenchResult,
    BenchTask,
    PreparedBench,
    prepare,
    skipped_result,
    time_all,
)

__all__ = ["TimedBench", "time_within_limit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedBench:
    """What was timed.

    Args:
        prepared: The arms; None if the time was over before they were known.
        results: One for each comparison.
    """

    prepared: PreparedBench | None
    results: tuple[BenchResult, ...]

    @property
    def records(self) -> list[Record]:
        """The timing and the judgement of every arm."""
        found: list[Record] = [] if self.prepared is None else list(self.prepared.contest.refused)
        for one in self.results:
            found += [*one.records, *one.numbers.records]
        return found


def time_within_limit(task: BenchTask, *, on_step: Callable[[str], None] = lambda _: None) -> TimedBench:
    """Judge and time the arms of a task until its deadline.

    Args:
        task: The request.
        on_step: Called with a description of each step.

    Raises:
        ModelError, PlanError, RuntimeNotFoundError, RuntimeUnavailableError: As `prepare`.
    """
    prepared, results = None, list[BenchResult]()
    with interrupted_at(task.plan.deadline):
        try:
            prepared = prepare(task, on_step=on_step)
            for one in time_all(prepared, on_step=on_step):
                results.append(one)
        except KeyboardInterrupt:
            if not task.plan.deadline.is_past:  # by the user
                raise
    if prepared is not None:
        results += [skipped_result(prepared, check) for check in prepared.checks[len(results) :]]
    return TimedBench(prepared=prepared, results=tuple(results))
