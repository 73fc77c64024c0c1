"""The process in which rows run: requests on standard input, records on a pipe, one JSON line each.

A runtime that crashes takes this process with it, and nothing else. What a runtime
prints is dropped, so that it cannot be taken for a record.
"""

import ctypes
import os
import signal
import sys
from typing import BinaryIO

import msgspec

from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.core.records.records import encode_record
from sdpa_onnx.errors import SdpaOnnxError
from sdpa_onnx.workflows.isolate.start_child import quieten

__all__ = ["READY", "RowFailure", "RowRequest", "main"]

# Said before anything is asked: from here on, an end of the process is the runtime's.
READY = b"ready\n"


class RowRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row to run."""

    runtime: str
    feature: str
    opset: int
    dtype: str
    seed: int
    threads: int


class RowFailure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """A row that ended in an error.

    Args:
        error: Its text.
        is_ours: Whether it was raised outside the runtime.
    """

    error: str
    is_ours: bool


def main() -> int:
    """Answer requests until standard input ends."""
    _die_with_parent()
    import sdpa_onnx.workflows.conformance.row  # noqa: F401  # what fails here is no runtime's fault

    answers = _own_pipe()
    answers.write(READY)
    answers.flush()
    for line in sys.stdin.buffer:
        answers.write(answer(msgspec.json.decode(line, type=RowRequest)) + b"\n")
        answers.flush()
    return 0


def answer(request: RowRequest) -> bytes:
    """Run one row; its record, or the failure, as one line of JSON."""
    from sdpa_onnx.runtimes.base import get_runtime
    from sdpa_onnx.workflows.conformance.row import run_row
    from sdpa_onnx.workflows.conformance.table import FeatureRow, find_feature
    from sdpa_onnx.workflows.conformance.trials import BrokenRuntimeError

    try:
        row = FeatureRow(feature=find_feature(request.feature), opset=request.opset, dtype=Dtype(request.dtype))
        runtime = get_runtime(request.runtime)
        return encode_record(run_row(row, runtime, seed=request.seed, threads=request.threads))
    except BrokenRuntimeError as error:
        return msgspec.json.encode(RowFailure(error=str(error), is_ours=False))
    except SdpaOnnxError as error:
        return msgspec.json.encode(RowFailure(error=str(error), is_ours=True))
    except Exception as error:  # noqa: BLE001  # told by the parent: an error here would pass for the runtime's crash
        what = " ".join(str(error).split())
        return msgspec.json.encode(RowFailure(error=f"{type(error).__name__}: {what}", is_ours=True))


def _own_pipe() -> BinaryIO:
    """Keep standard output for records, and drop what anybody prints."""
    own = os.dup(sys.stdout.fileno())
    quieten()
    return os.fdopen(own, "wb")


def _die_with_parent() -> None:
    """Ask Linux to end this process when its parent ends; elsewhere the end of standard input does."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG, linux/prctl.h
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
