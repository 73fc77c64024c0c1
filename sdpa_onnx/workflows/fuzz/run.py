"""Run random legal cases on one runtime, number after number, and group the failures.

A run can stop after any number and continue with the next: cases depend on seed and
number only. Prints nothing; the caller isolates a runtime that may crash.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from sdpa_onnx.core.attention.random_cases import CASES_PER_GRAPH, RandomCase, draw_case
from sdpa_onnx.core.records.records import Verdict
from sdpa_onnx.errors import ModelError
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.workflows.check.case_trial import Sessions
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.fuzz.case import CaseOutcome, run_random
from sdpa_onnx.workflows.fuzz.groups import FuzzGroup, FuzzGroups
from sdpa_onnx.workflows.fuzz.model import fuzz_model
from sdpa_onnx.workflows.reduce.bundle import write_bundle
from sdpa_onnx.workflows.reduce.reduced_case import NothingFails, ReducedCase
from sdpa_onnx.workflows.reduce.search import reduce_model
from sdpa_onnx.workflows.reduce.sequence import SequenceReduction
from sdpa_onnx.workflows.verify.session_state import SessionJudge, state_behind

__all__ = ["GROUP_SECONDS", "CaseResult", "FuzzRun", "keep_bundles", "reduce_group"]

# Time for the smallest case of one group, seconds.
GROUP_SECONDS = 15.0
# Neighbouring numbers share a graph, and no other number does.
_KEPT_SESSIONS = 2
# Raised by arithmetic on arrays of unexpected shapes: a fault of this package, never of the runtime.
_OUR_FAULTS = (ArithmeticError, LookupError, TypeError, ValueError)


class CaseResult(StrEnum):
    """Result of one case, by its worst output. NOT_JUDGED: this package itself failed."""

    RIGHT = "right"
    ROUNDING_LEVEL = "rounding-level"
    SUSPICIOUS = "suspicious"
    WRONG = "wrong"
    REFUSED = "refused"
    CRASHED = "crashed"
    NO_ANSWER = "no answer in time"
    NOT_JUDGED = "not judged"


@dataclass(slots=True, kw_only=True)
class FuzzRun:
    """A run and its results so far.

    Args:
        runtime: Where the cases run.
        seed: Family of cases.
        start: Number of the first case.
        cases: How many.
        seconds: Stop after this wall time; None = when all cases are done.
        threads: Threads inside one operator.
        clock: Monotonic seconds.
        counts: Results of the cases so far.
        groups: Findings so far.
        own_faults: Cases on which this package itself failed, one sentence each.
        elapsed_seconds: Wall time of the cases.
    """

    runtime: Runtime
    seed: int = 0
    start: int = 0
    cases: int = 10_000
    seconds: float | None = None
    threads: int = 1
    clock: Callable[[], float] = time.monotonic
    counts: "Counter[CaseResult]" = field(default_factory=Counter, init=False)
    groups: FuzzGroups = field(default_factory=FuzzGroups, init=False)
    own_faults: list[str] = field(default_factory=list, init=False)
    elapsed_seconds: float = field(default=0.0, init=False)

    @property
    def done(self) -> int:
        """Number of finished cases."""
        return self.counts.total()

    @property
    def next_number(self) -> int:
        """Number of the next case."""
        return self.start + self.done

    @property
    def is_finished(self) -> bool:
        """Whether every requested case ran."""
        return self.done >= self.cases

    def go(self, on_case: Callable[[int], None] | None = None) -> None:
        """Run the remaining cases; an interruption keeps all findings so far.

        Args:
            on_case: Called with the number of each finished case.
        """
        begin = self.clock()
        try:
            with Sessions(self.runtime, keep=_KEPT_SESSIONS, threads=self.threads) as sessions:
                while not self.is_finished and not self._is_late(begin):
                    number = self.next_number
                    self._count(self._run(draw_case(self.seed, number), sessions))
                    if on_case is not None:
                        on_case(number)
        finally:
            self.elapsed_seconds += self.clock() - begin

    def _is_late(self, begin: float) -> bool:
        return self.seconds is not None and self.clock() - begin >= self.seconds

    def _run(self, case: RandomCase, sessions: Sessions) -> CaseOutcome | None:
        """The result of a case; None if this package itself failed, which must not end a long run."""
        try:
            return self._with_state(case, run_random(case, sessions))
        except _OUR_FAULTS as error:
            self.own_faults.append(
                f"Case {case.number} of seed {self.seed} ({case.case.case_id}, {case.graph.words}) made sdpa-onnx "
                f"itself fail: {type(error).__name__}: {error}. Please report it."
            )
            return None

    def _with_state(self, case: RandomCase, outcome: CaseOutcome) -> CaseOutcome:
        """The result, with the cases before in its session for each output that is right in a fresh one."""
        first = case.number - case.number % CASES_PER_GRAPH
        earlier = tuple(range(max(self.start, first), case.number))
        if not earlier or not any(finding.kind.disagrees for finding in outcome.findings):
            return outcome
        with Sessions(self.runtime, keep=1, threads=self.threads) as fresh:
            alone = run_random(case, fresh)
        if alone.verdict is None:
            return outcome
        wrong = {finding.output for finding in alone.findings}
        findings = (
            finding if finding.output in wrong or not finding.kind.disagrees else replace(finding, after=earlier)
            for finding in outcome.findings
        )
        return replace(outcome, findings=tuple(findings))

    def _count(self, outcome: CaseOutcome | None) -> None:
        if outcome is None:
            self.counts[CaseResult.NOT_JUDGED] += 1
            return
        for finding in outcome.findings:
            self.groups.add(finding)
        self.counts[_result_of(outcome)] += 1


def _result_of(outcome: CaseOutcome) -> CaseResult:
    match outcome.verdict:
        case Verdict.OK:
            return CaseResult.RIGHT
        case Verdict.ROUNDING_LEVEL:
            return CaseResult.ROUNDING_LEVEL
        case Verdict.SUSPICIOUS:
            return CaseResult.SUSPICIOUS
        case Verdict.WRONG:
            return CaseResult.WRONG
        case None:
            finding = outcome.findings[0]
            return CaseResult.NO_ANSWER if finding.is_timeout else CaseResult(finding.kind.value)


def reduce_group(
    group: FuzzGroup, runtime: Runtime, *, seed: int, threads: int = 1, seconds: float = GROUP_SECONDS
) -> None:
    """Search the smallest failing case of a group, starting at its smallest finding.

    The case, or the reason why there is none, is stored in the group.

    Args:
        group: The findings.
        runtime: Where they fail.
        seed: Of the run.
        threads: Threads inside one operator.
        seconds: Time limit.
    """
    case = draw_case(seed, group.smallest.number)
    check = CheckOptions(sizes={}, seed=seed, threads=threads, inputs=case.inputs.onnx_feeds())
    found: ReducedCase | NothingFails | None
    try:
        if group.smallest.after:
            found = _smallest_sequence(group, runtime, check, seconds=seconds)
        elif group.smallest.output not in ("", "Y", "present_key", "present_value"):
            group.note = "Scores are not made smaller: this is the smallest case that was met."
            return
        else:
            found = reduce_model(fuzz_model(case.graph), runtime, check, seconds=seconds)
    except ModelError as error:
        group.note = str(error)
        return
    except _OUR_FAULTS as error:  # the findings stay valid and are reported
        group.note = f"The search for a smaller case failed itself, with {type(error).__name__}: {error}."
        return
    if found is None or isinstance(found, NothingFails):
        after = " after the cases before it" if found is None else ""
        group.note = f"Run once more by itself{after}, it did not fail."
    else:
        group.reduced = found


def _smallest_sequence(
    group: FuzzGroup, runtime: Runtime, check: CheckOptions, *, seconds: float
) -> ReducedCase | None:
    """The fewest and smallest runs of one session after which the case is wrong; None if it no longer is."""
    start, finding = time.monotonic(), group.smallest
    cases = [draw_case(check.seed, number) for number in (*finding.after, finding.number)]
    model = fuzz_model(cases[-1].graph)
    plain = replace(check, inputs=None)
    fault = state_behind(model, runtime, plain, [case.inputs.onnx_feeds() for case in cases], target="fuzz")
    if fault is None:
        return None
    judge = SessionJudge(model=model, runtime=runtime, check=plain, target="fuzz")
    reduction = SequenceReduction(judge=judge, is_late=lambda: time.monotonic() - start >= seconds)
    return replace(reduction.reduced(fault), seconds=time.monotonic() - start)


def keep_bundles(groups: tuple[FuzzGroup, ...], folder: Path, *, seed: int, threads: int = 1) -> list[Path]:
    """Write a bundle for each group that has a reduced case, and return their paths.

    Raises:
        PlanError: If one cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for group in groups:
        if group.reduced is not None:
            path = folder / f"{group.kind.value}_seed{seed}_case{group.smallest.number}.zip"
            write_bundle(path, group.reduced, threads=threads)
            written.append(path)
    return written
