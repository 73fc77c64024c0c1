"""The worker processes that the parts of one command share; the first starts while the command imports its own code.

A command that checks a file in several steps would start a process for each of them. Imports nothing heavy: what it
saves is the time in which nothing else is known but the name of the runtime.
"""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sdpa_onnx.errors import SessionError
from sdpa_onnx.runtimes.worker_process import WorkerService
from sdpa_onnx.runtimes.workers import Worker

if TYPE_CHECKING:
    from sdpa_onnx.workflows.isolate.isolated_runtime import GuardedRuntime

__all__ = ["SharedWorkers", "shared_by_command", "shared_workers"]


# No name of a runtime, and a runtime whose models stay in our process wherever they can.
_NOT_EARLY = frozenset({"all", "torch"})


@dataclass(slots=True, kw_only=True)
class SharedWorkers:
    """Runtimes in separate processes, one process per runtime, until the command ends.

    Args:
        names: The runtimes that are shared.
        patience_seconds: Longest wait for one answer.
    """

    names: frozenset[str]
    patience_seconds: float
    _starting: dict[str, Worker] = field(default_factory=dict, init=False)
    _runtimes: "dict[str, GuardedRuntime]" = field(default_factory=dict, init=False)

    def start(self, name: str) -> None:
        """Start the process of a runtime and do not wait for it."""
        self._starting[name] = Worker(WorkerService.SESSIONS, name, who=name, patience_seconds=self.patience_seconds)

    def runtime(self, name: str, patience_seconds: float) -> "GuardedRuntime | None":
        """The shared runtime; None if this one is not shared, or would wait for another time."""
        if name not in self.names or patience_seconds != self.patience_seconds:
            return None
        if name not in self._runtimes:
            from sdpa_onnx.workflows.isolate.isolated_runtime import GuardedRuntime

            starting = self._starting.pop(name, None)
            self._runtimes[name] = GuardedRuntime(name, patience_seconds, starting=starting)
        return self._runtimes[name]

    def stop(self) -> None:
        """End every process."""
        for worker in self._starting.values():
            worker.stop()
        for runtime in self._runtimes.values():
            runtime.stop()


_SHARED: ContextVar[SharedWorkers | None] = ContextVar("_SHARED", default=None)


def shared_by_command() -> SharedWorkers | None:
    """The workers of the command that runs; None outside of `shared_workers`."""
    return _SHARED.get()


@contextlib.contextmanager
def shared_workers(names: Sequence[str], patience_seconds: float) -> Iterator[None]:
    """Share one process per runtime until the block ends, and start that of the first one now.

    `own_process` uses them.

    Args:
        names: Names of runtimes, as the user gave them.
        patience_seconds: Longest wait for one answer.
    """
    shared = SharedWorkers(names=frozenset(names), patience_seconds=patience_seconds)
    token = _SHARED.set(shared)
    try:
        if names and names[0] not in _NOT_EARLY:
            with contextlib.suppress(SessionError):  # whoever needs it tries again, and reports it
                shared.start(names[0])
        yield
    finally:
        _SHARED.reset(token)
        shared.stop()
