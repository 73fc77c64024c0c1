"""Run candidate cases within a time limit and check whether each fails in the same way.

A candidate that fails in another way would lead to a different bug, so kind, output and error text
must stay the same; numbers and names in the text may change. Does not choose the candidates.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sdpa_onnx.core.attention.spec import AttentionCase
from sdpa_onnx.core.records.records import Conformity
from sdpa_onnx.errors import CaseError, ExportError
from sdpa_onnx.workflows.check.case_trial import CaseTrial, Sessions, TrialResult, run_case

__all__ = ["KeptFailure", "OutOfTimeError", "ReductionTrials", "failure_of", "message_shape"]


class OutOfTimeError(Exception):
    """The time limit is reached. The caller keeps the best case so far; the error never leaves the workflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFailure:
    """The failure that must stay the same while a case shrinks.

    Args:
        kind: WRONG, SUSPICIOUS, REFUSED or CRASHED.
        output: The wrong or suspicious output, or "".
        sign: For an output "not finite", "shape" or ""; for a refusal the error text without numbers and names.
    """

    kind: Conformity
    output: str = ""
    sign: str = ""

    def is_same(self, other: "KeptFailure | None") -> bool:
        """Whether another failure is the same; WRONG may replace SUSPICIOUS, never the reverse."""
        if other is None or (self.output, self.sign) != (other.output, other.sign):
            return False
        return self.kind is other.kind or (self.kind, other.kind) == (Conformity.SUSPICIOUS, Conformity.WRONG)


def failure_of(result: TrialResult) -> KeptFailure | None:
    """The failure of a trial, or None if it is right."""
    match result.kind:
        case Conformity.RIGHT:
            return None
        case Conformity.REFUSED:
            return KeptFailure(kind=result.kind, sign=message_shape(result.message))
        case Conformity.CRASHED | Conformity.NO_ANSWER:
            return KeptFailure(kind=result.kind)
        case Conformity.WRONG | Conformity.SUSPICIOUS:
            return KeptFailure(kind=result.kind, output=result.output, sign=_output_sign(result))


def _output_sign(result: TrialResult) -> str:
    agreement = result.agreement
    if agreement is None or agreement.total == 0:
        return "shape"
    return "not finite" if agreement.not_finite else ""


def message_shape(text: str) -> str:
    """An error text without its numbers, sizes and names.

    Example:
        >>> message_shape("failed at node 'attention': mask {2,1,1,6} does not fit 12 queries.")
        "failed at node '_': mask {#} does not fit # queries."
    """
    named = re.sub(r"'[^']*'", "'_'", text)
    numbered = re.sub(r"-?\d+(?:\.\d+)?", "#", named)
    return re.sub(r"#(?:[,x ]+#)*", "#", numbered)


@dataclass(slots=True, kw_only=True)
class ReductionTrials:
    """Runs candidates on one runtime until the deadline.

    Args:
        sessions: Open sessions of the runtime.
        failure: The failure that a candidate must reproduce.
        clock: Returns monotonic seconds.
        deadline: Time of that clock after which no trial starts.
        count: Number of candidates that were run.
    """

    sessions: Sessions
    failure: KeptFailure
    clock: Callable[[], float]
    deadline: float = math.inf
    count: int = 0
    _rejected: set[tuple[object, ...]] = field(default_factory=set, init=False)

    def check_time(self) -> None:
        """Raise OutOfTimeError once the deadline is reached."""
        if self.clock() >= self.deadline:
            raise OutOfTimeError

    def reproduce(self, trial: CaseTrial) -> TrialResult | None:
        """Run a trial; return its result if it fails in the same way, else None.

        Raises:
            OutOfTimeError: If the deadline is reached.
        """
        key = _key(trial)
        if key in self._rejected:
            return None
        self.check_time()
        self.count += 1
        try:
            result = run_case(trial, self.sessions)
        except (CaseError, ExportError):  # the candidate is not a valid case
            self._rejected.add(key)
            return None
        failure = failure_of(result)
        if failure is not None and self.failure.is_same(failure):
            self.failure = failure  # once proved wrong, a case that is only suspicious no longer replaces it
            return result
        self._rejected.add(key)
        return None

    def first_failing(self, candidates: Iterable[CaseTrial]) -> tuple[CaseTrial, TrialResult] | None:
        """The first candidate that fails in the same way, or None.

        Raises:
            OutOfTimeError: If the deadline is reached.
        """
        for trial in candidates:
            result = self.reproduce(trial)
            if result is not None:
                return trial, result
        return None


def _key(trial: CaseTrial) -> tuple[object, ...]:
    case: AttentionCase = trial.case
    arrays = trial.draw().named().items()
    return (
        case,
        trial.used_opset,
        trial.form,
        id(trial.graph),
        *((name, array.shape, array.tobytes()) for name, array in arrays),
    )
