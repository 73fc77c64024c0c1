"""The main loop of a worker: open one service, report that it is ready, and answer requests until the pipe ends.

A service is an object of a module in this folder. It has `version`, `stage`, `keeps_prints`, and a method "do_NAME"
for each request; the fields and arrays of a request are its arguments, and it returns those of the answer. What a
service raises goes to the parent unchanged, which makes the sentence.
"""

from __future__ import annotations

import importlib
import os
import time
from multiprocessing.connection import Connection
from typing import Any

from .orphan import die_with
from .pipe import ReportedError, is_refusal, receive, send

__all__ = ["main", "serve"]


def main(service: str, descriptor: int, parent: int, name: str) -> None:
    """Import what a service needs, and serve.

    Args:
        service: Name of its module: a value of `worker_process.WorkerService`.
        descriptor: Of the pipe.
        parent: Process that started this one.
        name: What the service is opened with, such as a runtime.
    """
    die_with(parent)
    pipe: Connection[Any, Any] = Connection(descriptor)
    try:
        opened = importlib.import_module("." + service, __package__).open_service(name)
    except Exception as error:  # a package may raise anything
        failure = _failure(error)
        first = (failure["text"].strip().splitlines() or [""])[0]
        is_import = failure["failed"] != "reported"
        send(pipe, {**failure, "failed": "import", "text": f"{failure['type']}: {first}"} if is_import else failure)
        return
    serve(opened, pipe)


def serve(service: Any, pipe: Connection[Any, Any]) -> None:
    """Report ready, from when on an end of the process is the runtime's; then answer until the pipe ends."""
    send(pipe, {"ready": True, "version": service.version})
    if not service.keeps_prints:
        _drop_prints()
    while True:
        try:
            request, arrays = receive(pipe)
        except (EOFError, OSError):
            return
        if arrays:
            request["arrays"] = arrays
        try:
            header, arrays = getattr(service, "do_" + request.pop("do"))(**request)
        except Exception as error:
            header, arrays = _failure(error), {}
        send(pipe, {**header, "stage": service.stage, "cpu_seconds": time.process_time()}, arrays)


def _failure(error: Exception) -> dict[str, str]:
    failed, cause = "raised", error.__cause__ or ""
    if isinstance(error, ReportedError):
        failed, cause = "reported", error.cause
    elif is_refusal(error):
        failed = "refused"
    elif isinstance(error, MemoryError):
        failed = "memory"
    return {"failed": failed, "text": str(error), "type": type(error).__name__, "cause": str(cause)}


def _drop_prints() -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)
