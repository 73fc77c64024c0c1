"""`sdpa-onnx export --bench`: time the exported file against the module that it came from."""

from pathlib import Path
from typing import TYPE_CHECKING

from sdpa_onnx.cli.options import PATIENCE_SECONDS
from sdpa_onnx.cli.step_progress import StepProgress

if TYPE_CHECKING:
    from sdpa_onnx.graph.model import OnnxModel
    from sdpa_onnx.measure.deadline import Deadline
    from sdpa_onnx.workflows.bench.within_limit import TimedBench

__all__ = ["show_timed_export", "time_export"]


def time_export(
    model: "OnnxModel",
    path: Path,
    *,
    runtime: str,
    seed: int,
    patience_seconds: float = PATIENCE_SECONDS,
    deadline: "Deadline",
) -> "TimedBench":
    """Time a file and its module, in eager mode and compiled.

    Args:
        model: As exported, with its module: the weights of the file are those of that object. Of a bare attention there
            is no module, and PyTorch runs the same attention.
        path: Where the file was written.
        runtime: Runtime of the file.
        seed: Seed of the inputs.
        patience_seconds: Longest wait for one answer.
        deadline: When it must end; what is not reached is skipped.
    """
    from sdpa_onnx.measure.calibration import load_calibration
    from sdpa_onnx.measure.timing_plan import TimingPlan
    from sdpa_onnx.workflows.bench.arms import ArmChoice
    from sdpa_onnx.workflows.bench.bench_files import BenchTask
    from sdpa_onnx.workflows.bench.within_limit import time_within_limit
    from sdpa_onnx.workflows.check.check_options import CheckOptions
    from sdpa_onnx.workflows.check.run_context import MODULE_RUNTIME

    has_module = model.bind is not None
    task = BenchTask(
        paths=[path],
        loaded={path: model},
        choice=ArmChoice(runtimes=(runtime,) if has_module else (runtime, MODULE_RUNTIME)),
        check=CheckOptions(sizes={}, seed=seed),
        plan=TimingPlan(calibration=load_calibration(), seed=seed, deadline=deadline),
        patience_seconds=patience_seconds,
        against=str(path) if has_module else "",
    )
    with StepProgress("timing") as progress:
        return time_within_limit(task, on_step=progress.at)


def show_timed_export(timed: "TimedBench") -> None:
    """Print the tables of `bench`."""
    from sdpa_onnx.cli.show import print_plain, show_bench

    if timed.prepared is None:
        print_plain(["Nothing was timed: the time limit was reached first; use a larger --budget."])
        return
    prepared = timed.prepared
    show_bench(timed.results, prepared.contest.refused, timed.records, as_json=False, against=prepared.task.against)
