"""The closed sets of words that a judgement ends in."""

from enum import StrEnum

from sdpa_onnx.errors import NoAnswerError

__all__ = ["Conformity", "Outcome", "RatioVerdict", "Verdict", "outcome_of_error"]


class Outcome(StrEnum):
    """What became of a cell; everything but OK is in the report's first lines.

    TIMED_OUT: failed, because a runtime gave no answer in time; counted and treated as FAILED.
    """

    OK = "ok"
    DISAGREES = "disagrees"
    UNSUPPORTED = "unsupported"
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    SKIPPED = "skipped"

    @property
    def is_failure(self) -> bool:
        """Whether it failed, in time or not."""
        return self in (Outcome.FAILED, Outcome.TIMED_OUT)

    @property
    def counted(self) -> "Outcome":
        """The outcome that tables count it as."""
        return Outcome.FAILED if self.is_failure else self


def outcome_of_error(error: BaseException) -> Outcome:
    """What becomes of a cell that ended with an error.

    Example:
        >>> outcome_of_error(NoAnswerError("ort-cpu gave no answer in 20 s."))
        <Outcome.TIMED_OUT: 'timed-out'>
    """
    return Outcome.TIMED_OUT if isinstance(error, NoAnswerError) else Outcome.FAILED


class Verdict(StrEnum):
    """What a judge says of an output.

    WRONG: no evaluation order of the declared arithmetic can produce it (a
    proof). SUSPICIOUS: inside the proof's bound but statistically inexplicable,
    or beyond the rule for the end of a module. ROUNDING_LEVEL: explicable, but
    larger than usual, or too ill-conditioned for statistics. OK: neither.

    Source: METHOD A.7.
    """

    OK = "ok"
    ROUNDING_LEVEL = "rounding-level"
    SUSPICIOUS = "suspicious"
    WRONG = "wrong"

    @property
    def is_right(self) -> bool:
        """Whether nothing speaks against the output: ok, or rounding-level."""
        return self in (Verdict.OK, Verdict.ROUNDING_LEVEL)


class Conformity(StrEnum):
    """What a runtime does with one feature of an operator.

    REFUSED: an error, told before or while it runs. CRASHED: its process died or did not answer in time.
    """

    RIGHT = "right"
    WRONG = "wrong"
    REFUSED = "refused"
    CRASHED = "crashed"


class RatioVerdict(StrEnum):
    """What the paired test says of one arm's time over the baseline's.

    FASTER, SLOWER: the interval excludes 1 and the effect is above the smallest that counts. EQUAL: the interval lies
    inside the margin of equivalence. INCONCLUSIVE: neither; more launches would tell. NOISY: a clone of the baseline
    came out different from the baseline, so nothing of this table can be trusted.

    Source: METHOD B.4.
    """

    FASTER = "faster"
    SLOWER = "slower"
    EQUAL = "equal"
    INCONCLUSIVE = "inconclusive"
    NOISY = "noisy"
