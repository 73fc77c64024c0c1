"""The record of the choice of a form: one form of one attention on one runtime, probed and timed.

Probes and times nothing.
"""

from sdpa_onnx.core.records.record_base import BaseRecord, Sizes
from sdpa_onnx.core.records.verdicts import Conformity

__all__ = ["FormRecord"]


class FormRecord(BaseRecord, frozen=True, kw_only=True, tag_field="kind", tag="form"):
    """One form of an attention, tried on a runtime.

    `outcome` is ok if its probes are right, and disagrees, unsupported or failed if they are wrong,
    refused or crashed with every workaround; `reason` is then the cause, else why it was not chosen.

    Args:
        site: Which attention of the model.
        dtype: Element type.
        arm: The form and what varies within it, such as `blocked/decomposed`.
        sizes: Sizes that it was timed at; none if its probes fail.
        past_seq_len: Keys in the cache at these sizes; -1 without one.
        workarounds: Names of the workarounds that it is written with.
        evidence: What fails without them, one sentence.
        verdict: Verdict of the probes; None if none was run.
        probes: Number of probes.
        threads: Threads inside one operator.
        median_seconds: Of one call, at these sizes; 0 if it was not timed.
        ratio, ratio_low, ratio_high: This arm over the fastest (below 1 = faster), with its 95 % interval.
        chosen: Whether it is written at these sizes.
    """

    site: str = ""
    dtype: str = ""
    arm: str = ""
    sizes: Sizes = Sizes()
    past_seq_len: int = -1
    workarounds: tuple[str, ...] = ()
    evidence: str = ""
    verdict: Conformity | None = None
    probes: int = 0
    threads: int = 1
    median_seconds: float = 0.0
    ratio: float = 0.0
    ratio_low: float = 0.0
    ratio_high: float = 0.0
    chosen: bool = False
