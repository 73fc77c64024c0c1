"""The reply of the process that proves a file with external data, called in this process."""

from pathlib import Path

import onnx
import pytest

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.workflows.convert.convert_model import convert_model
from sdpa_onnx.workflows.convert.proof_process import _answer, _ProofRequest
from tests.workflows.convert_sources import with_projections


def test_few_runs_of_a_large_model_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two size sets and one spread prove the complete graph; a note states it."""
    monkeypatch.setattr("sdpa_onnx.graph.files.large._LARGE_BYTES", 0)
    onnx.save(with_projections(), tmp_path / "source.onnx")
    convert_model(load_model(with_projections()), Form.ORT_MHA).model.save(tmp_path / "result.onnx")
    found = _answer(
        _ProofRequest(
            source=str(tmp_path / "source.onnx"),
            result=str(tmp_path / "result.onnx"),
            runtime="ort-cpu",
            target="result",
            seed=0,
            threads=1,
            rows_may_be_empty=True,
        )
    )
    assert {record.outcome for record in found.records} == {Outcome.OK}
    assert found.sizes_tried == 2
    assert found.notes[-1] == (
        "The model has 0.0 GB of weights: the complete graph ran at 2 size sets and logit spread 1 only, each "
        "attention by itself at every spread."
    )
