"""A runtime in a child process, so that one that crashes or hangs is a finding and not our end.

The child keeps the loaded models and answers over a pipe; when it dies, the next call
starts another. Arrays are copied both ways, so nothing here is ever timed.
"""

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import IO, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.errors import RuntimeNotFoundError, SessionError
from sdpa_onnx.graph.files.saved_files import LinkedFiles
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Runtime, Session, Supported, Unsupported, get_runtime
from sdpa_onnx.runtimes.process_end import ending
from sdpa_onnx.workflows.isolate.isolated_child import READY
from sdpa_onnx.workflows.isolate.start_child import STARTING_SECONDS, child_command, not_started

__all__ = ["GuardedRuntime", "ProcessDiedError", "guarded_runtime", "own_process"]

Array = NDArray[np.generic]
Answer = TypeVar("Answer")

# Longest wait for one answer, seconds: far beyond any small attention, short enough for a person.
_PATIENCE_SECONDS = 20.0


class ProcessDiedError(SessionError):
    """The runtime took its process with it, or gave no answer in time."""


class _EndedError(ProcessDiedError):
    """The process ended; whether by the runtime or from outside is not known after one time."""


@dataclass(slots=True)
class _Child:
    """One child process, the pipe to it, and its standard error if that is kept."""

    process: "subprocess.Popen[bytes]"
    pipe: "Connection[Any, Any]"
    errors: IO[bytes] | None = None


@dataclass(slots=True)
class GuardedRuntime:
    """A registered runtime that runs in a process of its own; call `stop` at the end.

    Args:
        name: Registered name.
        patience_seconds: Longest wait for one answer.
    """

    name: str
    patience_seconds: float = _PATIENCE_SECONDS
    measures_time: bool = False
    _real: Runtime = field(init=False)
    _child: _Child | None = field(default=None, init=False)
    _children: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._real = get_runtime(self.name)

    def available(self) -> Supported | Unsupported:
        """As the runtime says."""
        return self._real.available()

    def version(self) -> str:
        """As the runtime says."""
        return self._real.version()

    def supports(self, model: OnnxModel) -> Supported | Unsupported:
        """As the runtime says; nothing is loaded for it."""
        return self._real.supports(model)

    def load(self, model: OnnxModel, options: LoadOptions) -> Session:
        """Load a model in the child.

        Raises:
            ProcessDiedError: If the child died or gave no answer.
            SessionError: If the runtime refuses the model.
        """
        session = GuardedSession(self, model.linked(), options)
        session.number()
        return session

    @property
    def children(self) -> int:
        """How many processes were started; sessions of earlier ones are gone."""
        return self._children if self._child is not None else self._children + 1

    def start(self) -> None:
        """Start the child now and not at the first question, for who measures time.

        Raises:
            RuntimeUnavailableError: If no child starts.
        """
        if self._child is None:
            self._child = self._started()

    def ask(self, *message: object) -> Any:
        """Send one request and wait for the answer.

        Raises:
            ProcessDiedError: If the child died or gave no answer in time.
            SessionError: If the runtime refused.
            RuntimeUnavailableError: If no child starts.
        """
        if self._child is None:
            self._child = self._started()
        try:
            self._child.pipe.send(message)
            if not self._child.pipe.poll(self.patience_seconds):
                self.stop()
                raise ProcessDiedError(f"{self.name} gave no answer in {self.patience_seconds:g} s.")
            refusal, answer = self._child.pipe.recv()
        except (EOFError, OSError) as error:
            code = self.stop()
            raise _EndedError(f"{self.name} crashed: its process ended with {ending(code)}.") from error
        if refusal:
            raise SessionError(refusal) from (RuntimeError(answer) if answer else None)  # the node stands in the cause
        return answer

    def _started(self) -> _Child:
        """A new child that has said that it is there.

        Raises:
            RuntimeUnavailableError: If it does not.
        """
        child = self._child = _start(self.name)
        with child.errors or contextlib.nullcontext():
            try:
                if child.pipe.poll(STARTING_SECONDS) and child.pipe.recv() == READY:
                    self._children += 1
                    return child
                status = None
                self.stop()
            except (EOFError, OSError):
                status = self.stop()
            raise not_started(f"The process for {self.name}", status, child.errors)

    def stop(self) -> int:
        """End the child, if there is one, and give its exit code; every session of it ends too."""
        child, self._child = self._child, None
        if child is None:
            return 0
        child.pipe.close()
        try:
            code = child.process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            child.process.kill()
            code = child.process.wait()
        return code


class GuardedSession:
    """A model loaded in the child, again in the next one if that died; see `runtimes.base.Session`."""

    def __init__(self, runtime: GuardedRuntime, model: LinkedFiles, options: LoadOptions) -> None:
        self._runtime = runtime
        self._model = model
        self._options = options
        self._loaded: tuple[int, int] | None = None

    def number(self) -> int:
        """The session's number in the child that lives now.

        Raises:
            SessionError: If the runtime refuses the model.
        """
        return self._twice(self._number)

    def _number(self) -> int:
        if self._loaded is None or self._loaded[0] != self._runtime.children:
            number: int = self._runtime.ask("load", self._model.message, self._model.folder, self._options)
            self._loaded = (self._runtime.children, number)
        return self._loaded[1]

    def _twice(self, ask: Callable[[], Answer]) -> Answer:
        """Ask again where the process ended once: somebody else may have ended it, such as a system short of memory."""
        try:
            return ask()
        except _EndedError:
            return ask()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(SessionError):  # a child that is gone has closed it
            if self._loaded is not None and self._loaded[0] == self._runtime.children:
                self._runtime.ask("close", self._loaded[1])

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once in the child; see `Session.run`."""
        outputs: dict[str, Array] = self._twice(lambda: self._runtime.ask("run", self._number(), dict(inputs)))
        return outputs

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], None]:
        """A call that runs once, copies included; see `Session.bind`."""
        return lambda: self._runtime.ask("run", self.number(), dict(inputs)) and None

    def ran(self) -> RanReport:
        """What the session in the child says; see `Session.ran`."""
        report: RanReport = self._twice(lambda: self._runtime.ask("ran", self._number()))
        return report


@contextlib.contextmanager
def guarded_runtime(name: str, *, patience_seconds: float = _PATIENCE_SECONDS) -> Iterator[GuardedRuntime]:
    """A runtime in a process of its own, for as long as a with block lasts.

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
    """A runtime in a process of its own, where that can be, for as long as a with block lasts.

    What a child would not find by the same name, such as a program's own runtime, stays in this process.

    Args:
        runtime: Found by its name or made by the caller.
        patience_seconds: Longest wait for one answer; None = in this process, without a limit.
    """
    if patience_seconds is None or not _is_registered(runtime):
        yield runtime
        return
    with guarded_runtime(runtime.name, patience_seconds=patience_seconds) as apart:
        yield apart


def _is_registered(runtime: Runtime) -> bool:
    try:
        return type(get_runtime(runtime.name)) is type(runtime)
    except RuntimeNotFoundError:
        return False


def _start(name: str) -> _Child:
    ours, theirs = Pipe()
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - it ends with the child
    process = subprocess.Popen(
        child_command("sdpa_onnx.workflows.isolate.isolated_child", name, str(theirs.fileno())),
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
    )
    theirs.close()
    return _Child(process, ours, errors)
