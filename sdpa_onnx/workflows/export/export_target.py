"""Export a target and verify it before it is saved: dynamic axes, every attention, the outputs of the module.

Traces and judges nothing itself.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import onnx_ir as ir

from sdpa_onnx.catalog import entry_names, find_entry
from sdpa_onnx.core.attention.axis_limits import broken_limit
from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.records.records import AgreementRecord, ExportRecord, FormRecord, Outcome
from sdpa_onnx.errors import ExportError
from sdpa_onnx.graph.attention_node import default_form
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.model_facts import FORM_KEY, LIMITS_KEY
from sdpa_onnx.runtimes.base import Runtime, get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.lifted_model import with_lifted_sites, with_noted_sites
from sdpa_onnx.workflows.convert.convert_model import convert_model
from sdpa_onnx.workflows.convert.paired_sizes import edge_sets, has_branches, long_sets
from sdpa_onnx.workflows.isolate.isolated_runtime import own_process
from sdpa_onnx.workflows.verify.axis_links import follow, size_sets
from sdpa_onnx.workflows.verify.dynamic_axes import AxesProof, prove_axes
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model

if TYPE_CHECKING:
    from sdpa_onnx.workflows.export.export_for_runtime import WrittenExport

__all__ = ["ExportResult", "export_and_prove", "export_target", "has_one_length", "in_form", "lowered"]

# The forms that torch.onnx, or one node of ours, writes directly for a bare attention.
_BY_TORCH: dict[str | None, Literal["attention", "decomposed"]] = {"attention": "attention", "decomposed": "decomposed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """An export and its judgements.

    Args:
        model: The graph.
        record: The export, with the proof of its axes.
        agreement: Every judgement of the proof.
        forms: The probes and timings that decided how it is written for its runtime.
        attentions: Number of attentions that were judged; more than the sites of the model if one can be judged only
            after nodes are added to the graph.
    """

    model: OnnxModel
    record: ExportRecord
    agreement: tuple[AgreementRecord, ...]
    forms: tuple[FormRecord, ...] = ()
    attentions: int = 0

    @property
    def is_right(self) -> bool:
        """Whether no judgement fails."""
        return all(record.outcome is Outcome.OK for record in (self.record, *self.agreement))


def export_target(
    target: str | AttentionSpec,
    *,
    opset: int,
    form: str | None,
    dtype: Dtype | None,
    shapes: Mapping[str, tuple[tuple[int, ...], str]] | None = None,
    dynamic_axes: Mapping[str, Sequence[int]] | None = None,
) -> OnnxModel:
    """Export a bare spec or a named target; nothing is run.

    Args:
        target: A spec, a catalog name, one of our uses, or a user's class.
        opset: 18 to 25.
        form: One of `Form`; None = the usual one at that opset. A form that torch.onnx does not write is
            lowered from each attention of its graph. Of a spec, see `has_one_length`.
        dtype: Element type; a module and its sample inputs are converted to it. None = float32 for bare
            attention, unchanged for a module.
        shapes: Sample inputs of a class, by name: sizes and element type.
        dynamic_axes: Axes that may change, by input name.

    Raises:
        PlanError: If the target does not exist.
        ExportError: If torch or onnx refuses, or the form cannot express an attention at that opset.
    """
    from sdpa_onnx.torch_export.exporter import export_module, export_spec
    from sdpa_onnx.torch_export.targets import resolve_target

    if isinstance(target, str) and target in entry_names():
        target = find_entry(target).spec
    if isinstance(target, AttentionSpec):
        by_torch = form if form in _BY_TORCH else default_form(target, opset)
        made = export_spec(target, opset=opset, form=_BY_TORCH[by_torch], dtype=dtype or Dtype.FLOAT32)
        if has_one_length(target, form):
            made = _of_one_length(made)
        return made if form in (None, by_torch) else lowered(made, Form(form))
    found = resolve_target(target, shapes=shapes)
    if dtype is not None:
        found = found.converted(dtype.value)
    made = export_module(found.module, found.sample_inputs, opset=opset, dynamic_axes=dynamic_axes)
    return in_form(made, form)


def in_form(made: OnnxModel, form: str | None) -> OnnxModel:
    """The export of a module in a form, with every attention that can be read in its metadata.

    Args:
        made: As traced: its metadata lists the calls of scaled_dot_product_attention.
        form: One of `Form`; None = as traced, where attention that the module computes by hand stays unchanged.

    Raises:
        ExportError: If the form cannot express one.
    """
    traced = len(made.sites)
    made = with_noted_sites(made)
    is_as_traced = form is None or (form == made.facts.form and len(made.sites) == traced)
    return made if is_as_traced else lowered(made, Form(str(form)))


def has_one_length(target: str | AttentionSpec, form: str | None) -> bool:
    """Whether the export shares one length axis for query and key although the target does not require it.

    Only causal attention without a past, in a form that needs as many new keys as queries.
    """
    is_self = isinstance(target, AttentionSpec) and target.is_causal and not target.has_past
    return is_self and form == Form.ORT_GQA


def _of_one_length(model: OnnxModel) -> OnnxModel:
    """Rename the key length axis to the query length axis: self-attention of one length."""
    graph = model.ir.clone()
    graph.meta.update(model.ir.meta)
    for value in (*graph.graph.inputs, *(value for node in graph.graph for value in node.outputs)):
        if value.shape is not None:
            dims = [dim if isinstance(dim, int) else str(dim.value) for dim in value.shape]
            value.shape = ir.Shape(["q_seq_len" if dim == "kv_seq_len" else dim for dim in dims])
    return replace(model, ir=graph)


def lowered(model: OnnxModel, form: Form) -> OnnxModel:
    """Every attention of an export in another form, at its own opset.

    Raises:
        ExportError: If the form cannot express one.
    """
    converted = convert_model(model, form, opset=model.opset)
    if converted.refused:
        node, reason = next(iter(converted.refused.items()))
        raise ExportError(f"Attention '{node}' cannot be written as '{form}': {reason}", hint="Choose another form.")
    return converted.model


def export_and_prove(
    make: Callable[[], OnnxModel],
    *,
    target: str,
    runtime: str = "ort-cpu",
    path: Path | None = None,
    seed: int = 0,
    on_size: Callable[[int, int], None] | None = None,
    patience_seconds: float | None = None,
    write: "Callable[[OnnxModel, Runtime], WrittenExport] | None" = None,
) -> ExportResult:
    """Export, prove the dynamic axes, judge on the ladder, and save only if all is right.

    Args:
        make: Does the export.
        target: Name for the records.
        runtime: Name of the runtime of the proof.
        path: Path to save to; None = do not save.
        seed: Seed of the inputs.
        on_size: Called with (done, of) after each size.
        patience_seconds: Run the runtime in a separate process, and stop it after
            this long without an answer; None = in this process, without a limit.
        write: Rewrites the export for the runtime, before the proof; None = unchanged.

    Raises:
        ModelError: If the file cannot be written.
    """
    start = time.perf_counter()
    model = make()
    seconds = time.perf_counter() - start
    with own_process(get_runtime(runtime), patience_seconds) as worker:
        written = None if write is None else write(model, worker)
        if written is not None and written.reason:
            return _refused(written, target, seconds)
        model = model if written is None else written.model
        proof = prove_axes(model, worker, target=target, traced=model.facts.traced, seed=seed, on_size=on_size)
        judged = () if proof.reason else _ladder(model, worker, target, seed, proof.links)
        lifted = with_lifted_sites(model).model
        if lifted.sites != model.sites and not proof.reason:
            judged = (*judged, *_ladder(lifted, worker, target, seed, proof.links))
    exported = ExportResult(
        model=model,
        record=_record(model, target, proof, seconds, str(path or "")),
        agreement=(*proof.records, *judged),
        forms=() if written is None else written.records,
        attentions=len(lifted.sites) + len(lifted.body_sites),
    )
    if proof.limits:
        # With what was tested: the file must not look free beyond.
        model.ir.metadata_props[LIMITS_KEY] = msgspec.json.encode(proof.limits).decode()
    if path is not None and exported.is_right:
        model.save(path)
    return exported


def _refused(written: "WrittenExport", target: str, seconds: float) -> ExportResult:
    """An export that must not be saved, even if a proof at other inputs would pass."""
    record = ExportRecord(
        target=target,
        case=target,
        form=written.model.facts.form.value,
        opset=written.model.opset,
        outcome=written.outcome,
        reason=written.reason,
        nodes=written.model.node_counts(),
        seconds=seconds,
    )
    return ExportResult(model=written.model, record=record, agreement=(), forms=written.records)


def _ladder(
    model: OnnxModel, runtime: Runtime, target: str, seed: int, links: Mapping[str, str]
) -> tuple[AgreementRecord, ...]:
    """All logit spreads at one size that differs from the traced one, and at long sizes if the form has blocks."""
    free, batches = [axis for axis in model.facts.axes if axis not in links], model.facts.batch_axes
    limits = model.facts.limits
    usual = size_sets(free, count=3, batches=batches, limits=limits)[-1]
    sets = [usual, *(sizes for sizes in _more_sets(model, free, batches) if broken_limit(limits, sizes) is None)]
    checks = [CheckOptions(sizes=follow(links, sizes), seed=seed) for sizes in sets]
    shared = ExpectationCache()
    return tuple(
        record for check in checks for record in check_model(model, runtime, check, target=target, expectations=shared)
    )


def _more_sets(model: OnnxModel, free: Sequence[str], batches: Collection[str]) -> list[dict[str, int]]:
    """Lengths that reach the blocks and branches of our forms; none for those of the module itself."""
    if FORM_KEY not in model.ir.metadata_props or not has_branches(model):
        return []
    return [*edge_sets(model, free, batches), *long_sets(free, batches)]


def _record(model: OnnxModel, target: str, proof: AxesProof, seconds: float, path: str) -> ExportRecord:
    return ExportRecord(
        target=target,
        case=target,
        form=model.facts.form.value,
        opset=model.opset,
        outcome=proof.outcome,
        reason=proof.reason,
        warnings=(*proof.refusals, *proof.doubts),
        dynamic_axes=proof.dynamic_axes,
        limits=proof.limits,
        baked=proof.baked,
        settings=proof.settings,
        sizes_tried=proof.sizes_tried,
        longest=proof.longest,
        untested=proof.untested,
        nodes=model.node_counts(),
        seconds=seconds,
        model=path,
    )
