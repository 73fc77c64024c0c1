"""The table finds each known fault in the releases that have it, from public issues and from our own search."""

from importlib.metadata import PackageNotFoundError, version

import pytest

from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.core.records.records import Conformity
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.conformance.row import run_row
from sdpa_onnx.workflows.conformance.table import FeatureRow, find_feature

RIGHT, WRONG, REFUSED = Conformity.RIGHT, Conformity.WRONG, Conformity.REFUSED

_ORT = (
    ("causal-more-keys", 23, RIGHT, "upper-left"),
    ("causal-one-query", 23, RIGHT, "upper-left"),
    ("causal-past-one-query", 23, WRONG, "bottom-right or all-keys"),
    ("causal-past-one-query", 25, RIGHT, "past"),
    ("lengths-causal-negative", 24, RIGHT, "nonpad"),
    ("softcap-mask", 23, RIGHT, ""),
    ("gqa", 23, RIGHT, ""),
    ("layout-3d", 23, RIGHT, ""),
    ("masked-row-causal", 23, RIGHT, "zero"),
    ("masked-row-lowest", 23, WRONG, "zero"),
    ("masked-row-lowest", 25, RIGHT, "mean-of-values"),
    ("mask-float-b11t", 23, REFUSED, ""),
    ("mask-bool-t", 23, REFUSED, ""),
    ("mask-bool-short-sp", 24, REFUSED, ""),
    ("window-left", 25, RIGHT, ""),
    ("value-width", 23, RIGHT, ""),
    ("qk-mask-causal", 23, WRONG, ""),
)
_OPENVINO = (
    ("causal-past-one-query", 23, WRONG, "bottom-right or all-keys"),
    ("causal-past-other-lengths", 23, WRONG, "bottom-right"),
    ("body-masked-row", 23, WRONG, "nan"),
    ("masked-row-bool", 23, RIGHT, "zero"),
    ("masked-row-lowest", 23, RIGHT, "mean-of-values"),
    ("window-left", 25, WRONG, ""),
    ("one-key-first", 23, WRONG, ""),
    ("poison-nan-seen", 23, WRONG, ""),
    ("packed-scale", 18, WRONG, ""),
    ("mask-float-b11t", 23, RIGHT, ""),
)


def _installed(package: str) -> str:
    try:
        return version(package).split("-")[0]
    except PackageNotFoundError:
        return ""


def _check(runtime: str, slug: str, opset: int, verdict: Conformity, observed: str) -> None:
    record = run_row(FeatureRow(feature=find_feature(slug), opset=opset, dtype=Dtype.FLOAT32), get_runtime(runtime))
    assert record.verdict is verdict, record.diagnosis or record.reason
    assert record.observed == observed


@pytest.mark.skipif(_installed("onnxruntime") != "1.32.0", reason="these are the faults of onnxruntime 1.32.0")
@pytest.mark.parametrize(("slug", "opset", "verdict", "observed"), _ORT)
def test_onnxruntime(slug: str, opset: int, verdict: Conformity, observed: str) -> None:
    """Right where the issues are closed, wrong or refused where they are open."""
    _check("ort-cpu", slug, opset, verdict, observed)


@pytest.mark.slow
@pytest.mark.skipif(_installed("openvino") != "2026.4.1", reason="these are the faults of openvino 2026.4.1")
@pytest.mark.parametrize(("slug", "opset", "verdict", "observed"), _OPENVINO)
def test_openvino(slug: str, opset: int, verdict: Conformity, observed: str) -> None:
    """The same for OpenVINO, with faults that had not been reported."""
    _check("openvino", slug, opset, verdict, observed)


@pytest.mark.filterwarnings("ignore:invalid value encountered in sqrt")
@pytest.mark.skipif(_installed("onnx") != "1.23.2", reason="this is the fault of onnx 1.23.2")
def test_onnx_reference() -> None:
    """In mode 0 ONNX's evaluator returns the scores after the softcap, not before it; all else is right."""
    _check("onnx-reference", "qk-raw-softcap", 25, WRONG, "")
    _check("onnx-reference", "qk-raw", 25, RIGHT, "")
    _check("onnx-reference", "scale-negative", 25, RIGHT, "nan")
