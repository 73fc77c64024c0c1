"""One of our own functions in a worker process: a result, or how the process ended, in one sentence."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from sdpa_onnx.errors import NoAnswerError, RuntimeUnavailableError
from sdpa_onnx.runtimes.worker_process import WorkerService
from sdpa_onnx.runtimes.workers import (
    Worker,
    WorkerAnswer,
    WorkerEndedError,
    WorkerFailedError,
    WorkerFailure,
    WorkerNotStartedError,
)

__all__ = ["CallFailure", "IsolatedFunction"]


@dataclass(frozen=True, slots=True)
class CallFailure:
    """That a call has no result, and why: the process ended, gave no answer, or the function raised.

    Args:
        reason: One sentence.
        is_timeout: Whether it gave no answer in time.
    """

    reason: str
    is_timeout: bool = False


class IsolatedFunction:
    """A function that runs in a worker process; a context manager that ends it.

    The process is started at the first call, and again after it has ended.

    Args:
        function: Of a module of ours, which is imported at the start; JSON in and out, as bytes.
        who: Subject of the sentences about it.
        threads: Pinned in the environment of the process; None = as they are.
        attempts: So often the process may end until that is a result: once, something else may have ended it, such as a
            system short of memory.
    """

    def __init__(
        self, function: Callable[[bytes], bytes], *, who: str, threads: int | None = None, attempts: int
    ) -> None:
        self._name = f"{function.__module__}:{function.__qualname__}"
        self._who = who
        self._threads = threads
        self._attempts = attempts
        self._worker: Worker | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def call(
        self, argument: bytes, *, patience_seconds: float, first_seconds: float | None = None
    ) -> bytes | CallFailure:
        """Call it.

        Args:
            argument: JSON.
            patience_seconds: Longest wait of each attempt; starting the process does not count.
            first_seconds: The same for the first call in a process, which may have to import more; None = the same.

        Raises:
            RuntimeUnavailableError: If no process starts.
        """
        failure = CallFailure("")
        for _ in range(self._attempts):
            first = patience_seconds if first_seconds is None else first_seconds
            try:
                answer = self._asked(argument, first if self._worker is None else patience_seconds)
            except WorkerEndedError as error:
                self._stop()
                failure = CallFailure(str(error))
                continue
            except WorkerFailedError as error:
                self._stop()
                return CallFailure(str(error), is_timeout=isinstance(error, NoAnswerError))
            if isinstance(answer, WorkerAnswer):
                return str(answer.fields["value"]).encode()
            self._stop()
            return CallFailure(f"{self._who} {answer.crash}.")
        return failure

    def _asked(self, argument: bytes, patience_seconds: float) -> WorkerAnswer | WorkerFailure:
        if self._worker is None:
            self._worker = Worker(
                WorkerService.FUNCTION, self._name, who=self._who, threads=self._threads, patience_seconds=0.0
            )
        try:
            self._worker.wait_ready()
        except WorkerNotStartedError as error:
            self._stop()
            raise RuntimeUnavailableError(error.args[0], hint=error.hint) from error
        return self._worker.ask("call", {"argument": argument.decode()}, patience_seconds=patience_seconds)

    def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()
