"""Verify a file as a user would ask it: all runtimes, a size that was not traced, and its axes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sdpa_onnx.core.records import AgreementRecord, ExportRecord
from sdpa_onnx.errors import ModelError, PlanError, SessionError
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import Unsupported, get_runtime
from sdpa_onnx.workflows.checked import Check, failed_record, form_of
from sdpa_onnx.workflows.dynamic_axes import prove_axes, size_sets, traced_sizes
from sdpa_onnx.workflows.feeds import axis_names
from sdpa_onnx.workflows.inspect import inspect_model
from sdpa_onnx.workflows.verify import Expectations, check_model

__all__ = ["load_against", "verify_file"]


def load_against(path: Path, against: str | None) -> OnnxModel:
    """Load a file, with the module that its end is compared with.

    Raises:
        ModelError: If there is no such file.
        PlanError: If the target does not exist.
    """
    model = load_model(path)
    if against is None:
        return model
    from sdpa_onnx.torch_export.bound_inputs import bind_inputs
    from sdpa_onnx.torch_export.targets import resolve_target

    target = resolve_target(against)
    bound = bind_inputs(target.module, target.sample_inputs)
    if len(bound.leaves()) != len(model.input_names):
        raise PlanError(
            f"{against} takes {len(bound.leaves())} tensors, {path} has {len(model.input_names)} inputs.",
            hint="Compare a file with the module that it came from.",
        )
    return replace(model, source=target.module, bind=bound.with_tensors)


def verify_file(
    model: OnnxModel,
    runtimes: Sequence[str],
    check: Check,
    *,
    target: str,
) -> Iterator[AgreementRecord | ExportRecord]:
    """Judge a model on every runtime, then prove its axes where nothing was fixed by the caller.

    Args:
        model: The model.
        runtimes: Names of available runtimes.
        target: Name for the records.
        check: Sizes that the caller fixes (the others are chosen), threads, seed, and
            given inputs, with which the axes are not tried.

    Raises:
        PlanError: If a size names no axis.
        ModelError: If nothing in the model can be judged.
        SessionError: If a runtime fails on given inputs.
    """
    if not model.sites and model.source is None:
        found = inspect_model(model, target=target)
        raise ModelError(
            f"{target} has {len(found)} attention(s) ({found[0].dialect}), but {found[0].reason}.",
            hint="Compare its end with its module (--against), or export a module that calls "
            "scaled_dot_product_attention.",
        )
    whole = replace(check, sizes=_sizes(model, check.sizes))
    expectations = Expectations()
    for name in runtimes:
        runtime = get_runtime(name)
        try:
            yield from check_model(model, runtime, whole, target=target, expectations=expectations)
        except SessionError as error:
            if check.inputs is not None:
                raise  # the caller's own arrays may be what is wrong
            # One runtime's refusal is a finding about it; the others are still asked.
            yield failed_record(model, name, whole, target=target, reason=str(error))
            continue
        if check.inputs is None and not isinstance(runtime.supports(model), Unsupported):
            yield _axes_record(model, name, target, check.seed)


def _sizes(model: OnnxModel, given: Mapping[str, int]) -> dict[str, int]:
    axes = axis_names(model)
    unknown = [axis for axis in given if axis not in axes]
    if unknown:
        raise PlanError(f"The model has no axis '{unknown[0]}'.", hint=f"It has {', '.join(axes) or 'none'}.")
    return {**size_sets(axes, count=3)[-1], **given}


def _axes_record(model: OnnxModel, runtime: str, target: str, seed: int) -> ExportRecord:
    proof = prove_axes(model, get_runtime(runtime), target=target, traced=traced_sizes(model), seed=seed)
    return ExportRecord(
        target=target,
        case=target,
        form=form_of(model),
        opset=model.opset,
        runtime=runtime,
        outcome=proof.outcome,
        reason=proof.reason,
        dynamic_axes=proof.dynamic_axes,
        baked=proof.baked,
        sizes_tried=proof.sizes_tried,
        nodes=model.node_counts(),
        model=target,
    )
