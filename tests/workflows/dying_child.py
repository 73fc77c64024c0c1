"""A child of `guarded` whose runtime dies or hangs on some inputs: one query kills it, two queries make it hang."""

import os
import signal
import subprocess
import sys
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
from sdpa_onnx.workflows.isolate import isolated_runtime as guarded
from sdpa_onnx.workflows.isolate.isolated_child import serve
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
    """The oracle, but for that."""

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


def start_dying(name: str) -> guarded._Child:
    """Start such a child; to be planted in the place of `guarded._start`."""
    ours, theirs = Pipe()
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.workflows.dying_child", str(theirs.fileno())]
    process = subprocess.Popen(command, cwd=root, pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL)
    theirs.close()
    return guarded._Child(process, ours)


if __name__ == "__main__":
    serve(DyingRuntime(), Connection(int(sys.argv[1])))
