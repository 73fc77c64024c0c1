"""`sdpa-onnx export --bench`: time the exported file against the module that it came from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sdpa_onnx.cli.options import PATIENCE_SECONDS

if TYPE_CHECKING:
    from sdpa_onnx.core.records.records import Record
    from sdpa_onnx.graph.model import OnnxModel
    from sdpa_onnx.workflows.bench.bench_files import BenchResult, PreparedBench

__all__ = ["TimedExport", "time_export"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedExport:
    """The timing of an exported file."""

    prepared: "PreparedBench"
    results: "tuple[BenchResult, ...]"

    @property
    def records(self) -> "list[Record]":
        """The timing and the judgement of every arm."""
        found: list[Record] = list(self.prepared.contest.refused)
        for one in self.results:
            found += [*one.records, *one.numbers.records]
        return found

    def show(self) -> None:
        """Print the tables of `bench`."""
        from sdpa_onnx.cli.show import show_bench

        against = self.prepared.task.against
        show_bench(self.results, self.prepared.contest.refused, self.records, as_json=False, against=against)


def time_export(
    model: "OnnxModel",
    path: Path,
    *,
    runtime: str,
    seed: int,
    patience_seconds: float = PATIENCE_SECONDS,
    on_step: Callable[[str], None] = lambda _: None,
) -> TimedExport:
    """Time a file and its module, in eager mode and compiled.

    Args:
        model: As exported, with its module: the weights of the file are those of that object. Of a bare attention there
            is no module, and PyTorch runs the same attention.
        path: Where the file was written.
        runtime: Runtime of the file.
        seed: Seed of the inputs.
        patience_seconds: Longest wait for one answer.
        on_step: Called with a description of each step.
    """
    from sdpa_onnx.measure.calibration import load_calibration
    from sdpa_onnx.measure.timing_plan import TimingPlan
    from sdpa_onnx.workflows.bench.arms import ArmChoice
    from sdpa_onnx.workflows.bench.bench_files import BenchTask, prepare, time_all
    from sdpa_onnx.workflows.check.check_options import CheckOptions
    from sdpa_onnx.workflows.check.run_context import MODULE_RUNTIME

    has_module = model.bind is not None
    task = BenchTask(
        paths=[path],
        loaded={path: model},
        choice=ArmChoice(runtimes=(runtime,) if has_module else (runtime, MODULE_RUNTIME)),
        check=CheckOptions(sizes={}, seed=seed),
        plan=TimingPlan(calibration=load_calibration(), seed=seed),
        patience_seconds=patience_seconds,
        against=str(path) if has_module else "",
    )
    prepared = prepare(task, on_step=on_step)
    return TimedExport(prepared=prepared, results=tuple(time_all(prepared, on_step=on_step)))
