"""Rewrite an export for one runtime: with the workarounds that it needs there, or in the fastest form.

Does not verify: the result is verified like any export.
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
    """An export before its proof.

    Args:
        model: The graph.
        records: The probes and timings.
        reason: Why it must not be saved, one sentence; "" if it may.
        outcome: OK, or the outcome of the record with that reason.
    """

    model: OnnxModel
    records: tuple[FormRecord, ...] = ()
    reason: str = ""
    outcome: Outcome = Outcome.OK


def with_workarounds(model: OnnxModel, runtime: Runtime) -> WrittenExport:
    """Write the same form so that the runtime computes it correctly; return the model unchanged if it already does.

    A graph of plain operators has nothing to work around. A form that the runtime does not
    run is left to the proof, which reports it.

    Args:
        model: As exported.
        runtime: Runtime of the proof; in a separate process if it may crash ours.
    """
    form = model.facts.form
    if form is Form.DECOMPOSED:
        return WrittenExport(model=model)
    strategy = RuntimeForm(runtime=runtime, form=form)
    converted = convert_model(model, strategy, opset=model.opset, again=True)
    wrong = next((record for record in strategy.records if record.outcome is Outcome.DISAGREES), None)
    if wrong is not None:
        return WrittenExport(model=model, records=strategy.records, reason=wrong.reason, outcome=wrong.outcome)
    if not any(record.workarounds for record in strategy.records):
        return WrittenExport(model=model, records=strategy.records)
    return WrittenExport(model=converted.model, records=strategy.records)


def with_fastest_form(
    model: OnnxModel,
    runtime: Runtime,
    budget: RaceBudget,
    *,
    at: Sequence[Mapping[str, int]] = (),
    opset: int | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> WrittenExport:
    """Write every attention in the form that is right and fastest on a runtime; the opset is raised if needed.

    Args:
        model: As exported.
        runtime: Runtime of the file, in this process.
        budget: What is timed, and how long.
        at: Sizes of the model's own axes to time at; () = those of the budget.
        opset: Required opset, which is the model's; None = it may be raised.
        on_step: Called with the name of each step, for progress.
    """
    sizes = sizes_by_name(model, runtime, at) if at else {}
    strategy = FastestForm(
        runtime=runtime, budget=budget, sizes=sizes, cannot_hold=stays_below(model, opset), on_step=on_step
    )
    converted = convert_model(model, strategy, opset=opset, again=True)
    if converted.refused:
        reason = next(iter(converted.refused.values()))
        return WrittenExport(model=model, records=strategy.records, reason=reason, outcome=Outcome.DISAGREES)
    return WrittenExport(model=converted.model, records=strategy.records)


def workaround_words(records: Sequence[FormRecord]) -> list[str]:
    """One line for each set of workarounds in the written forms."""
    written = [record for record in records if record.workarounds and (record.chosen or not record.median_seconds)]
    first = {(record.runtime, record.workarounds): record for record in reversed(written)}
    return [f"worked around on {one.runtime}: {', '.join(one.workarounds)}. {one.evidence}" for one in first.values()]
