"""Run the table on a runtime, each row in a worker process that may die without harm."""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from sdpa_onnx.core.records.records import ConformanceRecord, Outcome, decode_record
from sdpa_onnx.errors import RuntimeUnavailableError, SdpaOnnxError
from sdpa_onnx.runtimes.base import Supported, Unsupported, get_runtime
from sdpa_onnx.workflows.conformance.feature import Operator
from sdpa_onnx.workflows.conformance.row import crashed_record
from sdpa_onnx.workflows.conformance.row_request import RowFailure, RowRequest, answer
from sdpa_onnx.workflows.conformance.table import FeatureRow, select
from sdpa_onnx.workflows.isolate.isolated_function import CallFailure, IsolatedFunction

__all__ = ["conformance"]

# A loaded machine imports torch in this time.
_LOADING_SECONDS = 60.0
# The process may end once by the hand of something else, such as a system short of memory: a second time it is the row.
_ATTEMPTS = 2


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
        isolate: Run in a worker process; False runs in this one, where a crash ends it.
        on_row: Called with (rows done, rows in all) after each.

    Yields:
        One record per feature, operator, opset and element type, in the table's order, as each ends.

    Raises:
        RuntimeNotFoundError: If there is no such runtime.
        RuntimeUnavailableError: If its package or device is missing, or no worker process starts.
        PlanError: If the choice holds an unknown word or leaves nothing.
        SdpaOnnxError: If a row ends in an error that is not the runtime's.
    """
    rows = select(only=only, operators=operators, opsets=opsets, dtypes=dtypes)
    match get_runtime(runtime).available():
        case Unsupported(reason):
            raise RuntimeUnavailableError(f"Runtime '{runtime}' is not available: {reason}.")
        case Supported():
            pass
    with IsolatedFunction(answer, who=runtime, threads=threads, attempts=_ATTEMPTS) as worker:
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
            yield _record(row, runtime, _called(worker, row, data, timeout_seconds) if isolate else answer(data))
            if on_row is not None:
                on_row(done, len(rows))


def _called(worker: IsolatedFunction, row: FeatureRow, data: bytes, timeout_seconds: float) -> bytes | CallFailure:
    """Run a row in the worker; loading a runtime, or torch to export, is not what it is timed for."""
    loading = timeout_seconds + _LOADING_SECONDS
    patience = loading if row.feature.operator is Operator.DECOMPOSED else timeout_seconds
    return worker.call(data, patience_seconds=patience, first_seconds=loading)


def _record(row: FeatureRow, runtime: str, answered: bytes | CallFailure) -> ConformanceRecord:
    """The answer of the worker as a record."""
    if isinstance(answered, CallFailure):
        outcome = Outcome.TIMED_OUT if answered.is_timeout else Outcome.FAILED
        return crashed_record(row, runtime, answered.reason, outcome=outcome)
    try:
        failure = msgspec.json.decode(answered, type=RowFailure)
    except msgspec.MsgspecError:
        record = decode_record(answered, where="the answer of the worker process")
        if isinstance(record, ConformanceRecord):
            return record
        return crashed_record(row, runtime, "The worker process answered with another record.")
    if failure.is_ours:
        raise SdpaOnnxError(f"The row {row.feature.slug} cannot be judged: {failure.error.rstrip('.')}.")
    return crashed_record(row, runtime, f"It ended in an error that is not a refusal: {failure.error}.")
