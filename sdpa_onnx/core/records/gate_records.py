"""What a comparison of BASE and HEAD writes: one record a gate and case, with its word and its evidence."""

from enum import StrEnum

from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.records.record_base import BaseRecord, Sizes
from sdpa_onnx.core.records.subject import Subject
from sdpa_onnx.core.records.verdicts import Outcome

__all__ = ["Gate", "GateRecord", "GateVerdict"]


class Gate(StrEnum):
    """What must not become worse."""

    AGREEMENT = "agreement"
    GRAPH = "graph"
    MEMORY = "memory"
    TIME = "time"


class GateVerdict(StrEnum):
    """What a gate says of one case.

    SAME: no change that the gate minds. BETTER: improved. CHANGED: other than before, neither better nor worse.
    WORSE: worse, inside what is allowed. REGRESSION: worse than that; it fails. UNDECIDED: measured, and the question
    is open. NOT_COMPARABLE: the two cannot be set against each other. APPEARED, DISAPPEARED: only in HEAD or in BASE.
    """

    SAME = "same"
    BETTER = "better"
    CHANGED = "changed"
    WORSE = "worse"
    REGRESSION = "regression"
    UNDECIDED = "undecided"
    NOT_COMPARABLE = "not-comparable"
    APPEARED = "appeared"
    DISAPPEARED = "disappeared"

    @property
    def is_open(self) -> bool:
        """Whether the gate could not be asked or gave no answer: told, and a failure only where all must be decided."""
        return self in (GateVerdict.UNDECIDED, GateVerdict.NOT_COMPARABLE, GateVerdict.DISAPPEARED)


class GateRecord(BaseRecord, frozen=True, kw_only=True, tag_field="kind", tag="gate"):
    """One gate on one case.

    Its outcome is DISAGREES where the gate fails, SKIPPED where it is open, else OK.

    Args:
        gate: Which gate.
        word: What it says.
        arm: Name of the arm, for timing.
        subject, site: What was judged, and its name; inputs: ladder step or probe; dtype: element type.
        spec, past_seq_len: As in `AgreementRecord`.
        sizes: Sizes of the case. threads: Threads inside one operator; 0 where none is told.
        base, head: What either had, in a few words.
        evidence: Why the word holds, sentences.
        ratio, ratio_low, ratio_high: Time of HEAD over BASE with the interval that decided; -1 where there is none.
        confidence: Of that interval. margin: Slow-down that is allowed, as a share; -1 where none was asked.
        p_value: Of a ratio of 1 + margin, all comparisons of the table counted; -1 where there is none.
        base_seconds, head_seconds: Median of a call, where both were timed interleaved; -1 where they were not.
        base_bytes, head_bytes: Peak memory above the loaded state; -1 where it is not known.
        amount: How much is wrong, in one number: of agreement the largest error over what is allowed, of a graph its
            nodes that run or the bytes of its file over BASE's, whichever is more; -1 where it is not known.
    """

    gate: Gate = Gate.AGREEMENT
    word: GateVerdict = GateVerdict.SAME
    arm: str = ""
    subject: Subject = Subject.ATTENTION
    site: str = ""
    inputs: str = ""
    dtype: str = ""
    spec: AttentionSpec | None = None
    past_seq_len: int = -1
    sizes: Sizes = Sizes()
    threads: int = 0
    base: str = ""
    head: str = ""
    evidence: str = ""
    ratio: float = -1.0
    ratio_low: float = -1.0
    ratio_high: float = -1.0
    confidence: float = -1.0
    margin: float = -1.0
    p_value: float = -1.0
    base_seconds: float = -1.0
    head_seconds: float = -1.0
    base_bytes: int = -1
    head_bytes: int = -1
    amount: float = -1.0

    @property
    def fails(self) -> bool:
        """Whether the gate fails here."""
        return self.outcome is Outcome.DISAGREES
