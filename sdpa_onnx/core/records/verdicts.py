"""The closed sets of words that a judgement ends in."""

from enum import StrEnum

__all__ = ["Conformity", "Outcome", "RatioVerdict", "Verdict"]


class Outcome(StrEnum):
    """What became of a cell; everything but OK is told in the report's first lines."""

    OK = "ok"
    DISAGREES = "disagrees"
    UNSUPPORTED = "unsupported"
    FAILED = "failed"
    SKIPPED = "skipped"


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
