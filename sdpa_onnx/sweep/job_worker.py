"""The jobs of a run in a worker process: JSON in, JSON out.

The process keeps graphs and oracles from one job to the next. It writes no run folder: the parent does.
"""

import functools
import signal
from pathlib import Path

import msgspec

from sdpa_onnx.core.records.records import Record, decode_record, encode_record
from sdpa_onnx.errors import FolderError
from sdpa_onnx.sweep.job_carrier import JobCarrier, JobResult
from sdpa_onnx.sweep.models import ModelCache
from sdpa_onnx.sweep.plan import AgreementJob, ExportJob, SaturationJob, SharedJob

__all__ = ["carry_out", "decode_result", "encode_request"]

_KINDS: dict[str, type[SharedJob]] = {kind.__name__: kind for kind in (ExportJob, AgreementJob, SaturationJob)}


class _JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A job for a worker.

    Args:
        kind: Name of the class of the job.
        job: Its JSON.
        folder: Where the processes of the run share graphs.
    """

    kind: str
    job: msgspec.Raw
    folder: str


class _JobReply(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a job.

    Args:
        records: Their JSON.
        graph: See `JobResult`.
        seconds: Wall time.
        unwritable: Why nothing can be written, which ends the run; "" otherwise.
        hint: What to do about it.
    """

    records: tuple[msgspec.Raw, ...] = ()
    graph: bytes = b""
    seconds: float = 0.0
    unwritable: str = ""
    hint: str | None = None


def encode_request(job: SharedJob, folder: Path) -> bytes:
    """A job as `carry_out` takes it."""
    raw = msgspec.Raw(msgspec.json.encode(job))
    return msgspec.json.encode(_JobRequest(kind=type(job).__name__, job=raw, folder=str(folder)))


def decode_result(data: bytes) -> JobResult:
    """What `carry_out` returned.

    Raises:
        FolderError: If the worker could write nothing.
    """
    reply = msgspec.json.decode(data, type=_JobReply)
    if reply.unwritable:
        raise FolderError(reply.unwritable, hint=reply.hint)
    records: list[Record] = [decode_record(bytes(raw), where="the reply of a worker process") for raw in reply.records]
    return JobResult(records=tuple(records), graph=reply.graph, seconds=reply.seconds)


def carry_out(data: bytes) -> bytes:
    """Carry out a job, in the worker."""
    request = msgspec.json.decode(data, type=_JobRequest)
    job = msgspec.json.decode(request.job, type=_KINDS[request.kind])
    try:
        found = _carrier(request.folder).result(job)
    except FolderError as error:
        return msgspec.json.encode(_JobReply(unwritable=str(error.args[0]), hint=error.hint))
    records = tuple(msgspec.Raw(encode_record(record)) for record in found.records)
    return msgspec.json.encode(_JobReply(records=records, graph=found.graph, seconds=found.seconds))


@functools.cache
def _carrier(folder: str) -> JobCarrier:
    """The carrier of this process. Ctrl-C reaches every process of a terminal; the parent decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return JobCarrier(models=ModelCache(folder=Path(folder)))
