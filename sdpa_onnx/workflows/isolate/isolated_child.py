"""The child of `guarded`: loads and runs models of one runtime until its pipe closes."""

import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import onnx

from sdpa_onnx.errors import SdpaOnnxError
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, Session, get_runtime
from sdpa_onnx.workflows.isolate.start_child import quieten

__all__ = ["READY", "serve"]

# Said before anything is asked: from here on, an end of the process is the runtime's.
READY = ("", "ready")


def serve(runtime: Runtime, pipe: "Connection[Any, Any]") -> None:
    """Say READY, then answer ("load" | "run" | "ran" | "close", ...) until the pipe closes.

    An answer is ("", value) or (refusal, its cause).
    """
    sessions: dict[int, Session] = {}
    doors: dict[str, Callable[..., Any]] = {
        "load": lambda data, folder, options: _load(runtime, sessions, data, folder, options),
        "run": lambda number, feeds: sessions[number].run(feeds),
        "ran": lambda number: sessions[number].ran(),
        "close": lambda number: sessions.pop(number).__exit__(None, None, None),
    }
    pipe.send(READY)
    while True:
        try:
            word, *rest = pipe.recv()
        except EOFError:
            return
        try:
            answer = ("", doors[word](*rest))
        except (SdpaOnnxError, KeyError) as error:  # KeyError: a session of a child that is gone
            answer = (str(error), str(error.__cause__ or ""))
        pipe.send(answer)


def _load(
    runtime: Runtime, sessions: dict[int, Session], data: bytes, folder: Path | None, options: LoadOptions
) -> int:
    number = len(sessions) and max(sessions) + 1
    sessions[number] = runtime.load(load_model(onnx.load_from_string(data), folder=folder), options).__enter__()
    return number


if __name__ == "__main__":
    found = get_runtime(sys.argv[1])
    quieten()
    serve(found, Connection(int(sys.argv[2])))
