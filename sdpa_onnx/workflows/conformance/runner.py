"""Run the conformance table on a runtime, each row in a worker process so that a crash costs one row.

Does not define features or judge outputs.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from sdpa_onnx.core.records.records import ConformanceRecord, Conformity, Outcome, decode_record
from sdpa_onnx.errors import RuntimeUnavailableError, SdpaOnnxError
from sdpa_onnx.runtimes.base import Supported, Unsupported, get_runtime
from sdpa_onnx.workflows.conformance.feature import Operator
from sdpa_onnx.workflows.conformance.row import DEFAULT_TIMEOUT_SECONDS, crashed_record, repeat_command
from sdpa_onnx.workflows.conformance.row_request import RowFailure, RowRequest, run_request
from sdpa_onnx.workflows.conformance.table import FeatureRow, select
from sdpa_onnx.workflows.isolate.isolated_function import CallFailure, CallResult, IsolatedFunction

__all__ = ["conformance", "not_run"]

# Enough to import torch on a busy machine.
_LOADING_SECONDS = 60.0
# Something else may end the process once, such as a system short of memory. The second time the row is the cause.
_ATTEMPTS = 2
# A row without an answer in time is repeated with this many times the time.
_MORE_TIME = 3.0


def conformance(  # noqa: PLR0913  # one argument per option
    runtime: str,
    *,
    only: Sequence[str] = (),
    operators: Sequence[str] = (),
    opsets: Sequence[int] = (),
    dtypes: Sequence[str] = (),
    seed: int = 0,
    threads: int = 1,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    isolate: bool = True,
    on_row: Callable[[int, int], None] | None = None,
) -> Iterator[ConformanceRecord]:
    """Run every selected feature of the attention operators on a runtime.

    Args:
        runtime: Name of the runtime.
        only, operators, opsets, dtypes: See `select`.
        seed: Seed of all inputs.
        threads: Threads inside one operator.
        timeout_seconds: Wall time of a row; after it the row is repeated once with three times as much.
        isolate: Run in a worker process; False runs in this process, which a crash of the runtime ends.
        on_row: Called with (rows done, rows in total) after each row.

    Yields:
        One record per feature, operator, opset and element type, in the order of the table, as each row ends.

    Raises:
        RuntimeNotFoundError: If there is no such runtime.
        RuntimeUnavailableError: If its package or device is missing, or no worker process starts.
        PlanError: If the selection contains an unknown name or matches nothing.
        SdpaOnnxError: If a row ends in an error that the runtime did not raise.
    """
    rows = select(only=only, operators=operators, opsets=opsets, dtypes=dtypes)
    _require_available(runtime)
    with IsolatedFunction(run_request, who=runtime, threads=threads, attempts=_ATTEMPTS) as worker:
        for done, row in enumerate(rows, 1):
            request = RowRequest(
                runtime=runtime,
                feature=row.feature.slug,
                opset=row.opset,
                dtype=row.dtype.value,
                seed=seed,
                threads=threads,
            )
            data = msgspec.json.encode(request)
            reply = _answer(worker, row, data, timeout_seconds) if isolate else CallResult(run_request(data))
            yield _record(row, runtime, reply, timeout_seconds)
            if on_row is not None:
                on_row(done, len(rows))


def not_run(rows: Sequence[FeatureRow], runtime: str, reason: str) -> Iterator[ConformanceRecord]:
    """The records of rows that cannot run because their runtime is gone; it must not end a run with others."""
    for row in rows:
        yield crashed_record(row, runtime, reason)


def _require_available(runtime: str) -> None:
    try:
        available = get_runtime(runtime).available()
    except SdpaOnnxError:
        raise
    except Exception as error:  # foreign code
        text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        raise RuntimeUnavailableError(f"Runtime '{runtime}' is not available: it raised {text}.") from error
    match available:
        case Unsupported(reason):
            raise RuntimeUnavailableError(f"Runtime '{runtime}' is not available: {reason}.")
        case Supported():
            pass


def _answer(worker: IsolatedFunction, row: FeatureRow, data: bytes, timeout_seconds: float) -> CallResult | CallFailure:
    """Run a row; one without an answer in time is repeated once with more time: the machine may have been busy."""
    reply = _call(worker, row, data, timeout_seconds)
    if isinstance(reply, CallResult) or not reply.is_timeout:
        return reply
    again = _call(worker, row, data, _MORE_TIME * timeout_seconds)
    if isinstance(again, CallResult):
        return CallResult(again.data, (reply.reason, *again.repeated))
    if again.is_timeout:
        return CallFailure(f"{again.reason.rstrip('.')}, and before that not within {timeout_seconds:g} s.", True)
    return again


def _call(worker: IsolatedFunction, row: FeatureRow, data: bytes, timeout_seconds: float) -> CallResult | CallFailure:
    """Run a row in the worker; the time limit does not include loading a runtime, or torch for an export."""
    loading = timeout_seconds + _LOADING_SECONDS
    patience = loading if row.feature.operator is Operator.DECOMPOSED else timeout_seconds
    return worker.call(data, patience_seconds=patience, first_seconds=loading)


def _record(
    row: FeatureRow, runtime: str, reply: CallResult | CallFailure, timeout_seconds: float
) -> ConformanceRecord:
    """The record of a row, with the attempts that returned nothing and the command that repeats it in the same time."""
    found = _decoded(row, runtime, reply)
    repeated = () if isinstance(reply, CallFailure) else reply.repeated
    return msgspec.structs.replace(
        found,
        warnings=(*found.warnings, *(f"Repeated once: {text.rstrip('.')}." for text in repeated)),
        repeat=repeat_command(row, runtime, timeout_seconds=timeout_seconds),
    )


def _decoded(row: FeatureRow, runtime: str, reply: CallResult | CallFailure) -> ConformanceRecord:
    """Decode the reply of the worker."""
    if isinstance(reply, CallFailure):
        if reply.is_timeout:
            return crashed_record(row, runtime, reply.reason, outcome=Outcome.TIMED_OUT, verdict=Conformity.NO_ANSWER)
        return crashed_record(row, runtime, reply.reason)
    try:
        failure = msgspec.json.decode(reply.data, type=RowFailure)
    except msgspec.MsgspecError:
        record = decode_record(reply.data, where="the reply of the worker process")
        if isinstance(record, ConformanceRecord):
            return record
        return crashed_record(row, runtime, "The worker process returned a record of another kind.")
    if failure.is_ours:
        raise SdpaOnnxError(f"The row {row.feature.slug} cannot be judged: {failure.error.rstrip('.')}.")
    return crashed_record(row, runtime, f"The runtime raised an error that is not a refusal: {failure.error}.")
