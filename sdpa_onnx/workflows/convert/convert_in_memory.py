"""Convert a model in memory: return the verified result, or raise an error that names the reason.

Writes no file.
"""

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.errors import ModelError, PlanError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes
from sdpa_onnx.workflows.choose_form.form_strategy import FixedForm, FormStrategy
from sdpa_onnx.workflows.choose_form.runtime_strategies import FastestForm, RuntimeForm
from sdpa_onnx.workflows.convert.convert_file import ProofOptions, prove_converted
from sdpa_onnx.workflows.convert.convert_model import convert_model

__all__ = ["convert_in_memory"]

_AUTO = "auto"


def convert_in_memory(
    model: OnnxModel, form: str, *, opset: int | None, runtime: str | None, seed: int, rows_may_be_empty: bool = True
) -> OnnxModel:
    """Convert and prove; see `sdpa_onnx.convert`."""
    if form not in {*Form, _AUTO}:
        raise PlanError(f"There is no form '{form}'.", hint=f"Known: {', '.join(Form)}, {_AUTO}.")
    if runtime is not None:
        pick_runtimes([runtime])
    converted = convert_model(
        model,
        _strategy(form, runtime),
        opset=opset,
        again=form == _AUTO,
        rows_may_be_empty=rows_may_be_empty,
    )
    if converted.already and not converted.converted:
        return model
    if not converted.converted:
        node, reason = next(iter(converted.refused.items()), ("", ""))
        why = f"'{node}': {reason.rstrip('.')}" if node else "the model contains none"
        raise ModelError(f"No attention of the model can be converted to '{form}': {why}.")
    if runtime is not None:
        proof = prove_converted(
            converted, target=str(model.path or "model"), proof=ProofOptions(runtime=runtime, seed=seed)
        )
        bad = next((record for record in proof.records if record.outcome is not Outcome.OK), None)
        if bad is not None or not proof.is_right:
            why = bad.diagnosis or bad.reason if bad is not None else "no output could be judged."
            raise ModelError(f"The result does not compute what the model computes on {runtime}: {why}")
    return converted.model


def _strategy(form: str, runtime: str | None) -> FormStrategy:
    """The form unchanged, or with the workarounds of the runtime, or the fastest form there."""
    if runtime is None and form == _AUTO:
        raise PlanError("Form 'auto' needs a runtime to time the forms on.", hint="Name one, such as 'ort-cpu'.")
    if runtime is None:
        return FixedForm(form=Form(form))
    return (
        FastestForm(runtime=get_runtime(runtime))
        if form == _AUTO
        else RuntimeForm(runtime=get_runtime(runtime), form=Form(form))
    )
