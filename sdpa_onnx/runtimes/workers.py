"""A worker process as the parent sees it: started, sent requests, stopped; how it ends is one sentence.

Knows no service; what a failure means is decided by who sent the request.
"""

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from numpy.typing import NDArray

from sdpa_onnx.errors import NoAnswerError, SessionError
from sdpa_onnx.graph.files.whole_file import open_files_hint
from sdpa_onnx.runtimes.worker.pipe import receive, send
from sdpa_onnx.runtimes.worker_process import NOT_THE_RUNTIME, WorkerProcess, WorkerService, cannot_import, start_worker

__all__ = [
    "FailureKind",
    "Worker",
    "WorkerAnswer",
    "WorkerEndedError",
    "WorkerFailedError",
    "WorkerFailure",
    "WorkerNotStartedError",
    "WorkerSilentError",
]

# How long a worker that is done may take to leave by itself, and how often its output is trimmed meanwhile.
_LEAVING_SECONDS = 1.0
_TRIM_SECONDS = 1.0
# A loaded machine imports any runtime in this time.
_STARTING_SECONDS = 120.0

Arrays = Mapping[str, NDArray[Any]]


class WorkerFailedError(SessionError):
    """The worker refused, crashed, hung or was killed; the sentence says which."""


class WorkerNotStartedError(WorkerFailedError):
    """It ended, or hung, before it was ready: that is no finding about what it serves."""


class WorkerSilentError(WorkerFailedError, NoAnswerError):
    """It lived and gave no answer in time."""


class WorkerEndedError(WorkerFailedError):
    """Its process ended; whether by what it serves or from outside is not known after one time."""


class FailureKind(StrEnum):
    """What a worker that lives reports in place of an answer.

    REPORTED: one of our own errors, a whole sentence. REFUSED: the worker itself refuses, a predicate. MEMORY and
    RAISED: an exception of something else. IMPORT: the same, while it started.
    """

    REPORTED = "reported"
    REFUSED = "refused"
    MEMORY = "memory"
    RAISED = "raised"
    IMPORT = "import"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAnswer:
    """Fields and arrays of an answer."""

    fields: Mapping[str, Any]
    arrays: Arrays = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailure:
    """A request that failed in a worker that lives.

    Args:
        kind: What kind.
        text: Text of the exception.
        raised: Name of its class.
        cause: Text of its cause, or "".
        stage: What the service was at: "load" or "run".
    """

    kind: FailureKind
    text: str
    raised: str
    cause: str = ""
    stage: str = "run"

    @property
    def crash(self) -> str:
        """A predicate without a final stop, of an exception that is no refusal."""
        text = " ".join(self.text.split()).rstrip(".")
        if self.kind is FailureKind.MEMORY or "bad_alloc" in text:
            return f"ran out of memory{': ' + text if text else ''}"
        return f"crashed: {self.raised}{': ' + text if text else ''}"


class Worker:
    """One process that serves. Where a method raises WorkerFailedError, the process is gone.

    It ends when the thread that made it ends, so make it in one that outlives it.

    Args:
        service: What it serves.
        name: What the service is opened with; see `start_worker`.
        who: Subject of the sentences about it.
        python: Interpreter of another environment; None = ours.
        threads: Pinned in its environment before anything is imported there; None = as they are.
        patience_seconds: Longest wait for one answer; the start may take longer.
        seconds_left: Until the command must end: no wait is longer; None = no limit.
    """

    def __init__(
        self,
        service: WorkerService,
        name: str = "",
        *,
        who: str,
        python: Path | None = None,
        threads: int | None = None,
        patience_seconds: float,
        seconds_left: Callable[[], float] | None = None,
    ) -> None:
        self.who = who
        self._seconds_left = seconds_left or (lambda: math.inf)
        self.patience_seconds = patience_seconds
        self._python = python
        self._ready = False
        self._version = ""
        self._cpu_seconds = 0.0
        try:
            self._process: WorkerProcess | None = start_worker(service, name, python=python, threads=threads)
        except OSError as error:
            raise WorkerNotStartedError(
                f"{python or 'Python'} cannot be started: {error.strerror or error}.",
                hint=open_files_hint(error) or "Give the path of a Python interpreter, such as env/bin/python.",
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Of the process, or -1 if it is gone."""
        return self._process.process.pid if self._process is not None else -1

    @property
    def version(self) -> str:
        """Of the package that its service imported; "" before it is ready, and where the service has many."""
        return self._version

    @property
    def cpu_seconds(self) -> float:
        """CPU time that the process has used so far; up to its last answer where the system does not report it."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                # Linux: the clock of another process. Source: clock_getcpuclockid(3).
                self._cpu_seconds = time.clock_gettime(~self._process.process.pid << 3 | 2)
        return self._cpu_seconds

    def wait_ready(self) -> None:
        """Wait until it has imported what it needs.

        Raises:
            WorkerNotStartedError: If it cannot, or ends, or hangs.
        """
        if self._ready:
            return
        seconds = max(self.patience_seconds, _STARTING_SECONDS)
        received = self._received(seconds)
        if received is None:
            sentence, hint = f"The process for {self.who} did not start: it sent nothing for {seconds:g} s.", None
            raise WorkerNotStartedError(sentence, hint=NOT_THE_RUNTIME if self._python is None else hint)
        if "failed" in received.fields:
            self.stop()
            text = received.fields["text"]
            if received.fields["failed"] == FailureKind.REPORTED:
                raise WorkerNotStartedError(text)
            sentence, hint = cannot_import(self._python, text)
            raise WorkerNotStartedError(sentence, hint=hint)
        self._version = received.fields["version"]
        self._ready = True

    def ask(
        self,
        request: str,
        fields: Mapping[str, object] | None = None,
        arrays: Arrays | None = None,
        *,
        patience_seconds: float | None = None,
    ) -> WorkerAnswer | WorkerFailure:
        """Send one request and wait for the answer; a failure leaves the process as it is.

        Args:
            request: Name.
            fields: Its fields, as JSON has them.
            arrays: Its arrays.
            patience_seconds: Longest wait for this answer; None = that of all.

        Raises:
            WorkerNotStartedError: See `wait_ready`.
            WorkerEndedError: If its process ended.
            WorkerSilentError: If it gave no answer in time.
        """
        self.wait_ready()
        try:
            send(self._live().pipe, {"do": request, **(fields or {})}, arrays)
        except OSError as error:
            raise self._ended() from error
        seconds = self.patience_seconds if patience_seconds is None else patience_seconds
        answer = self._received(seconds)
        if answer is None:
            raise WorkerSilentError(f"{self.who} gave no answer in {seconds:g} s.")
        self._cpu_seconds = answer.fields.get("cpu_seconds", self._cpu_seconds)
        if "failed" not in answer.fields:
            return answer
        return WorkerFailure(
            kind=FailureKind(answer.fields["failed"]),
            text=answer.fields["text"],
            raised=answer.fields["type"],
            cause=answer.fields["cause"],
            stage=answer.fields["stage"],
        )

    def stop(self) -> None:
        """End it now."""
        live, self._process = self._process, None
        if live is not None:
            live.end()
            live.errors.close()

    def kill(self) -> None:
        """End its process, from any thread; who waits for an answer gets WorkerEndedError."""
        live = self._process
        if live is not None:
            live.process.kill()

    def _received(self, seconds: float) -> WorkerAnswer | None:
        """What it sends next; None, and the process is ended, if that is nothing in this time."""
        live = self._live()
        deadline = time.monotonic() + min(seconds, self._seconds_left())
        try:
            while not live.pipe.poll(max(0.0, min(_TRIM_SECONDS, deadline - time.monotonic()))):
                live.trim()
                if time.monotonic() >= deadline:
                    self.stop()
                    return None
            fields, arrays = receive(live.pipe)
        except (EOFError, OSError) as error:
            raise self._ended() from error
        live.trim()
        return WorkerAnswer(fields=fields, arrays=arrays)

    def _live(self) -> WorkerProcess:
        if self._process is None:
            raise WorkerFailedError(f"{self.who} is not running: its process is gone.")
        return self._process

    def _ended(self) -> WorkerFailedError:
        live = self._live()
        status = live.end(wait_seconds=_LEAVING_SECONDS)
        error: WorkerFailedError
        if self._ready:
            error = WorkerEndedError(f"{self.who} {live.how_ended(status)}.")
        else:
            sentence, hint = live.not_started(status, self._python, self.who)
            error = WorkerNotStartedError(sentence, hint=hint)
        self.stop()
        return error
