"""The records of a comparison of BASE and HEAD: one record per gate and case, with its verdict and evidence.

Decides no gate: `core.compare` does.
"""

from enum import StrEnum

import msgspec

from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.records.one_line import ratio_part
from sdpa_onnx.core.records.record_base import BaseRecord, Sizes
from sdpa_onnx.core.records.subject import Subject
from sdpa_onnx.core.records.verdicts import Outcome

__all__ = ["Gate", "GateRecord", "GateVerdict"]


class Gate(StrEnum):
    """The property that must not become worse."""

    AGREEMENT = "agreement"
    GRAPH = "graph"
    MEMORY = "memory"
    TIME = "time"


class GateVerdict(StrEnum):
    """Verdict of a gate on one case.

    SAME: no relevant change. BETTER: improved. CHANGED: different, neither better nor worse.
    WORSE: worse, within the limit. REGRESSION: worse than the limit; it fails. UNDECIDED: measured, without a
    decision. NOT_COMPARABLE: the two cannot be compared. APPEARED, DISAPPEARED: only in HEAD or in BASE.
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
        """Whether the gate could not be applied or has no decision: a failure only if every gate must be decided."""
        return self in (GateVerdict.UNDECIDED, GateVerdict.NOT_COMPARABLE, GateVerdict.DISAPPEARED)


class GateRecord(BaseRecord, frozen=True, kw_only=True, tag_field="kind", tag="gate"):
    """One gate on one case.

    Its outcome is DISAGREES if the gate fails, SKIPPED if it is open, else OK.

    Args:
        gate: The gate.
        word: Its verdict.
        arm: Name of the arm, for timing.
        subject, site: What was judged, and its name; inputs: ladder step or probe; dtype: element type.
        spec, past_seq_len: As in `AgreementRecord`.
        sizes: Sizes of the case. threads: Threads inside one operator; None if unknown.
        base, head: Value of BASE and of HEAD, in a few words.
        evidence: Reason of the verdict, sentences.
        ratio, ratio_low, ratio_high: Time of HEAD over BASE with the interval that decided; None if there is none.
        confidence: Of that interval. margin: Allowed slow-down, as a share; None if none was requested.
        p_value: Of a ratio of 1 + margin, corrected for all comparisons of the table; None if there is none.
        base_seconds, head_seconds: Median of a call, if both were timed interleaved; else None.
        base_bytes, head_bytes: Peak memory above the loaded state; None if unknown.
        amount: Size of the finding, in one number: for agreement the largest error over its limit, for a graph its
            nodes that run or the bytes of its file over BASE's, whichever is more; None if unknown.
        axes: Sizes of the named axes of the model where it was judged; empty if unknown.
        compared_at: For the row that lists them: the sizes at which the outputs of both were compared.
        longest: The longest length among these; None in other rows.
        untested: Numbers with which the graphs compare lengths or positions and that no length goes beyond.
    """

    gate: Gate = Gate.AGREEMENT
    word: GateVerdict = GateVerdict.SAME
    arm: str = ""
    subject: Subject = Subject.ATTENTION
    site: str = ""
    inputs: str = ""
    dtype: str = ""
    spec: AttentionSpec | None = None
    past_seq_len: int | None = None
    sizes: Sizes = Sizes()
    threads: int | None = None
    base: str = ""
    head: str = ""
    evidence: str = ""
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    confidence: float | None = None
    margin: float | None = None
    p_value: float | None = None
    base_seconds: float | None = None
    head_seconds: float | None = None
    base_bytes: int | None = None
    head_bytes: int | None = None
    amount: float | None = None
    axes: dict[str, int] = msgspec.field(default_factory=dict)
    compared_at: tuple[str, ...] = ()
    longest: int | None = None
    untested: tuple[int, ...] = ()

    @property
    def _in_short(self) -> tuple[object, ...]:
        ratio = ratio_part(self.ratio, self.ratio_low, self.ratio_high, "BASE")
        return (self.gate, self.case or self.target, self.arm, ratio, self.evidence)

    @property
    def _result(self) -> str:
        return self.word.value

    @property
    def fails(self) -> bool:
        """Whether the gate fails here."""
        return self.outcome is Outcome.DISAGREES
