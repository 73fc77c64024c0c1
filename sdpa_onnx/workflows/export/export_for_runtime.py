"""An export written for the runtime that it is proved on: with the workarounds that it needs, or in its fastest form.

Proves nothing itself: what comes out is proved like any export.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.records.form_records import FormRecord
from sdpa_onnx.core.records.verdicts import Outcome
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.workflows.choose_form.attention_sizes import sizes_by_name
from sdpa_onnx.workflows.choose_form.choose import RaceBudget
from sdpa_onnx.workflows.choose_form.runtime_strategies import FastestForm, RuntimeForm
from sdpa_onnx.workflows.convert.convert_model import convert_model
from sdpa_onnx.workflows.convert.upgrade_opset import stays_below

__all__ = ["WrittenExport", "with_fastest_form", "with_workarounds", "workaround_words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenExport:
    """An export as it is to be proved and saved.

    Args:
        model: The graph.
        records: What was probed and timed.
        reason: Why it must not be saved, one sentence; "" if it may.
        outcome: OK, or what the reason is.
    """

    model: OnnxModel
    records: tuple[FormRecord, ...] = ()
    reason: str = ""
    outcome: Outcome = Outcome.OK


def with_workarounds(model: OnnxModel, runtime: Runtime) -> WrittenExport:
    """The same form, written so that the runtime gets it right; the model itself where it does already.

    A graph of plain operators has nothing to work around. What the runtime does not
    run at all is left to the proof, which says so.

    Args:
        model: As exported.
        runtime: Where it is proved; in a process of its own if it may take ours with it.
    """
    form = model.facts.form
    if form is Form.DECOMPOSED:
        return WrittenExport(model=model)
    writing = RuntimeForm(runtime=runtime, form=form)
    converted = convert_model(model, writing, opset=model.opset, again=True)
    wrong = next((record for record in writing.records if record.outcome is Outcome.DISAGREES), None)
    if wrong is not None:
        return WrittenExport(model=model, records=writing.records, reason=wrong.reason, outcome=wrong.outcome)
    if not any(record.workarounds for record in writing.records):
        return WrittenExport(model=model, records=writing.records)
    return WrittenExport(model=converted.model, records=writing.records)


def with_fastest_form(
    model: OnnxModel,
    runtime: Runtime,
    budget: RaceBudget,
    *,
    at: Sequence[Mapping[str, int]] = (),
    opset: int | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> WrittenExport:
    """Every attention in the form that is right and fastest on a runtime; the opset is raised if that form must.

    Args:
        model: As exported.
        runtime: Where the file will run, in this process.
        budget: What is timed.
        at: Sizes of the model's own axes to time at; () = those of the budget.
        opset: That the file must have, which is the model's; None = it may be raised.
        on_step: Told what is being done.
    """
    sizes = sizes_by_name(model, runtime, at) if at else {}
    writing = FastestForm(
        runtime=runtime, budget=budget, sizes=sizes, cannot_hold=stays_below(model, opset), on_step=on_step
    )
    converted = convert_model(model, writing, opset=opset, again=True)
    if converted.refused:
        reason = next(iter(converted.refused.values()))
        return WrittenExport(model=model, records=writing.records, reason=reason, outcome=Outcome.DISAGREES)
    return WrittenExport(model=converted.model, records=writing.records)


def workaround_words(records: Sequence[FormRecord]) -> list[str]:
    """What was worked around in what is written, one line for each set of workarounds."""
    written = [record for record in records if record.workarounds and (record.chosen or not record.median_seconds)]
    first = {(record.runtime, record.workarounds): record for record in reversed(written)}
    return [f"worked around on {one.runtime}: {', '.join(one.workarounds)}. {one.evidence}" for one in first.values()]
