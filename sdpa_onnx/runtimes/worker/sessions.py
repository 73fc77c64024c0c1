"""Load and run models in one registered runtime, many sessions at a time. Runs in our own environment only."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from pathlib import Path
from typing import Any

from sdpa_onnx.graph.late_imports import defer_slow_imports
from sdpa_onnx.runtimes.base import LoadOptions, Purpose, Runtime, Session, get_runtime

from .own_errors import reported_errors
from .pipe import RefusalError

__all__ = ["SessionService", "open_service"]

Answer = tuple[dict[str, Any], dict[str, Any]]


class SessionService:
    """The sessions of a runtime, by number."""

    # There is no end of what runtimes print.
    keeps_prints = False
    stage = "run"

    def __init__(self, runtime: Runtime) -> None:
        self.version = ""  # the parent asks its own
        self.runtime = runtime
        self._sessions: dict[int, Session] = {}
        self._numbers = itertools.count()

    def do_load(self, *, folder: str | None, options: dict[str, Any], arrays: dict[str, Any]) -> Answer:
        from sdpa_onnx.graph.model import load_sent

        load = LoadOptions(**{**options, "purpose": Purpose(options["purpose"])})
        number = next(self._numbers)
        with reported_errors():
            loaded = load_sent(arrays["model"].tobytes(), None if folder is None else Path(folder))
            self._sessions[number] = self.runtime.load(loaded, load).__enter__()
        return {"session": number}, {}

    def do_run(self, *, session: int, arrays: dict[str, Any] | None = None) -> Answer:
        with reported_errors():
            return {}, self._session(session).run(arrays or {})

    def do_ran(self, *, session: int) -> Answer:
        with reported_errors():
            report = self._session(session).ran()
        return {"report": {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}}, {}

    def do_close(self, *, session: int) -> Answer:
        with reported_errors():
            self._session(session).__exit__(None, None, None)
        del self._sessions[session]
        return {}, {}

    def _session(self, number: int) -> Session:
        if number not in self._sessions:
            raise RefusalError("has no such session")
        return self._sessions[number]


def open_service(runtime: str) -> SessionService:
    """Serve a registered runtime; its package is imported now, while the parent does something else.

    Raises:
        ReportedError: If there is none of that name.
    """
    defer_slow_imports()
    with reported_errors():
        opened = SessionService(get_runtime(runtime))
    with contextlib.suppress(Exception):  # `load` tries again, and reports it
        opened.runtime.available()
    return opened
