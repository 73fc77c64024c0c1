"""The worker that times one arm: what the timing service of `worker.timing` answers, as types and sentences."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from sdpa_onnx.core.records.timing_records import NodeTime
from sdpa_onnx.graph.files.held_folder import HeldFolder
from sdpa_onnx.runtimes.arm_job import ArmJob, KernelTimes, LoadTimes, RanFacts, Visit
from sdpa_onnx.runtimes.worker.on_engine import open_engine
from sdpa_onnx.runtimes.worker_process import WorkerService
from sdpa_onnx.runtimes.workers import FailureKind, Worker, WorkerAnswer, WorkerFailedError, WorkerFailure

__all__ = ["TimingWorker"]


class TimingWorker:
    """One process of one arm. Every method raises WorkerFailedError; after that the process is gone.

    It ends when the thread that made it ends, so make it in one that outlives it.

    Args:
        engine: Where its engine is, whose package is imported at the start; "" = one that takes any registered runtime.
        python: Interpreter; None = ours.
        threads: Pinned in the environment before anything is imported there.
        patience_seconds: Longest wait for one answer; the start may take longer.
        runtime: Our name of a runtime without an engine, whose package is imported at the start.
        seconds_left: Until the command must end; None = no limit.
    """

    def __init__(
        self,
        engine: str,
        *,
        python: Path | None,
        threads: int,
        patience_seconds: float,
        runtime: str = "",
        seconds_left: Callable[[], float] | None = None,
    ) -> None:
        self._engine = engine
        self._python = python
        self._folder: HeldFolder | None = None
        if python is not None and not engine:
            raise WorkerFailedError(
                f"{python} cannot be used: {runtime or 'this runtime'} runs in our environment only.",
                hint="Give the Python for an arm on another runtime, such as ort-cpu or openvino.",
            )
        self.worker = Worker(
            WorkerService.ON_ENGINE if engine else WorkerService.ON_SDPA_ONNX,
            engine or runtime,
            who=self._who(open_engine(engine).name if engine else runtime or "torch"),
            python=python,
            threads=threads,
            patience_seconds=patience_seconds,
            seconds_left=seconds_left,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def wait_ready(self) -> None:
        """Wait until it has imported what it needs."""
        self.worker.wait_ready()

    @property
    def version(self) -> str:
        """Of the package that its adapter imported; "" before it is ready, and where that adapter has many."""
        return self.worker.version

    @property
    def cpu_seconds(self) -> float:
        """CPU time that the process has used so far; see `Worker.cpu_seconds`."""
        return self.worker.cpu_seconds

    def load(self, job: ArmJob, *, patience_seconds: float | None = None) -> LoadTimes:
        """Load an arm, run it for the first time, at another length too, and bind it; what was there is freed."""
        self.worker.who = self._who(job.runtime)
        message = {
            "model": str(job.model),
            "folder": _text(job.folder),
            "feeds": str(job.inputs),
            "new_length_feeds": _text(job.new_length_inputs),
            "runtime": job.runtime,
            "threads": job.threads,
            "purpose": "timing",
            "optimise": True,
            "report": None,
            **job.names,
            "settings": dict(job.settings),
            "copies": job.copies,
        }
        fields = self._ask("load", {"job": message}, patience_seconds=patience_seconds).fields
        known = {name: fields[name] for name in LoadTimes.__slots__}
        return LoadTimes(**{**known, "warnings": tuple(fields["warnings"])})

    def visit(self, calls: int) -> Visit:
        """Call it so many times."""
        answer = self._ask("visit", {"calls": calls})
        return Visit(
            wall_ns=answer.arrays["wall_ns"],
            cpu_ns=answer.arrays["cpu_ns"],
            switches=answer.fields["switches"],
            faults=answer.fields["faults"],
            clock_mhz=answer.fields.get("clock_mhz", -1.0),
        )

    def after_idle(self) -> float:
        """Run once after the caller has left it alone for a while; wall seconds of that run."""
        return float(self._ask("after_idle").fields["seconds"])

    def kernel_times(self, calls: int) -> KernelTimes:
        """Medians over the same calls, by the runtime's own profile in a separate session."""
        fields = self._ask("kernel_times", {"calls": calls}).fields
        nodes = tuple(NodeTime(**node) for node in fields["nodes"])
        return KernelTimes(kernel_seconds=fields["kernels"], call_seconds=fields["call"], nodes=nodes)

    def ran(self, *, with_graph: bool = True) -> RanFacts:
        """What the session reports of what ran; the file of the graph is gone at `unload` and `stop`.

        Args:
            with_graph: Whether the model is loaded once more, for the graph after optimisation.
        """
        if self._folder is None:
            self._folder = HeldFolder("ran")
        fields = self._ask("ran", {"folder": self._folder.name, "with_graph": with_graph}).fields
        return RanFacts(facts=fields) if self._engine else RanFacts(report=_report(fields["report"]))

    def outputs(self, path: Path) -> None:
        """Write the outputs of the bound run as `runtimes.array_files` reads them."""
        self._ask("outputs", {"path": str(path)})

    def unload(self) -> None:
        """Free what is loaded, and the file of its graph; the process stays."""
        self._ask("unload")
        self._drop_folder()

    def stop(self) -> None:
        """End it now."""
        self.worker.stop()
        self._drop_folder()

    def _ask(
        self, request: str, fields: Mapping[str, object] | None = None, *, patience_seconds: float | None = None
    ) -> WorkerAnswer:
        try:
            answer = self.worker.ask(request, fields, patience_seconds=patience_seconds)
        except WorkerFailedError:
            self.stop()
            raise
        if isinstance(answer, WorkerFailure):
            self.stop()
            raise self._failed(answer)
        return answer

    def _who(self, runtime: str) -> str:
        return runtime if self._python is None else f"{runtime} in {self._python}"

    def _failed(self, failure: WorkerFailure) -> WorkerFailedError:
        text, who = failure.text.rstrip("."), self.worker.who
        if failure.kind is FailureKind.MEMORY or "bad_alloc" in text:
            return WorkerFailedError(f"{who} {failure.crash}.")
        if failure.kind is FailureKind.REPORTED:
            return WorkerFailedError(failure.text)
        if failure.kind is FailureKind.REFUSED:
            return WorkerFailedError(f"{who} {text}.")
        return _worded(self._engine, who, failure)

    def _drop_folder(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _worded(engine: str, who: str, failure: WorkerFailure) -> WorkerFailedError:
    """What the runtime raised, in the sentence of our own sessions."""
    what = "cannot load the model" if failure.stage == "load" else "failed"
    text = failure.text or failure.raised
    if not engine:
        return WorkerFailedError(f"{who} {what}: {text.rstrip('.')}.")
    from sdpa_onnx.runtimes.engine_runtime import failure_text

    return WorkerFailedError(failure_text(open_engine(engine), who, text, what=what))


def _report(reported: Mapping[str, Any]) -> object:
    """The finished report of a runtime without an engine."""
    from sdpa_onnx.runtimes.base import RanReport

    return RanReport(**{**reported, "warnings": tuple(reported["warnings"])})


def _text(path: Path | None) -> str | None:
    return str(path) if path is not None else None
