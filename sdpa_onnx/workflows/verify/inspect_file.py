"""List the attentions of a file: dialect, figures, axes, and the operators that a runtime runs for them.

Reads the graph and its metadata only. `graph.lift` recognises attentions, `convert` rewrites them.
"""

import itertools
from collections.abc import Mapping

import msgspec
import onnx_ir as ir

from sdpa_onnx.core.attention.size_functions import fixed_scale_reason
from sdpa_onnx.core.records.records import AttentionRecord, Outcome
from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.lift.found import FoundAttention
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Unsupported, get_runtime
from sdpa_onnx.workflows.check.file_feeds import named_axes
from sdpa_onnx.workflows.check.lifted_model import LiftedModel, lift, read_and_judgeable, require_attention
from sdpa_onnx.workflows.isolate.isolated_runtime import own_process

__all__ = ["attention_records", "inspect_judgeable", "inspect_model", "scale_doubts", "static_axes", "what_runs"]

_PROVE = "verify --against MODULE proves or clears it."


def inspect_model(model: OnnxModel, *, target: str) -> list[AttentionRecord]:
    """One record per attention, in graph order.

    Raises:
        ModelError: If there is none.
    """
    return _records(model, lift(model), target)


def inspect_judgeable(model: OnnxModel, *, target: str) -> tuple[list[AttentionRecord], OnnxModel]:
    """The same, and the model that can be judged at every attention that was read; see `with_lifted_sites`.

    Raises:
        ModelError: If there is none.
    """
    lifted, able = read_and_judgeable(model)
    return _records(model, lifted, target), able


def _records(model: OnnxModel, lifted: LiftedModel, target: str) -> list[AttentionRecord]:
    require_attention(lifted, target)
    first, *others = attention_records(model, lifted, target=target)
    of_file = lifted.contradictions.get("")
    if of_file is not None:
        first = msgspec.structs.replace(first, warnings=(*first.warnings, of_file))
    return [first, *others]


def attention_records(model: OnnxModel, lifted: LiftedModel, *, target: str) -> list[AttentionRecord]:
    """The same for attentions that were found already; an empty list if there are none."""
    axes, fixed = named_axes(model).facts.axes, static_axes(model)
    records = (_record(model, found, target, axes, fixed) for found in lifted.found)
    return [msgspec.structs.replace(record, limits=model.facts.limits) for record in records]


def what_runs(model: OnnxModel, runtime: str, *, patience_seconds: float | None = None) -> RanReport | str:
    """The operators that a runtime really runs for the model, or why it runs none.

    Args:
        model: The model.
        runtime: Name of the runtime.
        patience_seconds: Load it in a process of its own, so that a crash is a result, and stop it
            after this long; None = in this process.

    Raises:
        RuntimeNotFoundError: Unknown runtime.
    """
    found = get_runtime(runtime)
    for answer in (found.available(), found.supports(model)):
        if isinstance(answer, Unsupported):
            return answer.reason
    try:
        with own_process(found, patience_seconds) as apart, apart.load(model, LoadOptions(reports=True)) as session:
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
        mask_band=None if attention is None else attention.mask_band or None,
        quantised="" if attention is None else attention.quantisers.text,
        dynamic_axes=axes,
        static_axes=fixed,
        scale_doubt="" if attention is None else _site_doubt(attention.site, model.facts.traced),
    )


def static_axes(model: OnnxModel) -> tuple[str, ...]:
    """Batch and sequence axes of inputs that are declared with a number while other axes may change.

    A size of 1 in a mask is a broadcast and no fixed axis. The meaning of an axis
    follows from the rank, as the exporter chooses it.
    """
    inputs = [value for value in model.ir.graph.inputs if value.shape is not None]
    if all(value.shape.is_static() for value in inputs):  # type: ignore[union-attr]  # filtered above
        return ()
    return tuple(text for value in inputs for text in _static(value))


def scale_doubts(model: OnnxModel) -> tuple[str, ...]:
    """Doubts about the constant scale of each attention, one sentence each."""
    return tuple(doubt for site in model.sites if (doubt := _site_doubt(site, model.facts.traced)))


def _site_doubt(site: AttentionSite, traced: Mapping[str, int] | None) -> str:
    """Why the scale of one attention may have been fixed at the length of a sample; "" without doubt."""
    lengths = None
    if traced is not None:
        single = list(traced.values())
        # A cache and the new keys make one length of keys.
        lengths = single + [sum(pair) for pair in itertools.combinations(single, 2)]
    doubt = fixed_scale_reason(site.spec, lengths)
    return f"{site.name}: {doubt}; {_PROVE}" if doubt else ""


def _static(value: ir.Value) -> list[str]:
    shape = value.shape or ()
    rank = len(shape)
    name = value.name or ""
    is_mask = value.dtype is ir.DataType.BOOL or "mask" in name or "bias" in name
    if rank < 2 or (rank == 2 and not is_mask and value.dtype is not None and value.dtype.is_floating_point()):
        return []
    sequences = (rank - 2, rank - 1) if is_mask or rank == 2 else (1 if rank == 3 else rank - 2,)
    axes = dict.fromkeys(sequences, "sequence") | {0: "batch"}
    if rank == 2 and is_mask and value.dtype is not ir.DataType.BOOL:
        axes[0] = "sequence"
    return [
        f"the {axes[axis]} axis {axis} of '{name}' is fixed to {shape[axis]} in the file"
        for axis in sorted(axes)
        if isinstance(shape[axis], int) and not (is_mask and shape[axis] == 1)
    ]
