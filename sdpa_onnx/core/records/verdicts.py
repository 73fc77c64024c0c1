"""The enums of outcomes and verdicts. Decides none of them."""

from enum import StrEnum

from sdpa_onnx.errors import NoAnswerError

__all__ = ["Conformity", "Outcome", "RatioVerdict", "Verdict", "outcome_of_error"]


class Outcome(StrEnum):
    """Outcome of a cell; everything but OK is in the report's first lines.

    TIMED_OUT: failed, because a runtime did not answer in time; counted and treated as FAILED.
    """

    OK = "ok"
    DISAGREES = "disagrees"
    UNSUPPORTED = "unsupported"
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    SKIPPED = "skipped"

    @property
    def is_failure(self) -> bool:
        """Whether it failed or timed out."""
        return self in (Outcome.FAILED, Outcome.TIMED_OUT)

    @property
    def counted(self) -> "Outcome":
        """The outcome under which tables count it."""
        return Outcome.FAILED if self.is_failure else self


def outcome_of_error(error: BaseException) -> Outcome:
    """Outcome of a cell that ended with an error.

    Example:
        >>> outcome_of_error(NoAnswerError("ort-cpu gave no answer in 20 s."))
        <Outcome.TIMED_OUT: 'timed-out'>
    """
    return Outcome.TIMED_OUT if isinstance(error, NoAnswerError) else Outcome.FAILED


class Verdict(StrEnum):
    """Verdict on an output.

    WRONG: no evaluation order of the declared arithmetic can produce it (a
    proof). SUSPICIOUS: inside the proven bound but statistically inexplicable,
    or above the limit for outputs of a module. ROUNDING_LEVEL: explicable, but
    larger than usual, or too ill-conditioned for statistics. OK: none of these.

    Source: METHOD A.7.
    """

    OK = "ok"
    ROUNDING_LEVEL = "rounding-level"
    SUSPICIOUS = "suspicious"
    WRONG = "wrong"

    @property
    def is_right(self) -> bool:
        """Whether the output passes: ok, or rounding-level."""
        return self in (Verdict.OK, Verdict.ROUNDING_LEVEL)

    @property
    def conformity(self) -> "Conformity":
        """The behaviour of a runtime whose worst output has this verdict."""
        match self:
            case Verdict.OK | Verdict.ROUNDING_LEVEL:
                return Conformity.RIGHT
            case Verdict.SUSPICIOUS:
                return Conformity.SUSPICIOUS
            case Verdict.WRONG:
                return Conformity.WRONG


class Conformity(StrEnum):
    """Behaviour of a runtime on one feature of an operator.

    WRONG and SUSPICIOUS: as for `Verdict`; records of earlier versions call both WRONG. REFUSED: an error, reported
    before or while it runs. CRASHED: its process died. NO_ANSWER: it did not answer in time, not even when it was
    repeated with more; records of earlier versions call that CRASHED.
    """

    RIGHT = "right"
    WRONG = "wrong"
    SUSPICIOUS = "suspicious"
    REFUSED = "refused"
    CRASHED = "crashed"
    NO_ANSWER = "no-answer"

    @property
    def disagrees(self) -> bool:
        """Whether it returned an output that does not pass: wrong, or suspicious."""
        return self in (Conformity.WRONG, Conformity.SUSPICIOUS)

    @property
    def outcome(self) -> Outcome:
        """The outcome of a cell with this behaviour."""
        match self:
            case Conformity.RIGHT:
                return Outcome.OK
            case Conformity.WRONG | Conformity.SUSPICIOUS:
                return Outcome.DISAGREES
            case Conformity.REFUSED:
                return Outcome.UNSUPPORTED
            case Conformity.CRASHED:
                return Outcome.FAILED
            case Conformity.NO_ANSWER:
                return Outcome.TIMED_OUT


class RatioVerdict(StrEnum):
    """Verdict of the paired test on the ratio of an arm's time to the baseline's.

    FASTER, SLOWER: the interval excludes 1 and the effect is above the smallest that counts. EQUAL: the interval is
    inside the margin of equivalence. INCONCLUSIVE: neither; more launches would decide. NOISY: a clone of the baseline
    differs from the baseline, so no ratio of this table is reliable.

    Source: METHOD B.4.
    """

    FASTER = "faster"
    SLOWER = "slower"
    EQUAL = "equal"
    INCONCLUSIVE = "inconclusive"
    NOISY = "noisy"
