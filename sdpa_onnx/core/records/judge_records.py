"""Records of conformance (features of an operator), of planted faults, and of the first bad node.

Judges nothing.
"""

from sdpa_onnx.core.records.record_base import BaseRecord, Sizes
from sdpa_onnx.core.records.subject import Subject
from sdpa_onnx.core.records.verdicts import Conformity, Verdict

__all__ = ["ConformanceRecord", "LocatedRecord", "PlantedRecord"]


class ConformanceRecord(BaseRecord, frozen=True, kw_only=True, tag_field="kind", tag="conformance"):
    """Result of one runtime on one feature of an attention operator.

    `outcome` is ok, disagrees, unsupported or failed for right, wrong, refused and crashed.

    Args:
        feature: Stable slug, such as `causal-past-one-query`.
        group: Heading of the feature, such as `causal`.
        title: The same feature in words.
        operator: `Attention`, `com.microsoft.MultiHeadAttention`, ..., or a form of ours.
        dtype: Element type.
        verdict: See `Conformity`; None if the feature was skipped (see `reason`).
        path: "native" or "expanded"; "" if nothing ran.
        path_nodes: Nodes that replace the operator, 1 if native, None if unknown.
        observed: Behaviour on a disputed point: zero, nan, mean-of-values, unmasked,
            upper-left, past, bottom-right, ...; "" if nothing is disputed.
        reading: The dated interpretation of the operator's text that this follows; "" if none is known.
        diagnosis: The evidence in one sentence, with the named fault if one matches.
        max_abs_error: Largest `|actual - oracle|` over all outputs and cases of the feature;
            None if no verdict was reached, like the next three.
        max_bound_ratio: Largest error over its proven bound.
        cases: Number of cases run; wrong_cases: number of wrong cases.
        repeat: Command that runs this row again.
    """

    feature: str = ""
    group: str = ""
    title: str = ""
    operator: str = ""
    dtype: str = ""
    verdict: Conformity | None = None
    path: str = ""
    path_nodes: int | None = None
    observed: str = ""
    reading: str = ""
    diagnosis: str = ""
    max_abs_error: float | None = None
    max_bound_ratio: float | None = None
    cases: int | None = None
    wrong_cases: int | None = None
    repeat: str = ""

    @property
    def _in_short(self) -> tuple[object, ...]:
        opset = f" {self.opset}" if self.opset else ""
        return (self.feature, f"{self.operator}{opset}", self.dtype, self.observed)


class PlantedRecord(BaseRecord, frozen=True, kw_only=True, tag_field="kind", tag="planted"):
    """One kind of fault, planted in the outputs of a check to test whether the check detects it.

    `outcome` is ok if it does, failed if it does not, skipped if the fault changes no
    output that the check reads.

    Args:
        site: Which attention of the model.
        dtype: Element type.
        fault: Stable slug, such as `causal-upper-left`; "" where no fault could be planted, with the reason.
        says: What a runtime with the fault does, one clause.
        caught_by: The first inputs that detect it, such as "probe poison"; "" if none does.
    """

    site: str = ""
    dtype: str = ""
    fault: str = ""
    says: str = ""
    caught_by: str = ""

    @property
    def _in_short(self) -> tuple[object, ...]:
        return (self.site, self.fault, f"caught by {self.caught_by}" if self.caught_by else "")


class LocatedRecord(BaseRecord, frozen=True, kw_only=True, tag_field="kind", tag="located"):
    """The first node that introduces an error, where a model of several nodes disagrees.

    `outcome` is disagrees if one was found, ok if none was.

    Args:
        subject, site: The judgement that disagrees: its subject, and its name.
        sizes: Sizes at which it disagrees.
        inputs: The step at which it disagrees.
        node: Its name; the first of a group; "" if none was found.
        op_type: Its operator.
        value: The output with the error.
        verdict: WRONG if the error is proven, SUSPICIOUS if it exceeds the rule for single nodes.
        max_abs_error: Largest error beyond its limit; allowed: that limit; None if no node was found.
        group: Nodes that are wrong only together, in graph order.
        judged, not_judged: Number of nodes that were judged by themselves, and that could not be;
            None if the search failed.
        diagnosis: The finding in words.
    """

    subject: Subject = Subject.ATTENTION
    site: str = ""
    sizes: Sizes = Sizes()
    inputs: str = ""
    node: str = ""
    op_type: str = ""
    value: str = ""
    verdict: Verdict | None = None
    max_abs_error: float | None = None
    allowed: float | None = None
    group: tuple[str, ...] = ()
    judged: int | None = None
    not_judged: int | None = None
    diagnosis: str = ""

    @property
    def _in_short(self) -> tuple[object, ...]:
        return (self.target, self.node, self.op_type, self.diagnosis)
