"""Run one of our own functions in a worker process: return its result, or in one sentence why there is none.

Runs no model: `isolated_runtime` does.
"""

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

__all__ = ["CallFailure", "CallResult", "IsolatedFunction"]


@dataclass(frozen=True, slots=True)
class CallFailure:
    """A call without a result, and why: the process ended, did not answer, or the function raised.

    Args:
        reason: One sentence.
        is_timeout: Whether it did not answer in time.
    """

    reason: str
    is_timeout: bool = False


@dataclass(frozen=True, slots=True)
class CallResult:
    """What a call returned.

    Args:
        data: JSON.
        repeated: Why earlier attempts returned nothing, one sentence each.
    """

    data: bytes
    repeated: tuple[str, ...] = ()


class IsolatedFunction:
    """A function that runs in a worker process; a context manager that ends it.

    The process is started at the first call, and again after it has ended.

    Args:
        function: Of a module of ours, which is imported at the start; JSON in and out, as bytes.
        who: Subject of the sentences about it.
        threads: Set in the environment of the process; None = unchanged.
        attempts: Number of attempts before the end of the process counts as a failure: one end may have another cause,
            such as a system short of memory.
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

    def kill(self) -> None:
        """End the process now, from another thread than the one that waits for it, which gets a failure."""
        worker = self._worker
        if worker is not None:
            worker.kill()

    def call(
        self, argument: bytes, *, patience_seconds: float, first_seconds: float | None = None
    ) -> CallResult | CallFailure:
        """Call the function.

        Args:
            argument: JSON.
            patience_seconds: Longest wait of each attempt; starting the process does not count.
            first_seconds: The same for the first call in a process, which may import more; None = the same value.

        Raises:
            RuntimeUnavailableError: If no process starts.
        """
        failure = CallFailure("")
        repeated: list[str] = []
        for _ in range(self._attempts):
            first = patience_seconds if first_seconds is None else first_seconds
            try:
                answer = self._ask(argument, first if self._worker is None else patience_seconds)
            except WorkerEndedError as error:
                self._stop()
                failure = CallFailure(str(error))
                repeated.append(str(error))
                continue
            except WorkerFailedError as error:
                self._stop()
                return CallFailure(str(error), is_timeout=isinstance(error, NoAnswerError))
            if isinstance(answer, WorkerAnswer):
                return CallResult(str(answer.fields["value"]).encode(), tuple(repeated))
            self._stop()
            return CallFailure(f"{self._who} {answer.crash}.")
        return failure

    def _ask(self, argument: bytes, patience_seconds: float) -> WorkerAnswer | WorkerFailure:
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
