"""The Python face: export, verify and time attention in a few words.

Each function loads what it needs when it is called, so that `import sdpa_onnx`
stays quick. The command line goes the same ways.
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
        ModelError: If it is no ONNX model.
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
    """Export attention with dynamic batch size and lengths. Nothing is verified: see `verify`.

    Args:
        target: A `torch.nn.Module`, an `AttentionSpec`, or a name: one of our uses, or of the catalog.
        sample_inputs: A tuple or dict of tensors; for a module only.
        opset: 18 to 25. Below 23 the formula is written out, from 23 on it is one Attention node.
        dtype: Element type of a spec (None = float32) or a named target; a module is exported in its own.
        dynamic_axes: Axes that may change, by parameter name, where the usual ones are wrong.

    Raises:
        ExportError: If torch or onnx refuses, or the code fixes an axis.
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
            "A module is exported in its own element type; dtype is for a spec or a name.",
            hint=f"Convert the module and its inputs: module.to(torch.{dtype}).",
        )
    return export_module(target, sample_inputs, opset=opset, dynamic_axes=dynamic_axes)


def find_attention(model: "ModelSource") -> "list[AttentionRecord]":
    """List every attention of a model.

    Raises:
        ModelError: If there is none.
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
    """Write every attention of a model in another form, and prove the result against the model.

    Attentions that cannot be read or that the form cannot say stay as they are; `find_attention` lists them.

    Args:
        model: The model; it is left as it is.
        form: "decomposed", "attention", "blocked", "ort-mha", "ort-gqa", or "auto": the fastest that is right there.
        opset: Of the result; None = the model's own wherever the form allows.
        runtime: Where the result is proved; None = nowhere, see `verify`.
        seed: Seed of the inputs.
        rows_may_be_empty: Whether padding may hide every key of a query. If not, masks that are causal but
            for such rows become causality; the proof feeds no such mask, and the metadata of the result says so.

    Raises:
        PlanError: If there is no such form.
        ModelError: If no attention could be converted, or the result does not compute what the model computes.
        RuntimeNotFoundError, RuntimeUnavailableError: If the runtime is not there.
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
    """Judge every attention of a model on runtimes and prove that its axes may change.

    Args:
        model: The model.
        runtimes: Names, see `sdpa-onnx runtimes`.
        sizes: Sizes of named axes; the others are chosen.
        seed: Seed of the inputs.
        prove: Also plant every kind of fault, one record each: would these inputs catch it?

    Returns:
        One record per judgement, and one per runtime on the axes; `outcome` tells,
        also where a runtime failed on the model.

    Raises:
        RuntimeNotFoundError, RuntimeUnavailableError: If a runtime is not there.
        ModelError: If nothing in the model can be judged.
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
    """Time models on a runtime in worker processes, interleaved; ratios refer to the first.

    Args:
        models: Name -> model; all take the same inputs.
        runtime: Where they run, a registered name.
        sizes: Sizes of named axes; batch 1 and length 512 where not given.
        threads: Threads inside one operator.
        seconds: Time for the measurement; a first look at four launches is taken whatever it costs.

    Returns:
        One record per model; `verdict` is the word for its ratio, and `outcome` tells where one does not run.

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
