"""Time models: `bench`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sdpa_onnx.api.models import load
from sdpa_onnx.api.record_list import RecordList

if TYPE_CHECKING:
    from sdpa_onnx.core.records.records import TimingRecord
    from sdpa_onnx.graph.model import ModelSource

__all__ = ["bench"]


def bench(
    models: "Mapping[str, ModelSource]",
    *,
    runtime: str = "ort-cpu",
    sizes: Mapping[str, int] | None = None,
    threads: int = 1,
    seconds: float = 30.0,
) -> "RecordList[TimingRecord]":
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
    from sdpa_onnx.workflows.check.check_options import CheckOptions
    from sdpa_onnx.workflows.check.requested_sizes import timed_sizes
    from sdpa_onnx.workflows.timing.comparison import Arm
    from sdpa_onnx.workflows.timing.comparison import bench as time_arms

    loaded = {name: load(model) for name, model in models.items()}
    arms = [Arm(name=name, model=model, runtime=get_runtime(runtime)) for name, model in loaded.items()]
    check = CheckOptions(sizes=timed_sizes(arms[0].model, sizes or {}), threads=threads, spreads=(1.0,))
    plan = TimingPlan(budget_seconds=seconds, calibration=load_calibration())
    comparison = time_arms(arms, check, target="models", baseline=arms[0].name, plan=plan)
    return RecordList(comparison.records.values())
