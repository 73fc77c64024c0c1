"""Worker processes, seen from the parent: started, asked, stopped; one that dies or hangs is told in one sentence."""

import contextlib
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.errors import SessionError
from sdpa_onnx.measure.arm_job import Adapter, ArmJob, KernelTimes, LoadTimes, RanFacts, Visit
from sdpa_onnx.measure.worker.pipe import receive, send
from sdpa_onnx.measure.worker_process import WorkerProcess, cannot_import, start_worker

__all__ = ["Worker", "WorkerFailedError"]

# How long a worker that is done may take to leave by itself, and how often what it prints is looked at meanwhile.
_LEAVING_SECONDS = 1.0
_LOOK_SECONDS = 1.0
# A loaded machine imports any runtime in this time.
_STARTING_SECONDS = 120.0

_Arrays = Mapping[str, NDArray[np.int64]]


class WorkerFailedError(SessionError):
    """The worker refused, crashed, hung or was killed; the sentence says which."""


class Worker:
    """One process of one arm. Every method raises WorkerFailedError; after that the process is gone.

    It ends when the thread that made it ends, so make it in one that outlives it.

    Args:
        adapter: How it loads models; its package is imported at the start.
        python: Interpreter; None = ours.
        threads: Pinned in the environment before anything is imported there.
        patience_seconds: Longest wait for one answer; the start may take longer.
        runtime: Our name of one whose package is imported at the start too; "" where the adapter tells.
    """

    def __init__(
        self, adapter: Adapter, *, python: Path | None, threads: int, patience_seconds: float, runtime: str = ""
    ) -> None:
        self._adapter = adapter
        self._python = python
        self._patience_seconds = patience_seconds
        self._runtime = adapter.value
        self._ready = False
        self._version = ""
        self._cpu_seconds = 0.0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if python is not None and adapter is Adapter.SDPA_ONNX:
            raise WorkerFailedError(
                f"{python} cannot be used: only ONNX Runtime and OpenVINO run in another environment.",
                hint="Give the Python for an arm on ort-cpu, ort-cuda or openvino.",
            )
        try:
            self._process: WorkerProcess | None = start_worker(adapter, python=python, threads=threads, runtime=runtime)
        except OSError as error:
            raise WorkerFailedError(
                f"{python or 'Python'} cannot be started: {error.strerror or error}.",
                hint="Give the path of a Python interpreter, such as env/bin/python.",
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Of the process, or -1 if it is gone."""
        return self._process.process.pid if self._process is not None else -1

    def wait_ready(self) -> None:
        """Wait until it has imported what it needs."""
        if self._ready:
            return
        header, _ = self._answer(max(self._patience_seconds, _STARTING_SECONDS))
        if header.get("failed") == "import":
            self.stop()
            sentence, hint = cannot_import(self._python, header["text"])
            raise WorkerFailedError(sentence, hint=hint)
        self._version = header["version"]
        self._ready = True

    @property
    def version(self) -> str:
        """Of the package that its adapter imported; "" before it is ready, and where that adapter has many."""
        return self._version

    def load(self, job: ArmJob) -> LoadTimes:
        """Load an arm, run it for the first time, at another length too, and bind it; what was there is freed."""
        self._runtime = job.runtime
        header, _ = self._ask(
            "load",
            model=str(job.model),
            folder=_text(job.folder),
            inputs=str(job.inputs),
            new_length_inputs=_text(job.new_length_inputs),
            runtime=job.runtime,
            threads=job.threads,
            settings=dict(job.settings),
            copies=job.copies,
        )
        known = {name: header[name] for name in LoadTimes.__slots__}
        return LoadTimes(**{**known, "warnings": tuple(header["warnings"])})

    def visit(self, calls: int) -> Visit:
        """Call it so many times."""
        header, arrays = self._ask("visit", calls=calls)
        return Visit(
            wall_ns=arrays["wall_ns"],
            cpu_ns=arrays["cpu_ns"],
            switches=header["switches"],
            faults=header["faults"],
            clock_mhz=header.get("clock_mhz", -1.0),
        )

    def after_idle(self) -> float:
        """Run once, the caller having left it alone for a while; wall seconds of that run."""
        header, _ = self._ask("after_idle")
        return float(header["seconds"])

    def kernel_times(self, calls: int) -> KernelTimes:
        """Medians over the same calls, by the runtime's own profile in a session apart."""
        header, _ = self._ask("kernel_times", calls=calls)
        return KernelTimes(kernel_seconds=header["kernels"], call_seconds=header["call"])

    def ran(self, *, with_graph: bool = True) -> RanFacts:
        """What the session says of what ran; the file of the graph is gone at `unload` and `stop`.

        Args:
            with_graph: Whether the model is loaded once more, for the graph after optimisation.
        """
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory()
        header, _ = self._ask("ran", folder=self._folder.name, with_graph=with_graph)
        optimised = header.get("optimised")
        return RanFacts(
            assigned=header["assigned"],
            optimised=Path(optimised) if optimised is not None else None,
            report=_report(self._adapter, header.get("report")),
        )

    def outputs(self, path: Path) -> None:
        """Write the outputs of the bound run as `measure.arrays` reads them."""
        self._ask("outputs", path=str(path))

    def unload(self) -> None:
        """Free what is loaded, and the file of its graph; the process stays."""
        self._ask("unload")
        self._drop_folder()

    @property
    def cpu_seconds(self) -> float:
        """CPU time that the process has used so far; where the system does not tell, up to its last answer."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                # Linux: the clock of another process. Source: clock_getcpuclockid(3).
                self._cpu_seconds = time.clock_gettime(~self._process.process.pid << 3 | 2)
        return self._cpu_seconds

    def stop(self) -> None:
        """End it now."""
        live, self._process = self._process, None
        if live is not None:
            live.end()
            live.errors.close()
        self._drop_folder()

    def _ask(self, door: str, **request: object) -> tuple[dict[str, Any], _Arrays]:
        self.wait_ready()
        try:
            send(self._live().pipe, {"do": door, **request})
        except OSError as error:
            raise self._died() from error
        header, arrays = self._answer(self._patience_seconds)
        self._cpu_seconds = header.get("cpu_seconds", self._cpu_seconds)
        if "failed" in header:
            raise self._refused(header)
        return header, arrays

    def _answer(self, patience_seconds: float) -> tuple[dict[str, Any], _Arrays]:
        live = self._live()
        deadline = time.monotonic() + patience_seconds
        try:
            while not live.pipe.poll(max(0.0, min(_LOOK_SECONDS, deadline - time.monotonic()))):
                live.trim()
                if time.monotonic() >= deadline:
                    self.stop()
                    raise WorkerFailedError(f"{self._who} gave no answer in {patience_seconds:g} s.")
            answer = receive(live.pipe)
        except (EOFError, OSError) as error:
            raise self._died() from error
        live.trim()
        return answer

    def _live(self) -> WorkerProcess:
        if self._process is None:
            raise WorkerFailedError(f"{self._who} is not running: its process is gone.")
        return self._process

    @property
    def _who(self) -> str:
        return self._runtime if self._python is None else f"{self._runtime} in {self._python}"

    def _died(self) -> WorkerFailedError:
        live = self._live()
        status = live.end(wait_seconds=_LEAVING_SECONDS)
        sentence, hint = live.not_started(status, self._python) if not self._ready else (None, None)
        sentence = sentence or f"{self._who} {live.how_ended(status)}."
        self.stop()
        return WorkerFailedError(sentence, hint=hint)

    def _refused(self, header: Mapping[str, Any]) -> WorkerFailedError:
        self.stop()
        text = header["text"].rstrip(".")
        if header["failed"] == "memory" or "bad_alloc" in text:
            return WorkerFailedError(f"{self._who} ran out of memory{': ' + text if text else ''}.")
        if header["failed"] == "told":
            return WorkerFailedError(header["text"])
        if header["failed"] == "refused":
            return WorkerFailedError(f"{self._who} {text}.")
        return _worded(self._adapter, self._who, header)

    def _drop_folder(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _worded(adapter: Adapter, who: str, header: Mapping[str, Any]) -> WorkerFailedError:
    """What the runtime raised, as our own sessions word it."""
    what = "cannot load the model" if header["stage"] == "load" else "failed"
    text = header["text"] or header["type"]
    match adapter:
        case Adapter.ONNXRUNTIME:
            from sdpa_onnx.runtimes.ort_errors import failure_text

            return WorkerFailedError(failure_text(who, text, what=what))
        case Adapter.OPENVINO:
            from sdpa_onnx.runtimes.openvino_session import clean_message

            return WorkerFailedError(f"{who} {what}: {clean_message(text) or header['type']}.")
        case Adapter.SDPA_ONNX:
            return WorkerFailedError(f"{who} {what}: {text.rstrip('.')}.")


def _report(adapter: Adapter, told: Any) -> object:
    """A finished report of one of our runtimes; OpenVINO's own words as they are."""
    if adapter is not Adapter.SDPA_ONNX:
        return told
    from sdpa_onnx.runtimes.base import RanReport

    return RanReport(**{**told, "warnings": tuple(told["warnings"])})


def _text(path: Path | None) -> str | None:
    return str(path) if path is not None else None
