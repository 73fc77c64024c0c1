"""The public Python API: export, convert, verify and time attention.

Each function imports its dependencies when it is called, so `import sdpa_onnx` stays fast. The command line uses the
same workflows, but not this module.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.errors import ExportError

if TYPE_CHECKING:
    import os

    import onnx
    import onnx_ir

    from sdpa_onnx.core.records.records import AttentionRecord, Record, TimingRecord
    from sdpa_onnx.graph.model import OnnxModel

    ModelSource = str | os.PathLike[str] | onnx.ModelProto | onnx_ir.Model | OnnxModel

__all__ = ["bench", "convert", "export", "find_attention", "load", "verify"]

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
    opset: int = _ATTENTION_OPSET,
    dtype: Dtype | None = None,
    dynamic_axes: Mapping[str, Sequence[int]] | None = None,
) -> "OnnxModel":
    """Export attention with dynamic batch size and lengths. Does not verify the result, see `verify`.

    Args:
        target: A `torch.nn.Module`, an `AttentionSpec`, or the name of one of the three uses or a catalog entry.
        sample_inputs: A tuple or dict of tensors; for a module only.
        opset: 18 to 25. From 23 on, an attention is one Attention node; below, it is decomposed.
        dtype: Element type of a spec (None = float32) or a named target; a module keeps its own.
        dynamic_axes: Dynamic axes by parameter name, where the defaults are wrong.

    Raises:
        ExportError: If torch or onnx fails, or the code specialises a dynamic axis.
        PlanError: If there is no such target.
    """
    if isinstance(target, AttentionSpec | str):
        from sdpa_onnx.workflows.export.export_target import export_target

        return export_target(target, opset=opset, form=None, dtype=dtype, dynamic_axes=dynamic_axes)
    import torch

    from sdpa_onnx.torch_export.exporter import export_module

    if not isinstance(target, torch.nn.Module):
        raise ExportError(f"A {type(target).__name__} cannot be exported.", hint="Give a module, a spec or a name.")
    if dtype is not None:
        raise ExportError(
            "dtype applies only to a spec or a name; a module is exported in its own element type.",
            hint=f"Convert the module and its inputs: module.to(torch.{dtype}).",
        )
    return export_module(target, sample_inputs, opset=opset, dynamic_axes=dynamic_axes)


def find_attention(model: "ModelSource") -> "list[AttentionRecord]":
    """List every attention of a model.

    Raises:
        ModelError: If it has none.
    """
    from sdpa_onnx.workflows.verify.inspect_file import inspect_model

    loaded = load(model)
    return inspect_model(loaded, target=str(loaded.path or "model"))


def convert(
    model: "ModelSource",
    form: str = "blocked",
    *,
    opset: int | None = None,
    runtime: str | None = "ort-cpu",
    seed: int = 0,
    rows_may_be_empty: bool = True,
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

    Raises:
        PlanError: If there is no such form.
        ModelError: If no attention can be converted, or the result does not compute the same as the model.
        RuntimeNotFoundError, RuntimeUnavailableError: If the runtime is unknown or not installed.
    """
    from sdpa_onnx.workflows.convert.convert_in_memory import convert_in_memory

    return convert_in_memory(
        load(model), form, opset=opset, runtime=runtime, seed=seed, rows_may_be_empty=rows_may_be_empty
    )


def verify(
    model: "ModelSource",
    *,
    runtimes: Sequence[str] = ("ort-cpu",),
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    prove: bool = False,
) -> "list[Record]":
    """Verify every attention of a model on runtimes, and check that its dynamic axes can change.

    Args:
        model: The model.
        runtimes: Names of runtimes, see `sdpa-onnx runtimes`.
        sizes: Sizes of named axes; others get defaults.
        seed: Seed of the inputs.
        prove: Also plant every kind of fault, with one record each that shows whether these inputs detect it.

    Returns:
        One record per check of an attention, and one per runtime for the dynamic axes. `outcome` holds
        the result, also if a runtime fails on the model.

    Raises:
        RuntimeNotFoundError, RuntimeUnavailableError: If a runtime is unknown or not installed.
        ModelError: If nothing in the model can be verified.
    """
    from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes
    from sdpa_onnx.workflows.check.check_options import CheckOptions
    from sdpa_onnx.workflows.verify.verify_file import VerifyExtras, verify_file

    loaded = load(model)
    check = CheckOptions(sizes=dict(sizes or {}), seed=seed)
    names = pick_runtimes(list(runtimes))
    return list(verify_file(loaded, names, check, target=str(loaded.path or "model"), extras=VerifyExtras(prove=prove)))


def bench(
    models: "Mapping[str, ModelSource]",
    *,
    runtime: str = "ort-cpu",
    sizes: Mapping[str, int] | None = None,
    threads: int = 1,
    seconds: float = 30.0,
) -> "list[TimingRecord]":
    """Time models on a runtime in worker processes, interleaved; ratios are relative to the first model.

    Args:
        models: Models by name; all have the same inputs.
        runtime: Name of the runtime.
        sizes: Sizes of named axes; the defaults are batch 1 and length 512.
        threads: Intra-operator threads.
        seconds: Time budget; the first four launches always run, even if they exceed it.

    Returns:
        One record per model; `verdict` classifies its ratio. A model that does not run has an `outcome` that is not ok,
        the `reason`, and None for the ratio and every other figure.

    Raises:
        PlanError: If the models cannot be compared.
    """
    from sdpa_onnx.measure.calibration import load_calibration
    from sdpa_onnx.measure.timing_plan import TimingPlan
    from sdpa_onnx.runtimes.base import get_runtime
    from sdpa_onnx.workflows.bench.bench_files import usual_sizes
    from sdpa_onnx.workflows.check.check_options import CheckOptions
    from sdpa_onnx.workflows.timing.comparison import Arm
    from sdpa_onnx.workflows.timing.comparison import bench as time_arms

    loaded = {name: load(model) for name, model in models.items()}
    arms = [Arm(name=name, model=model, runtime=get_runtime(runtime)) for name, model in loaded.items()]
    check = CheckOptions(sizes=usual_sizes(arms[0].model, sizes or {}), threads=threads, spreads=(1.0,))
    plan = TimingPlan(budget_seconds=seconds, calibration=load_calibration())
    comparison = time_arms(arms, check, target="models", baseline=arms[0].name, plan=plan)
    return list(comparison.records.values())
