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
        past_seq_len: Keys in the cache at these sizes; None without one.
        workarounds: Names of the workarounds that it is written with.
        evidence: What fails without them, one sentence.
        verdict: Verdict of the probes; None if none was run.
        probes: Number of probes; None if none was run.
        threads: Threads inside one operator.
        median_seconds: Of one call, at these sizes; None if it was not timed.
        ratio, ratio_low, ratio_high: This arm over the fastest (below 1 = faster), with its 95 % interval;
            None if it was not timed.
        chosen: Whether it is written at these sizes.
    """

    site: str = ""
    dtype: str = ""
    arm: str = ""
    sizes: Sizes = Sizes()
    past_seq_len: int | None = None
    workarounds: tuple[str, ...] = ()
    evidence: str = ""
    verdict: Conformity | None = None
    probes: int | None = None
    threads: int = 1
    median_seconds: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    chosen: bool = False

    @property
    def _in_short(self) -> tuple[object, ...]:
        median = "" if self.median_seconds is None else f"{self.median_seconds:.3g} s"
        return (self.site, self.arm, median, "chosen" if self.chosen else "")
