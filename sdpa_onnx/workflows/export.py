"""Export a target and call it done only when it is proved: axes, every attention, the module's end."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sdpa_onnx.catalog import entry_names, find_entry
from sdpa_onnx.core.records import AgreementRecord, ExportRecord, Outcome
from sdpa_onnx.core.spec import AttentionSpec, Dtype
from sdpa_onnx.graph.attention_node import usual_form
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import Runtime, get_runtime
from sdpa_onnx.workflows.axis_links import batch_axes, follow
from sdpa_onnx.workflows.checked import Check, form_of
from sdpa_onnx.workflows.dynamic_axes import AxesProof, prove_axes, size_sets, traced_sizes
from sdpa_onnx.workflows.feeds import axis_names
from sdpa_onnx.workflows.guarded import own_process
from sdpa_onnx.workflows.verify import Expectations, check_model

__all__ = ["Exported", "export_and_prove", "export_target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An export and what was found about it.

    Args:
        model: The graph.
        record: The export, with the proof of its axes.
        agreement: Every judgement on the way.
    """

    model: OnnxModel
    record: ExportRecord
    agreement: tuple[AgreementRecord, ...]

    @property
    def is_right(self) -> bool:
        """Whether nothing spoke against it."""
        return all(record.outcome is Outcome.OK for record in (self.record, *self.agreement))


def export_target(
    target: str | AttentionSpec,
    *,
    opset: int,
    form: Literal["attention", "decomposed"] | None,
    dtype: Dtype | None,
    shapes: Mapping[str, tuple[tuple[int, ...], str]] | None = None,
    dynamic_axes: Mapping[str, Sequence[int]] | None = None,
) -> OnnxModel:
    """Export a bare spec or a named target; nothing is run.

    Args:
        target: A spec, a catalog name, one of our uses, or a user's class.
        opset: 18 to 25.
        form: For bare attention; None = the usual one at that opset.
        dtype: Element type; a module and its sample inputs are converted to it. None = float32 for bare
            attention, as it is for a module.
        shapes: Sample inputs of a class, by name: sizes and element type.
        dynamic_axes: Axes that may change, by input name.

    Raises:
        PlanError: If the target does not exist.
        ExportError: If torch or onnx refuses.
    """
    from sdpa_onnx.torch_export.exporter import export_module, export_spec
    from sdpa_onnx.torch_export.targets import resolve_target

    if isinstance(target, str) and target in entry_names():
        target = find_entry(target).spec
    if isinstance(target, AttentionSpec):
        return export_spec(target, opset=opset, form=form or usual_form(target, opset), dtype=dtype or Dtype.FLOAT32)
    found = resolve_target(target, shapes=shapes)
    if dtype is not None:
        found = found.converted(dtype.value)
    return export_module(found.module, found.sample_inputs, opset=opset, dynamic_axes=dynamic_axes)


def export_and_prove(
    make: Callable[[], OnnxModel],
    *,
    target: str,
    runtime: str = "ort-cpu",
    path: Path | None = None,
    seed: int = 0,
    on_size: Callable[[int, int], None] | None = None,
    patience_seconds: float | None = None,
) -> Exported:
    """Export, prove the dynamic axes, judge on the ladder, and save only if all is right.

    Args:
        make: Does the export.
        target: Name for the records.
        runtime: Where the proof runs.
        path: Where to save; None = nowhere.
        seed: Seed of the inputs.
        on_size: Told (done, of) after each size.
        patience_seconds: Run the runtime in a process of its own, and give it up after
            this long without an answer; None = in this process, without a limit.

    Raises:
        ModelError: If the file cannot be written.
    """
    start = time.perf_counter()
    model = make()
    seconds = time.perf_counter() - start
    with own_process(get_runtime(runtime), patience_seconds) as where:
        proof = prove_axes(model, where, target=target, traced=traced_sizes(model), seed=seed, on_size=on_size)
        judged = () if proof.reason else _ladder(model, where, target, seed, proof.links)
    exported = Exported(
        model=model,
        record=_record(model, target, proof, seconds, str(path or "")),
        agreement=(*proof.records, *judged),
    )
    if path is not None and exported.is_right:
        model.save(path)
    return exported


def _ladder(
    model: OnnxModel, runtime: Runtime, target: str, seed: int, links: Mapping[str, str]
) -> tuple[AgreementRecord, ...]:
    """All logit spreads at one size that differs from the traced one."""
    free = [axis for axis in axis_names(model) if axis not in links]
    sizes = follow(links, size_sets(free, count=3, batches=batch_axes(model))[-1])
    check = Check(sizes=sizes, seed=seed)
    return tuple(check_model(model, runtime, check, target=target, expectations=Expectations()))


def _record(model: OnnxModel, target: str, proof: AxesProof, seconds: float, path: str) -> ExportRecord:
    return ExportRecord(
        target=target,
        case=target,
        form=form_of(model),
        opset=model.opset,
        outcome=proof.outcome,
        reason=proof.reason,
        dynamic_axes=proof.dynamic_axes,
        baked=proof.baked,
        settings=proof.settings,
        sizes_tried=proof.sizes_tried,
        nodes=model.node_counts(),
        seconds=seconds,
        model=path,
    )
