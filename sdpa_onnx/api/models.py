"""Make and read models: `load`, `export`, `convert`, and `find_attention` and `inspect`, which list what is inside."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from sdpa_onnx.api.arguments import listed_sizes
from sdpa_onnx.api.record_list import RecordList
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.errors import ExportError, PlanError

if TYPE_CHECKING:
    from sdpa_onnx.core.attention.forms import LowerOptions
    from sdpa_onnx.core.records.records import AttentionRecord
    from sdpa_onnx.graph.model import ModelSource, OnnxModel
    from sdpa_onnx.workflows.choose_form.choose import RaceBudget

__all__ = ["FormName", "convert", "export", "find_attention", "inspect", "load"]

FormName = Literal["decomposed", "attention", "blocked", "ort-mha", "ort-gqa", "auto"]

_ATTENTION_OPSET = 23


def load(source: "ModelSource") -> "OnnxModel":
    """Read a model from a file, a `ModelProto` or an `onnx_ir.Model`.

    Raises:
        ModelError: If it is not a usable ONNX model.
    """
    from sdpa_onnx.graph.model import load_model

    return load_model(source)


def export(
    target: object,
    sample_inputs: object = None,
    *,
    opset: int | None = None,
    dtype: Dtype | None = None,
    dynamic_axes: Mapping[str, Sequence[int]] | None = None,
    form: FormName | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    runtime: str | None = None,
    at: Sequence[Mapping[str, int]] = (),
    seconds: float | None = None,
    timeout: float | None = None,
    seed: int = 0,
) -> "OnnxModel":
    """Export attention with dynamic batch size and lengths.

    Without `runtime` the result is not verified, see `verify`. With it, the model is written so that this runtime
    computes it correctly, and is returned only if every attention and every dynamic axis is right there.

    Args:
        target: A `torch.nn.Module`; an `AttentionSpec`; or a name: of a catalog entry, of one of the three uses, or of
            a class, "package.module:Class" or "file.py:Class(512, heads=8)".
        sample_inputs: A tuple or dict of tensors; for a module only.
        opset: 18 to 25; None = 23, or with form "auto" what the fastest form needs. From 23 on, an attention is one
            Attention node; below, it is decomposed.
        dtype: Element type of a spec (None = float32) or a named target; a module keeps its own.
        dynamic_axes: Dynamic axes by parameter name, where the defaults are wrong.
        form: Form of every attention; None = the usual one at that opset; "auto" = the fastest that is right on
            `runtime`, which it requires.
        shapes: Shapes of float32 sample inputs by parameter name; for the name of a class only.
        runtime: The runtime that verifies the result; None = do not verify.
        at: auto: sizes of axes at which to time the forms; () = several lengths.
        seconds: auto: time budget for the forms of one attention; None = 20.
        timeout: Run the runtime in a process of its own, and wait this many seconds for each answer; None = in this
            process, without a limit.
        seed: Seed of the inputs of the verification.

    Raises:
        ExportError: If torch or onnx fails, the code specialises a dynamic axis, the form cannot express the attention,
            or the result is wrong on `runtime`.
        PlanError: If there is no such target or form.
        RuntimeNotFoundError, RuntimeUnavailableError: If the runtime is unknown or not installed.
    """
    at = listed_sizes("at", at)
    _require_timed(form, runtime, at, seconds)
    number, written = _ATTENTION_OPSET if opset is None else opset, None if form == "auto" else form
    if isinstance(target, AttentionSpec | str):
        make = partial(_export_named, target, number, written, dtype, shapes, dynamic_axes)
    else:
        make = partial(_export_module, target, sample_inputs, number, written, dtype, dynamic_axes)
    if runtime is None:
        return make()
    from sdpa_onnx.workflows.export.export_in_memory import MemoryProof, export_for_runtime

    proof = MemoryProof(
        runtime=runtime, seed=seed, patience_seconds=timeout, fastest=_budget(seconds) if form == "auto" else None
    )
    name = target if isinstance(target, str) else type(target).__name__
    return export_for_runtime(make, proof, target=name, at=at, opset=opset)


def find_attention(model: "ModelSource") -> "RecordList[AttentionRecord]":
    """List every attention of a model from its graph; nothing is run, see `inspect`.

    Raises:
        ModelError: If it has none.
    """
    from sdpa_onnx.workflows.verify.inspect_file import inspect_model

    loaded = load(model)
    return RecordList(inspect_model(loaded, target=str(loaded.path or "model")))


def inspect(
    model: "ModelSource", *, runtime: str = "ort-cpu", run: bool = True, timeout: float | None = None
) -> "RecordList[AttentionRecord]":
    """List every attention of a model, and run it at a few sizes to find axes that are fixed.

    Args:
        model: The model.
        runtime: Where to run it.
        run: False = read the graph only, like `find_attention`.
        timeout: Run it in a process of its own, and wait this many seconds for each answer; None = in this process,
            without a limit.

    Returns:
        One record per attention; `baked` lists the axes that are fixed, `sizes_tried` is None if none could be tried.

    Raises:
        ModelError: If it has no attention.
        RuntimeNotFoundError, RuntimeUnavailableError: If the runtime is unknown or not installed.
    """
    from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes
    from sdpa_onnx.workflows.verify.inspect_axes import try_axes
    from sdpa_onnx.workflows.verify.inspect_file import inspect_judgeable

    if not run:
        return find_attention(model)
    loaded = load(model)
    records, able = inspect_judgeable(loaded, target=str(loaded.path or "model"))
    pick_runtimes([runtime])
    trial = try_axes(able, records, runtime, target=str(loaded.path or "model"), patience_seconds=timeout)
    return RecordList(trial.records)


def convert(
    model: "ModelSource",
    form: FormName = "blocked",
    *,
    opset: int | None = None,
    runtime: str | None = "ort-cpu",
    seed: int = 0,
    rows_may_be_empty: bool = True,
    scale_placement: Literal["query", "scores", "both"] | None = None,
    inner: Literal["attention", "decomposed"] | None = None,
    at: Sequence[Mapping[str, int]] = (),
    seconds: float | None = None,
    timeout: float | None = None,
    threads: int = 1,
) -> "OnnxModel":
    """Convert every attention of a model to another form, and verify the result against the model.

    Attentions that cannot be read or that the form cannot express stay unchanged; `find_attention` lists them.

    Args:
        model: The model; not changed.
        form: "decomposed", "attention", "blocked", "ort-mha", "ort-gqa", or "auto": the fastest correct form on
            the runtime.
        opset: Opset of the result; None = the model's own if the form allows it.
        runtime: The runtime that verifies the result; None = do not verify, see `verify`.
        seed: Seed of the inputs.
        rows_may_be_empty: Whether padding may hide every key of a query. If not, masks that are causal except
            for such rows become is_causal; the verification uses no such mask, and the metadata of the result
            records it.
        scale_placement: decomposed, blocked: where to multiply by the scale; None = the query.
        inner: blocked: form of each block; None = decomposed.
        at: auto: sizes of axes at which to time the forms; () = several lengths.
        seconds: auto: time budget for the forms of one attention; None = 20.
        timeout: Run the runtime in a process of its own, and wait this many seconds for each answer; None = in this
            process, without a limit.
        threads: Threads inside one operator.

    Raises:
        PlanError: If there is no such form, or an option does not apply to it.
        ModelError: If no attention can be converted, or the result does not compute the same as the model.
        RuntimeNotFoundError, RuntimeUnavailableError: If the runtime is unknown or not installed.
    """
    from sdpa_onnx.workflows.convert.convert_file import ProofOptions
    from sdpa_onnx.workflows.convert.convert_in_memory import MemoryConversion, convert_in_memory

    at = listed_sizes("at", at)
    _require_timed(form, runtime, at, seconds)
    proof = None
    if runtime is not None:
        proof = ProofOptions(runtime=runtime, seed=seed, threads=threads, patience_seconds=timeout)
    task = MemoryConversion(
        form=form,
        opset=opset,
        proof=proof,
        rows_may_be_empty=rows_may_be_empty,
        options=_options(form, scale_placement, inner),
        budget=_budget(seconds),
        at=at,
    )
    return convert_in_memory(load(model), task)


def _options(form: str, scale_placement: str | None, inner: str | None) -> "LowerOptions":
    """Options of a form.

    Raises:
        PlanError: If the form has no such option.
    """
    from sdpa_onnx.core.attention.forms import Form, LowerOptions, ScalePlacement

    if inner is not None and form != "blocked":
        raise PlanError("inner requires form='blocked'.", hint="Leave out inner.")
    if scale_placement is not None and form not in ("decomposed", "blocked"):
        raise PlanError("scale_placement requires form='decomposed' or 'blocked'.", hint="Leave out scale_placement.")
    placement = None if scale_placement is None else ScalePlacement(scale_placement)
    return LowerOptions(scale_placement=placement, inner=None if inner is None else Form(inner))


def _budget(seconds: float | None) -> "RaceBudget":
    from sdpa_onnx.workflows.choose_form.choose import RaceBudget

    return RaceBudget() if seconds is None else RaceBudget(seconds=seconds)


def _require_timed(
    form: str | None, runtime: str | None, at: Sequence[Mapping[str, int]], seconds: float | None
) -> None:
    """Refuse options that only form "auto" has, and form "auto" without a runtime.

    Raises:
        PlanError: If one is given with another form.
    """
    given = "at" if at else "seconds" if seconds is not None else ""
    if given and form != "auto":
        raise PlanError(f"{given} requires form='auto', which times the forms.", hint=f"Leave out {given}.")
    if form == "auto" and runtime is None:
        raise PlanError("Form 'auto' needs a runtime to time the forms on.", hint="Name one, such as 'ort-cpu'.")


def _export_named(
    target: AttentionSpec | str,
    opset: int,
    form: str | None,
    dtype: Dtype | None,
    shapes: Mapping[str, Sequence[int]] | None,
    dynamic_axes: Mapping[str, Sequence[int]] | None,
) -> "OnnxModel":
    """Export a spec or a target by its name."""
    from sdpa_onnx.workflows.export.export_target import export_target

    _require_form(form)
    samples = None if shapes is None else {name: (tuple(shape), "float32") for name, shape in shapes.items()}
    return export_target(target, opset=opset, form=form, dtype=dtype, shapes=samples, dynamic_axes=dynamic_axes)


def _export_module(
    target: object,
    sample_inputs: object,
    opset: int,
    form: str | None,
    dtype: Dtype | None,
    dynamic_axes: Mapping[str, Sequence[int]] | None,
) -> "OnnxModel":
    """Export a module of the caller."""
    import torch

    from sdpa_onnx.torch_export.exporter import export_module
    from sdpa_onnx.workflows.export.export_target import in_form

    if not isinstance(target, torch.nn.Module):
        raise ExportError(f"A {type(target).__name__} cannot be exported.", hint="Give a module, a spec or a name.")
    if dtype is not None:
        raise ExportError(
            "dtype applies only to a spec or a name; a module is exported in its own element type.",
            hint=f"Convert the module and its inputs: module.to(torch.{dtype}).",
        )
    _require_form(form)
    made = export_module(target, sample_inputs, opset=opset, dynamic_axes=dynamic_axes)
    return in_form(made, form)


def _require_form(form: str | None) -> None:
    from sdpa_onnx.core.attention.forms import Form

    if form is not None and form not in {*Form}:
        raise PlanError(f"There is no form '{form}'.", hint=f"Known: {', '.join(Form)}, auto.")
