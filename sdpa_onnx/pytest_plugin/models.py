"""Time two models interleaved in worker processes, for a test; `workflows.timing.comparison` does the timing."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.errors import SessionError
from sdpa_onnx.pytest_plugin.result import TimedArm, TimedPair, rounds_of

if TYPE_CHECKING:
    from sdpa_onnx.api import ModelSource
    from sdpa_onnx.workflows.timing.comparison import TimedComparison

__all__ = ["time_models"]

_BASE, _HEAD = "base", "head"


def time_models(
    base: "ModelSource",
    head: "ModelSource",
    *,
    runtime: str,
    sizes: Mapping[str, int],
    threads: int,
    seconds: float,
    margin: float,
) -> TimedPair | str:
    """Time two models on a runtime.

    Args:
        base, head: Models with the same inputs.
        runtime: The runtime that runs both.
        sizes: Sizes of named axes; batch 1 and length 512 by default.
        threads: Threads inside one operator.
        seconds: Time for the whole comparison.
        margin: Slowdown to confirm or rule out, as a share: launches continue until it is decided.

    Returns:
        Both arms, or why the comparison is undecidable on this machine now.

    Raises:
        RuntimeNotFoundError, RuntimeUnavailableError: If the runtime is unknown or not installed.
        PlanError, ModelError: If the models cannot be compared.
        SessionError: If one does not run.
    """
    from sdpa_onnx.graph.model import load_model
    from sdpa_onnx.measure.calibration import load_calibration
    from sdpa_onnx.measure.timing_plan import TimingPlan
    from sdpa_onnx.runtimes.base import get_runtime
    from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes
    from sdpa_onnx.workflows.check.check_options import CheckOptions
    from sdpa_onnx.workflows.check.requested_sizes import timed_sizes
    from sdpa_onnx.workflows.timing.comparison import Arm, bench

    name = pick_runtimes([runtime])[0]
    models = {_BASE: load_model(base), _HEAD: load_model(head)}
    _check_inputs(models[_BASE].input_names, models[_HEAD].input_names)
    check = CheckOptions(sizes=timed_sizes(models[_BASE], sizes), spreads=(1.0,), threads=threads)
    plan = TimingPlan(budget_seconds=seconds, margin=margin, calibration=load_calibration(), extras=False)
    arms = [Arm(name=arm, model=model, runtime=get_runtime(name)) for arm, model in models.items()]
    comparison = bench(arms, check, target="models", baseline=_BASE, plan=plan)
    for arm in models:
        record = comparison.records[arm]
        if record.outcome is Outcome.SKIPPED:
            return record.reason
        if record.outcome is not Outcome.OK:
            raise SessionError(f"The {arm} model does not run on {name}: {record.reason}")
    return TimedPair(baseline=_timed(comparison, _BASE), candidate=_timed(comparison, _HEAD))


def _check_inputs(base: Sequence[str], head: Sequence[str]) -> None:
    from sdpa_onnx.errors import PlanError

    if base != head:
        raise PlanError(
            f"The base model has inputs {', '.join(base)}, the head model {', '.join(head)}.",
            hint="Only models with the same inputs can be compared.",
        )


def _timed(comparison: "TimedComparison", arm: str) -> TimedArm:
    record, sample = comparison.records[arm], comparison.samples[arm]
    return TimedArm(record=record, rounds=rounds_of(sample, record.clock), iterations=sample.wall_seconds.shape[-1])
