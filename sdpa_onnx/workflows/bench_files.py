"""Time files as a user would ask it: every file on every runtime that takes it, one comparison."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sdpa_onnx.core.records import Outcome, TimingRecord
from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.measure.ceilings import measure_ceilings
from sdpa_onnx.measure.visits import Plan
from sdpa_onnx.runtimes.base import Unsupported, get_runtime
from sdpa_onnx.workflows.bench import Arm, bench
from sdpa_onnx.workflows.checked import MODULE_RUNTIME, Check, form_of
from sdpa_onnx.workflows.feeds import axis_names

__all__ = ["bench_files", "usual_sizes"]

# Runtimes where the caller names none.
_USUAL = ("ort-cpu", MODULE_RUNTIME)
# Sizes of axes that the caller does not fix.
_BATCH_SIZE, _SEQ_LEN = 1, 512


def bench_files(
    paths: Sequence[Path],
    runtimes: Sequence[str] | None,
    check: Check,
    *,
    baseline: str | None,
    plan: Plan,
    on_block: Callable[[int], None] | None = None,
) -> list[TimingRecord]:
    """Time files on runtimes, interleaved.

    Args:
        paths: Files with the same inputs.
        runtimes: Names of available runtimes; None = ort-cpu, beside torch where it knows the attention.
        check: Sizes that the caller fixes (the others are chosen), inputs, threads, seed.
        baseline: Arm or runtime that ratios refer to; None = torch, else the first.
        plan: How much to measure.
        on_block: Told the number of blocks done.

    Returns:
        A record per arm; an arm that cannot run is a record with its reason.

    Raises:
        ModelError: If a file is no model.
        PlanError: If the files have different inputs, or a name is wrong.
        SessionError: If an arm fails.
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise PlanError("The same file is given twice.")
    models = {path: load_model(path) for path in paths}
    _check_comparable(models)
    first = next(iter(models.values()))
    whole = replace(check, sizes=usual_sizes(first, check.sizes), spreads=(1.0,))
    arms, refused = _arms(models, runtimes or _USUAL)
    if runtimes is None:
        refused = [record for record in refused if record.runtime != MODULE_RUNTIME]
    if not arms:
        raise PlanError(f"No runtime takes these models: {refused[0].reason}")
    target = paths[0].stem if len(paths) == 1 else "files"
    comparison = bench(
        arms,
        whole,
        target=target,
        baseline=_baseline(arms, baseline),
        plan=plan,
        ceilings=measure_ceilings(threads=check.threads, seconds=0.3),
        on_block=on_block,
    )
    return [*comparison.records.values(), *refused]


def _arms(models: Mapping[Path, OnnxModel], runtimes: Sequence[str]) -> tuple[list[Arm], list[TimingRecord]]:
    arms: list[Arm] = []
    refused: list[TimingRecord] = []
    for name in runtimes:
        runtime = get_runtime(name)
        if not runtime.measures_time:
            raise PlanError(f"Runtime '{name}' is for agreement only.", hint="Time another one.")
        for path, model in models.items():
            support = runtime.supports(model)
            arm = name if name == MODULE_RUNTIME else f"{name} {form_of(model)} {model.opset}"
            if len(models) > 1 and name != MODULE_RUNTIME:
                same_name = sum(other.name == path.name for other in models) > 1
                arm = f"{name} {path if same_name else path.name}"
            if isinstance(support, Unsupported):
                refused.append(
                    TimingRecord(
                        case=str(path), arm=arm, runtime=name, outcome=Outcome.UNSUPPORTED, reason=support.reason
                    )
                )
            else:
                arms.append(Arm(name=arm, model=model, runtime=runtime))
            if name == MODULE_RUNTIME:
                break  # the same attention, whatever the file's form
    return arms, refused


def _baseline(arms: Sequence[Arm], asked: str | None) -> str:
    names = [arm.name for arm in arms]
    if asked is None:
        return MODULE_RUNTIME if MODULE_RUNTIME in names else names[0]
    found = [name for name in names if name == asked or name.partition(" ")[0] == asked]
    if not found:
        raise PlanError(f"There is no arm '{asked}' to be the baseline.", hint=f"Arms: {', '.join(names)}.")
    return found[0]


def usual_sizes(model: OnnxModel, given: Mapping[str, int]) -> dict[str, int]:
    """Sizes of every axis: as given, else batch 1 and length 512.

    Raises:
        PlanError: If a size names no axis.
    """
    axes = axis_names(model)
    unknown = [axis for axis in given if axis not in axes]
    if unknown:
        raise PlanError(f"The model has no axis '{unknown[0]}'.", hint=f"It has {', '.join(axes) or 'none'}.")
    return {axis: given.get(axis, _BATCH_SIZE if axis.startswith("batch") else _SEQ_LEN) for axis in axes}


def _check_comparable(models: Mapping[Path, OnnxModel]) -> None:
    names = {path: model.input_names for path, model in models.items()}
    first = next(iter(names))
    for path, inputs in names.items():
        if inputs != names[first]:
            raise PlanError(
                f"{path} has inputs {', '.join(inputs)}, {first} has {', '.join(names[first])}.",
                hint="Only models with the same inputs can be compared.",
            )
    # A file whose attention is not read may be compared; two that are known to compute different things may not.
    specs = {path: tuple(site.spec for site in model.sites) for path, model in models.items() if model.sites}
    known = next(iter(specs.values()), ())
    for path, found in specs.items():
        if found != known:
            raise PlanError(f"{path} and {first} compute different attention.", hint="Time them one by one.")
