"""Run one conformance row from a JSON request, inside a worker process.

A runtime that crashes ends that process only. Does not start the process: `runner` does.
"""

import msgspec

from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.core.records.records import encode_record
from sdpa_onnx.errors import RuntimeUnavailableError, SdpaOnnxError
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.conformance.row import run_row
from sdpa_onnx.workflows.conformance.table import FeatureRow, find_feature
from sdpa_onnx.workflows.conformance.trials import BrokenRuntimeError

__all__ = ["RowFailure", "RowRequest", "run_request"]


class RowRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row to run."""

    runtime: str
    feature: str
    opset: int
    dtype: str
    seed: int
    threads: int


class RowFailure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """The error of a row that raised one.

    Args:
        error: Its text.
        is_ours: Whether sdpa_onnx raised it, not the runtime.
    """

    error: str
    is_ours: bool


def run_request(data: bytes) -> bytes:
    """Run one row.

    Args:
        data: A `RowRequest` as JSON.

    Returns:
        Its record, or a `RowFailure`, as JSON.
    """
    request = msgspec.json.decode(data, type=RowRequest)
    try:
        row = FeatureRow(feature=find_feature(request.feature), opset=request.opset, dtype=Dtype(request.dtype))
        runtime = get_runtime(request.runtime)
        return encode_record(run_row(row, runtime, seed=request.seed, threads=request.threads))
    except (BrokenRuntimeError, RuntimeUnavailableError) as error:
        return msgspec.json.encode(RowFailure(error=str(error), is_ours=False))
    except SdpaOnnxError as error:
        return msgspec.json.encode(RowFailure(error=str(error), is_ours=True))
    except Exception as error:  # noqa: BLE001  # reported by the parent: here it would look like a crash of the runtime
        text = " ".join(str(error).split())
        return msgspec.json.encode(RowFailure(error=f"{type(error).__name__}: {text}", is_ours=True))
