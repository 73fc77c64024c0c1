"""A worker whose runtime crashes or hangs on some inputs: one query kills it, two queries make it hang."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Session, Supported, Unsupported
from sdpa_onnx.runtimes.worker.main import serve
from sdpa_onnx.runtimes.worker.sessions import SessionService
from sdpa_onnx.runtimes.worker_process import WorkerProcess, WorkerService
from sdpa_onnx.runtimes.workers import Worker
from tests.workflows.oracle_runtime import OracleRuntime

Arrays = Mapping[str, NDArray[np.generic]]
KILLING_QUERIES, HANGING_QUERIES = 1, 2


def queries_of(query: NDArray[np.generic]) -> int:
    return query.shape[2] if query.ndim == 4 else query.shape[1]


@dataclass
class DyingSession:
    session: Session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def run(self, inputs: Arrays) -> dict[str, NDArray[np.generic]]:
        queries = queries_of(inputs["Q"])
        if queries == KILLING_QUERIES:
            os.kill(os.getpid(), signal.SIGKILL)
        if queries == HANGING_QUERIES:
            time.sleep(600.0)
        return self.session.run(inputs)

    def bind(self, inputs: Arrays) -> Callable[[], None]:
        raise NotImplementedError

    def ran(self) -> RanReport:
        return self.session.ran()


class DyingRuntime:
    """The oracle, except for those inputs."""

    name = "ort-cpu"
    measures_time = False

    def available(self) -> Supported | Unsupported:
        return Supported()

    def version(self) -> str:
        return "dying 1"

    def supports(self, model: OnnxModel) -> Supported | Unsupported:
        return Supported()

    def load(self, model: OnnxModel, options: LoadOptions) -> Session:
        return DyingSession(OracleRuntime().load(model, options))


START = "sdpa_onnx.runtimes.workers.start_worker"


def start_command(command: list[str], *, first: bytes = b"") -> WorkerProcess:
    """Start a program as a worker; its last argument is the file descriptor of its pipe.

    Args:
        command: The program, with arguments.
        first: A header that is sent on its behalf before it runs.
    """
    parent_end, child_end = Pipe()
    if first:
        child_end.send_bytes(first)
    errors = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed with the process
    process = subprocess.Popen(
        [*command, str(child_end.fileno())],
        cwd=Path(__file__).parents[2],
        pass_fds=[child_end.fileno()],
        stdout=subprocess.DEVNULL,
        stderr=errors,
    )
    child_end.close()
    return WorkerProcess(process, command, parent_end, errors, 0)


READY = b'{"ready": true, "version": "", "arrays": []}'


def kill(worker: Worker) -> None:
    """Kill its process and wait for its end."""
    assert worker._process is not None
    worker._process.process.kill()
    worker._process.process.wait()


def start_dying(service: WorkerService, name: str, *, python: Path | None, threads: int | None) -> WorkerProcess:
    """Start such a worker; a replacement for the function that START names."""
    assert service is WorkerService.SESSIONS
    return start_command([sys.executable, "-m", "tests.workflows.dying_child"])


if __name__ == "__main__":
    serve(SessionService(DyingRuntime()), Connection(int(sys.argv[1])))
