"""Run a runtime in a worker process, so that a crash or a hang is a finding and does not end our process.

The worker keeps the loaded models; when it dies, the next call starts another. Times nothing: arrays are copied in
both directions.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import InitVar, asdict, dataclass, field
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.errors import NoAnswerError, RuntimeNotFoundError, RuntimeUnavailableError, SessionError
from sdpa_onnx.graph.files.saved_files import LinkedFiles
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Runtime, Session, Supported, Unsupported, get_runtime
from sdpa_onnx.runtimes.worker_process import WorkerService
from sdpa_onnx.runtimes.workers import (
    FailureKind,
    Worker,
    WorkerAnswer,
    WorkerEndedError,
    WorkerFailedError,
    WorkerFailure,
    WorkerNotStartedError,
    WorkerSilentError,
)
from sdpa_onnx.workflows.isolate.fenced_runtime import FencedRuntime, ProcessDiedError
from sdpa_onnx.workflows.isolate.shared_workers import shared_by_command
from sdpa_onnx.workflows.isolate.step_limit import no_step

__all__ = ["GuardedRuntime", "ProcessDiedError", "guarded_runtime", "own_process"]

Array = NDArray[np.generic]
Answer = TypeVar("Answer")

# Longest wait for one answer, seconds: far longer than any small attention needs, short enough for a user.
_PATIENCE_SECONDS = 20.0


class _SilentError(ProcessDiedError, NoAnswerError):
    """The process is alive and did not answer in time."""


class _EndedError(ProcessDiedError):
    """The process ended; after one time it is unknown whether the runtime or something else ended it."""


@dataclass(slots=True)
class GuardedRuntime:
    """A registered runtime in a separate process; call `stop` after use.

    Args:
        name: Registered name.
        patience_seconds: Longest wait for one answer.
        starting: Its first process, where that was started already.
    """

    name: str
    patience_seconds: float = _PATIENCE_SECONDS
    starting: InitVar[Worker | None] = None
    measures_time: bool = False
    _real: FencedRuntime = field(init=False)
    _worker: Worker | None = field(default=None, init=False)
    _workers: int = field(default=0, init=False)

    def __post_init__(self, starting: Worker | None) -> None:
        self._real = FencedRuntime(get_runtime(self.name))
        if starting is not None:
            self._worker, self._workers = starting, 1

    def available(self) -> Supported | Unsupported:
        """The answer of the runtime."""
        return self._real.available()

    def version(self) -> str:
        """The version of the runtime."""
        return self._real.version()

    def supports(self, model: OnnxModel) -> Supported | Unsupported:
        """The answer of the runtime; no model is loaded."""
        return self._real.supports(model)

    def load(self, model: OnnxModel, options: LoadOptions) -> Session:
        """Load a model in the worker.

        Raises:
            ProcessDiedError: If the worker died or did not answer.
            SessionError: If the runtime refuses the model.
        """
        session = GuardedSession(self, model.linked_with_sites(), options)
        session.number()
        return session

    @property
    def workers(self) -> int:
        """Number of workers started; the sessions of earlier ones are lost."""
        return self._workers if self._worker is not None else self._workers + 1

    def start(self) -> None:
        """Start the worker now instead of at the first request, for a caller that measures time.

        Raises:
            RuntimeUnavailableError: If no worker starts.
        """
        self._started()

    def ask(
        self, request: str, fields: Mapping[str, object], arrays: Mapping[str, Array] | None = None
    ) -> WorkerAnswer:
        """Send one request and wait for the answer.

        Raises:
            ProcessDiedError: If the worker died or did not answer in time.
            SessionError: If the runtime refused.
            RuntimeUnavailableError: If no worker starts.
        """
        try:
            with no_step():
                worker = self._started()
                answer = worker.ask(request, fields, arrays, patience_seconds=self.patience_seconds)
        except WorkerEndedError as error:
            self.stop()
            raise _EndedError(str(error)) from error
        except WorkerSilentError as error:
            self.stop()
            raise _SilentError(str(error)) from error
        except WorkerFailedError as error:
            self.stop()
            raise ProcessDiedError(str(error)) from error
        if isinstance(answer, WorkerFailure):
            raise self._failed(answer)
        return answer

    def _started(self) -> Worker:
        if self._worker is None:
            # Assigned before it is ready, so that `stop` ends it if the wait is interrupted.
            self._worker = Worker(
                WorkerService.SESSIONS, self.name, who=self.name, patience_seconds=self.patience_seconds
            )
            self._workers += 1
        try:
            self._worker.wait_ready()
        except WorkerNotStartedError as error:
            self.stop()
            raise RuntimeUnavailableError(error.args[0], hint=error.hint) from error
        return self._worker

    def _failed(self, failure: WorkerFailure) -> SessionError:
        """A refusal leaves the worker running; an exception of the runtime counts as a crash and ends it."""
        if failure.kind is FailureKind.REPORTED:
            error = SessionError(failure.text)
            error.__cause__ = RuntimeError(failure.cause) if failure.cause else None  # it names the node
            return error
        if failure.kind is FailureKind.REFUSED:
            return SessionError(f"{self.name} {failure.text}.")
        self.stop()
        return _EndedError(f"{self.name} {failure.crash}.")

    def stop(self) -> None:
        """End the worker, if there is one; every session in it ends too."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()


class GuardedSession:
    """A model loaded in the worker, and loaded again in the next one if that died; see `runtimes.base.Session`."""

    def __init__(self, runtime: GuardedRuntime, model: LinkedFiles, options: LoadOptions) -> None:
        self._runtime = runtime
        self._model = model
        self._options = options
        self._loaded: tuple[int, int] | None = None

    def number(self) -> int:
        """The session's number in the current worker.

        Raises:
            SessionError: If the runtime refuses the model.
        """
        return self._with_retry(self._number)

    def _number(self) -> int:
        if self._loaded is None or self._loaded[0] != self._runtime.workers:
            folder = self._model.folder
            fields = {"folder": None if folder is None else str(folder), "options": asdict(self._options)}
            message = np.frombuffer(self._model.message, np.uint8)
            number = int(self._runtime.ask("load", fields, {"model": message}).fields["session"])
            self._loaded = (self._runtime.workers, number)
        return self._loaded[1]

    def _run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return dict(self._runtime.ask("run", {"session": self._number()}, inputs).arrays)

    def _with_retry(self, ask: Callable[[], Answer]) -> Answer:
        """Ask again after the process ended once: the cause may be external, such as a system short of memory."""
        try:
            return ask()
        except _EndedError:
            return ask()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(SessionError):  # a dead worker has closed it
            if self._loaded is not None and self._loaded[0] == self._runtime.workers:
                self._runtime.ask("close", {"session": self._loaded[1]})

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once in the worker; see `Session.run`."""
        return self._with_retry(lambda: self._run(inputs))

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], None]:
        """A function that runs the model once, copies included; see `Session.bind`."""

        def call() -> None:
            self._run(inputs)

        return call

    def ran(self) -> RanReport:
        """The report of the session in the worker; see `Session.ran`."""
        fields = self._with_retry(lambda: self._runtime.ask("ran", {"session": self._number()}).fields)
        return RanReport(**{**fields["report"], "warnings": tuple(fields["report"]["warnings"])})


@contextlib.contextmanager
def guarded_runtime(name: str, *, patience_seconds: float = _PATIENCE_SECONDS) -> Iterator[GuardedRuntime]:
    """A runtime in a separate process, for the duration of a with block.

    Args:
        name: Registered name.
        patience_seconds: Longest wait for one answer.
    """
    runtime = GuardedRuntime(name, patience_seconds)
    try:
        yield runtime
    finally:
        runtime.stop()


@contextlib.contextmanager
def own_process(runtime: Runtime, patience_seconds: float | None) -> Iterator[Runtime]:
    """A runtime in a separate process if possible, for the duration of a with block, or of the command that shares it.

    A runtime that a worker cannot find by its name, such as a program's own runtime, stays in this process; what its
    adapter raises unexpectedly is a `ProcessDiedError` there too.

    Args:
        runtime: Found by its name or made by the caller.
        patience_seconds: Longest wait for one answer; None = in this process, without a limit.
    """
    if patience_seconds is None or not _is_registered(runtime):
        yield runtime if isinstance(runtime, GuardedRuntime | FencedRuntime) else FencedRuntime(runtime)
        return
    shared = shared_by_command()
    guarded = None if shared is None else shared.runtime(runtime.name, patience_seconds)
    if guarded is not None:
        yield guarded
        return
    with guarded_runtime(runtime.name, patience_seconds=patience_seconds) as guarded:
        yield guarded


def _is_registered(runtime: Runtime) -> bool:
    real = runtime.real if isinstance(runtime, FencedRuntime) else runtime
    try:
        return type(get_runtime(runtime.name)) is type(real)
    except RuntimeNotFoundError:
        return False
