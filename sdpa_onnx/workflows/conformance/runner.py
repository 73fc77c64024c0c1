"""Run the table on a runtime, each row in a child process that may die without harm."""

import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from sdpa_onnx.core.records.records import ConformanceRecord, decode_record
from sdpa_onnx.errors import RuntimeUnavailableError, SdpaOnnxError
from sdpa_onnx.runtimes.base import Supported, Unsupported, get_runtime
from sdpa_onnx.runtimes.process_end import ending
from sdpa_onnx.workflows.conformance.feature import Operator
from sdpa_onnx.workflows.conformance.row import crashed_record
from sdpa_onnx.workflows.conformance.table import FeatureRow, select
from sdpa_onnx.workflows.conformance.worker import READY, RowFailure, RowRequest, answer
from sdpa_onnx.workflows.isolate.start_child import STARTING_SECONDS, child_command, not_started

__all__ = ["conformance"]

_WORKER = "sdpa_onnx.workflows.conformance.worker"
_CHILD = "The process for the rows"
# A loaded machine imports torch in this time.
_LOADING_SECONDS = 60.0
_THREAD_POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def conformance(  # noqa: PLR0913  # what a caller may choose
    runtime: str,
    *,
    only: Sequence[str] = (),
    operators: Sequence[str] = (),
    opsets: Sequence[int] = (),
    dtypes: Sequence[str] = (),
    seed: int = 0,
    threads: int = 1,
    timeout_seconds: float = 20.0,
    isolate: bool = True,
    on_row: Callable[[int, int], None] | None = None,
) -> Iterator[ConformanceRecord]:
    """Ask a runtime every feature of the attention operators.

    Args:
        runtime: Name of the runtime.
        only, operators, opsets, dtypes: See `select`.
        seed: Seed of all inputs.
        threads: Threads inside one operator.
        timeout_seconds: A row that has not ended by then has crashed.
        isolate: Run in a child process; False runs in this one, where a crash ends it.
        on_row: Called with (rows done, rows in all) after each.

    Yields:
        One record per feature, operator, opset and element type, in the table's order, as each ends.

    Raises:
        RuntimeNotFoundError: If there is no such runtime.
        RuntimeUnavailableError: If its package or device is missing, or no child process starts.
        PlanError: If the choice holds an unknown word or leaves nothing.
        SdpaOnnxError: If a row ends in an error that is not the runtime's.
    """
    rows = select(only=only, operators=operators, opsets=opsets, dtypes=dtypes)
    match get_runtime(runtime).available():
        case Unsupported(reason):
            raise RuntimeUnavailableError(f"Runtime '{runtime}' is not available: {reason}.")
        case Supported():
            pass
    with _Child(threads=threads, timeout_seconds=timeout_seconds) as child:
        for done, row in enumerate(rows, 1):
            request = RowRequest(
                runtime=runtime,
                feature=row.feature.slug,
                opset=row.opset,
                dtype=row.dtype.value,
                seed=seed,
                threads=threads,
            )
            exports = row.feature.operator is Operator.DECOMPOSED
            yield _record(row, runtime, child.ask(request, exports=exports) if isolate else answer(request))
            if on_row is not None:
                on_row(done, len(rows))


def _record(row: FeatureRow, runtime: str, said: bytes | str) -> ConformanceRecord:
    """What the child said as a record; text is the reason why it said nothing."""
    if isinstance(said, str):
        return crashed_record(row, runtime, said)
    try:
        failure = msgspec.json.decode(said, type=RowFailure)
    except msgspec.MsgspecError:
        record = decode_record(said, where="the answer of the child process")
        if isinstance(record, ConformanceRecord):
            return record
        return crashed_record(row, runtime, "The child process answered with another record.")
    if failure.is_ours:
        raise SdpaOnnxError(f"The row {row.feature.slug} cannot be judged: {failure.error.rstrip('.')}.")
    return crashed_record(row, runtime, f"It ended in an error that is not a refusal: {failure.error}.")


class _Death(NamedTuple):
    """That a child ended instead of answering, in words."""

    words: str


class _Child:
    """A worker process, started when first asked and again after each death."""

    def __init__(self, *, threads: int, timeout_seconds: float) -> None:
        self._threads = threads
        self._timeout_seconds = timeout_seconds
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def ask(self, request: RowRequest, *, exports: bool) -> bytes | str:
        """One line of answer, or the reason why there is none.

        Starting, and loading torch to export, is not what a row is timed for.
        """
        first = self._once(request, exports=exports)
        if not isinstance(first, _Death):
            return first
        # Somebody else may have ended it, such as a system short of memory: only a second death is the row's.
        second = self._once(request, exports=exports)
        return second.words if isinstance(second, _Death) else second

    def _once(self, request: RowRequest, *, exports: bool) -> "bytes | str | _Death":
        patience = self._timeout_seconds + (_LOADING_SECONDS if exports or self._process is None else 0.0)
        process = self._process or self._start()
        if process.stdin is None or process.stdout is None:
            return "The child process has no pipes."
        try:
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return self._death()
        line = _read_line(process.stdout.fileno(), patience)
        if line is None:
            self._end()
            return f"It did not answer within {patience:g} s."
        return line if line.endswith(b"\n") else self._death()

    def _start(self) -> "subprocess.Popen[bytes]":
        """A new child that has said that it is there.

        Raises:
            RuntimeUnavailableError: If it does not.
        """
        pools = {name: str(self._threads) for name in _THREAD_POOLS}
        with tempfile.TemporaryFile() as errors:
            process = self._process = subprocess.Popen(
                child_command(_WORKER),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | pools,
            )
            said = b"" if process.stdout is None else _read_line(process.stdout.fileno(), STARTING_SECONDS)
            if said == READY:
                return process
            if said is None:
                self._end()
                raise not_started(_CHILD, None, errors)
            self._process = None
            _close(process)
            raise not_started(_CHILD, process.wait(), errors)

    def _death(self) -> "_Death":
        process = self._process
        self._process = None
        if process is None:
            return _Death("The child process is gone.")
        status = process.wait()
        _close(process)
        return _Death(f"Its process {'was ended by' if status < 0 else 'ended with'} {ending(status)}.")

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            _close(self._process)
            self._process = None


def _read_line(descriptor: int, timeout_seconds: float) -> bytes | None:
    """Read up to a line's end or the end of the pipe; None if neither came in time."""
    deadline = time.monotonic() + timeout_seconds
    found = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not found.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return None
            part = os.read(descriptor, 65536)
            if not part:
                return found
            found += part
    return found


def _close(process: "subprocess.Popen[bytes]") -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # what was left in the buffer has no reader any more
