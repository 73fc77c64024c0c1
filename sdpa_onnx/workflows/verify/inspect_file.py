"""What attention stands in a file: dialect, figures, axes, and what a runtime makes of it.

Reads only; recognising is `graph.lift`'s, turning one form into another is `convert`'s.
"""

from sdpa_onnx.core.records.records import AttentionRecord, Outcome
from sdpa_onnx.errors import ModelError, SessionError
from sdpa_onnx.graph.lift.found import FoundAttention
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Unsupported, get_runtime
from sdpa_onnx.workflows.check.lifted_model import LiftedModel, lift
from sdpa_onnx.workflows.isolate.isolated_runtime import own_process
from sdpa_onnx.workflows.verify.file_axes import site_doubt, static_axes

__all__ = ["attention_records", "inspect_model", "what_runs"]


def inspect_model(model: OnnxModel, *, target: str) -> list[AttentionRecord]:
    """One record per attention, in graph order.

    Raises:
        ModelError: If there is none.
    """
    found = attention_records(model, lift(model), target=target)
    if not found:
        raise ModelError(f"{target} has no attention in it.", hint="Neither an operator nor softmax(QK^T) V was found.")
    return found


def attention_records(model: OnnxModel, lifted: LiftedModel, *, target: str) -> list[AttentionRecord]:
    """The same of what was found already; an empty list where nothing was."""
    axes, fixed = model.facts.axes if model.facts.has_named_axes else ("unnamed",), static_axes(model)
    return [_record(model, found, target, axes, fixed) for found in lifted.found]


def what_runs(model: OnnxModel, runtime: str, *, patience_seconds: float | None = None) -> RanReport | str:
    """What a runtime really runs for the model, or why it does not.

    Args:
        model: The model.
        runtime: Name of the runtime.
        patience_seconds: Ask in a process of its own, so that a crash is an answer, and give it
            up after this long; None = in this process.

    Raises:
        RuntimeNotFoundError: Unknown runtime.
    """
    found = get_runtime(runtime)
    for answer in (found.available(), found.supports(model)):
        if isinstance(answer, Unsupported):
            return answer.reason
    try:
        with own_process(found, patience_seconds) as apart, apart.load(model, LoadOptions()) as session:
            return session.ran()
    except SessionError as error:
        return str(error)


def _record(
    model: OnnxModel, found: FoundAttention, target: str, axes: tuple[str, ...], fixed: tuple[str, ...]
) -> AttentionRecord:
    attention = found.attention
    return AttentionRecord(
        target=target,
        form=model.facts.form.value,
        opset=model.opset,
        outcome=Outcome.UNSUPPORTED if attention is None else Outcome.OK,
        reason=found.reason if attention is None else "",
        warnings=found.warnings,
        node=found.node if attention is None else attention.name,
        dialect=found.dialect,
        spec=None if attention is None else attention.spec,
        dynamic_axes=axes,
        static_axes=fixed,
        scale_doubt="" if attention is None else site_doubt(model, attention.site),
    )
