"""Convert a model in memory: return the verified result, or raise an error that names the reason.

Writes no file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.errors import ModelError, PlanError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import Runtime, get_runtime
from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes
from sdpa_onnx.workflows.choose_form.attention_sizes import sizes_by_name
from sdpa_onnx.workflows.choose_form.choose import RaceBudget
from sdpa_onnx.workflows.choose_form.form_strategy import FixedForm, FormStrategy
from sdpa_onnx.workflows.choose_form.runtime_strategies import FastestForm, RuntimeForm
from sdpa_onnx.workflows.convert.convert_file import ProofOptions, prove_converted
from sdpa_onnx.workflows.convert.convert_model import ConvertedModel, convert_model
from sdpa_onnx.workflows.convert.upgrade_opset import stays_below
from sdpa_onnx.workflows.isolate.isolated_runtime import own_process

__all__ = ["AUTO", "MemoryConversion", "convert_in_memory"]

# The form that is chosen by timing.
AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConversion:
    """What to convert to, and how to prove it.

    Args:
        form: One of `Form`, or "auto", which needs a proof.
        opset: Of the result; None = the model's own wherever the form allows.
        proof: The runtime that the result is for, with seed, threads and patience; None = it is not verified.
        rows_may_be_empty: Whether padding may hide every key of a query, see `convert_model`.
        options: Options of the form.
        budget: auto: how long to time the forms of one attention.
        at: auto: sizes of the model's own axes to time at; () = several lengths.
    """

    form: str
    opset: int | None = None
    proof: ProofOptions | None = None
    rows_may_be_empty: bool = True
    options: LowerOptions = field(default_factory=LowerOptions)
    budget: RaceBudget = field(default_factory=RaceBudget)
    at: Sequence[Mapping[str, int]] = ()

    def __post_init__(self) -> None:
        if self.form not in {*Form, AUTO}:
            raise PlanError(f"There is no form '{self.form}'.", hint=f"Known: {', '.join(Form)}, {AUTO}.")


def convert_in_memory(model: OnnxModel, task: MemoryConversion) -> OnnxModel:
    """Convert and prove; see `sdpa_onnx.convert`."""
    if task.proof is None:
        return _converted(model, task, FixedForm(form=Form(task.form), options=task.options)).model
    pick_runtimes([task.proof.runtime])
    with own_process(get_runtime(task.proof.runtime), task.proof.patience_seconds) as runtime:
        converted = _converted(model, task, _strategy(model, task, task.proof, runtime))
    if converted.converted:
        _require_right(converted, task.proof, target=str(model.path or "model"))
    return converted.model


def _converted(model: OnnxModel, task: MemoryConversion, strategy: FormStrategy) -> ConvertedModel:
    """The result, which is the model itself if it already has the form.

    Raises:
        ModelError: If no attention can be converted.
    """
    again = task.form == AUTO or task.options != LowerOptions()
    converted = convert_model(model, strategy, opset=task.opset, again=again, rows_may_be_empty=task.rows_may_be_empty)
    if converted.already and not converted.converted:
        return replace(converted, model=model)
    if not converted.converted:
        node, reason = next(iter(converted.refused.items()), ("", ""))
        why = f"'{node}': {reason.rstrip('.')}" if node else "the model contains none"
        raise ModelError(f"No attention of the model can be converted to '{task.form}': {why}.")
    return converted


def _strategy(model: OnnxModel, task: MemoryConversion, proof: ProofOptions, runtime: Runtime) -> FormStrategy:
    """The form with the workarounds of the runtime, or the fastest form there."""
    if task.form != AUTO:
        return RuntimeForm(runtime=runtime, form=Form(task.form), options=task.options)
    timed = get_runtime(proof.runtime)
    budget = replace(task.budget, threads=proof.threads, seed=proof.seed)
    sizes = sizes_by_name(model, timed, task.at) if task.at else {}
    return FastestForm(runtime=timed, budget=budget, sizes=sizes, cannot_hold=stays_below(model, task.opset))


def _require_right(converted: ConvertedModel, proof: ProofOptions, *, target: str) -> None:
    """Refuse a result that was not proved to compute what the model computes."""
    proved = prove_converted(converted, target=target, proof=proof)
    bad = next((record for record in proved.records if record.outcome is not Outcome.OK), None)
    if bad is not None or not proved.is_right:
        why = bad.diagnosis or bad.reason if bad is not None else "no output could be judged."
        raise ModelError(
            f"The result does not compute what the model computes on {proof.runtime}: {why}", hint=proved.hint or None
        )
