"""Judge whether the attentions of a source were lifted correctly: its values there must match the lifted spec.

In float64 where every node has a reference; else in the source's own type on a runtime. Runs nothing itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.mask_rule import full_mask
from sdpa_onnx.core.attention.oracle import attend
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.judge.agreement import Agreement, expect
from sdpa_onnx.core.judge.attention_outputs import judge_attention_outputs
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Subject
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.errors import CaseError
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.runtimes.base import RanReport
from sdpa_onnx.workflows.check.feeds import Feeds, logit_spread
from sdpa_onnx.workflows.check.run_context import RunContext, site_sizes
from sdpa_onnx.workflows.convert.paired_runs import PairRun

__all__ = ["judge_reading", "judge_source"]

Array = NDArray[np.generic]

# onnx.reference, node by node.
_EVALUATOR = "onnx-reference"
_WIDE = "float64"
# A wrong lift shows in every row; the first and the last query are always among these.
_ROWS = 8
_MISFITS = (CaseError, ValueError, IndexError)


def judge_source(checked: RunContext, run: PairRun) -> Iterator[AgreementRecord]:
    """Judge the runtime's values of the source at each attention, in the source's own type."""
    for site in checked.model.sites:
        yield _record(checked, site, run.source, _agreement(site, run.source, checked.ran.precision))


def judge_reading(checked: RunContext, run: PairRun, own: Sequence[AgreementRecord]) -> list[AgreementRecord | None]:
    """Judge how each attention was read; None where an earlier attention returns NaN as its input.

    A graph may compute its scale in its own type. So what disagrees in float64 is judged again with the roundings
    of that type allowed, and the second verdict counts.

    Args:
        checked: The source, where it ran and how.
        run: The arrays.
        own: The records of `judge_source`, in the order of the sites.
    """
    exact = replace(checked, runtime=_EVALUATOR, ran=RanReport(providers={}, node_counts={}, precision=_WIDE))
    return [
        _reading(exact, site, run, at_runtime, checked.ran.precision)
        for site, at_runtime in zip(checked.model.sites, own, strict=True)
    ]


def _reading(
    exact: RunContext, site: AttentionSite, run: PairRun, at_runtime: AgreementRecord, precision: str
) -> AgreementRecord | None:
    values = run.wide.values
    names = {*site.inputs.values(), site.output}
    if site.name in run.wide.by_oracle or not names <= set(values):
        return _either(at_runtime)
    # Seen: onnx.reference rounds the size of a pooled axis down where onnxruntime does not.
    if values[site.output].shape != run.source[site.output].shape:
        return _either(at_runtime)
    if not all(_is_number(values[name]) for name in (site.query, site.key, site.value)):
        return None  # rows without a visible key, for which an earlier attention of the source returned NaN
    agreement = _agreement(site, values, _WIDE)
    if not agreement.verdict.is_right:
        again = _agreement(site, values, precision)
        agreement = _rounded(again) if again.verdict.is_right else agreement
    return _misread(_record(exact, site, values, agreement))


def _rounded(agreement: Agreement) -> Agreement:
    why = "It was read correctly within the roundings of the graph's own type, not in float64: a constant is rounded."
    return replace(agreement, verdict=Verdict.ROUNDING_LEVEL, diagnosis=f"{why} {agreement.diagnosis}")


def _either(record: AgreementRecord) -> AgreementRecord:
    """The judgement where only the runtime can confirm how an attention was read."""
    if record.outcome is Outcome.OK:
        return record
    why = f"Either it was misread, or {record.runtime} computes it wrong; it has no float64 reference to decide."
    return msgspec.structs.replace(record, reason=f"{why} {record.reason}", diagnosis=f"{why} {record.diagnosis}")


def _misread(record: AgreementRecord) -> AgreementRecord:
    if record.outcome is Outcome.OK:
        return record
    why = "It was misread: the source in float64 differs from the attention that was read."
    return msgspec.structs.replace(record, reason=f"{why} {record.reason}", diagnosis=f"{why} {record.diagnosis}")


def _agreement(site: AttentionSite, values: Feeds, precision: str) -> Agreement:
    try:
        inputs = site.arrays_in(values)
        output = _zero_where_hidden(site, inputs, values[site.output])
        arithmetic = find_precision(precision)
        judged = judge_attention_outputs(
            site.spec,
            inputs,
            {OutputRole.OUTPUT: output},
            precision=arithmetic,
            mask_rule=site.mask_rule,
            expectation_of=lambda one: expect(site.spec, one.inputs, precision=arithmetic, rows_per_head=_ROWS),
        )
        return judged[OutputRole.OUTPUT]
    except _MISFITS as error:
        return Agreement(
            verdict=Verdict.WRONG, diagnosis=f"The values there do not match the attention that was read: {error}."
        )


def _record(checked: RunContext, site: AttentionSite, values: Feeds, agreement: Agreement) -> AgreementRecord:
    inputs = site.arrays_in(values)
    try:
        spread = logit_spread(site, inputs)
    except _MISFITS:
        spread = None
    return checked.record(
        agreement,
        spread=spread,
        subject=Subject.READING,
        site=site.name,
        sizes=site_sizes(site, inputs),
        is_empty=not values[site.output].size,
    )


def _zero_where_hidden(site: AttentionSite, inputs: AttentionInputs, output: Array) -> Array:
    """The output with zeros for NaN where a query sees no key: a plain softmax returns NaN there."""
    if _is_number(output):
        return output
    exact = attend(site.spec, full_mask(inputs, site.mask_rule, layout=site.spec.layout)).output
    wide = output.astype(np.float64)
    if exact.shape != wide.shape:
        return output
    return np.where(np.isnan(wide) & (exact == 0.0), 0.0, wide).astype(output.dtype)


def _is_number(array: Array) -> bool:
    return bool(np.isfinite(array.astype(np.float64)).all())
