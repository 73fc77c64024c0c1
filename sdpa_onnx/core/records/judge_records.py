"""What the judge's other questions write: features of an operator, planted faults, the first bad node."""

from sdpa_onnx.core.records.record_base import BaseRecord, Sizes
from sdpa_onnx.core.records.subject import Subject
from sdpa_onnx.core.records.verdicts import Conformity, Verdict

__all__ = ["ConformanceRecord", "LocatedRecord", "PlantedRecord"]


class ConformanceRecord(BaseRecord, frozen=True, kw_only=True, tag_field="kind", tag="conformance"):
    """What one runtime does with one feature of an attention operator.

    `outcome` is ok, disagrees, unsupported or failed for right, wrong, refused and crashed.

    Args:
        feature: Stable slug, such as `causal-past-one-query`.
        group: Heading that it stands under, such as `causal`.
        title: The same feature in words.
        operator: `Attention`, `com.microsoft.MultiHeadAttention`, ..., or a form of ours.
        dtype: Element type.
        verdict: See `Conformity`; None if the feature was skipped (see `reason`).
        path: "native" or "expanded"; "" where nothing ran.
        path_nodes: Nodes that the operator became, 1 if native, 0 where unknown.
        observed: What was seen on a disputed point: zero, nan, mean-of-values, unmasked,
            upper-left, past, bottom-right, ...; "" where nothing is disputed.
        reading: The dated reading of the operator's text that this follows; "" if none is known.
        diagnosis: The evidence in one sentence, with the named fault where one fits.
        max_abs_error: Largest |actual - oracle| over all outputs and cases of the feature.
        max_bound_ratio: Largest error over its proven bound.
        cases: Cases run; wrong_cases: cases that are wrong.
        repeat: Command that runs this row again.
    """

    feature: str = ""
    group: str = ""
    title: str = ""
    operator: str = ""
    dtype: str = ""
    verdict: Conformity | None = None
    path: str = ""
    path_nodes: int = 0
    observed: str = ""
    reading: str = ""
    diagnosis: str = ""
    max_abs_error: float = 0.0
    max_bound_ratio: float = 0.0
    cases: int = 0
    wrong_cases: int = 0
    repeat: str = ""


class PlantedRecord(BaseRecord, frozen=True, kw_only=True, tag_field="kind", tag="planted"):
    """One kind of fault, planted in the outputs of a check to see whether the check would notice.

    `outcome` is ok if it would, failed if it would not, skipped where the fault changes no
    output that the check looks at.

    Args:
        site: Which attention of the model.
        dtype: Element type.
        fault: Stable slug, such as `causal-upper-left`.
        says: What a runtime with the fault does, one clause.
        caught_by: The first inputs that showed it, such as "probe poison"; "" if none did.
    """

    site: str = ""
    dtype: str = ""
    fault: str = ""
    says: str = ""
    caught_by: str = ""


class LocatedRecord(BaseRecord, frozen=True, kw_only=True, tag_field="kind", tag="located"):
    """The first node that introduces an error, where a model of several nodes disagrees.

    `outcome` is disagrees if one was found, ok if none was.

    Args:
        subject, site: The judgement that disagreed: what it is about, and its name.
        sizes: Sizes that it disagreed at.
        inputs: The step that it disagreed on.
        node: Its name; the first of a group; "" if none was found.
        op_type: Its operator.
        value: The output that is off.
        verdict: WRONG if that is proven, SUSPICIOUS beyond the rule for single nodes.
        max_abs_error: Largest error beyond its limit; allowed: that limit.
        group: Nodes that are wrong only together, in graph order.
        judged, not_judged: Nodes that were judged by themselves, and that could not be.
        diagnosis: All of it in words.
    """

    subject: Subject = Subject.ATTENTION
    site: str = ""
    sizes: Sizes = Sizes()
    inputs: str = ""
    node: str = ""
    op_type: str = ""
    value: str = ""
    verdict: Verdict | None = None
    max_abs_error: float = 0.0
    allowed: float = 0.0
    group: tuple[str, ...] = ()
    judged: int = 0
    not_judged: int = 0
    diagnosis: str = ""
