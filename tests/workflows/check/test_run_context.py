"""What is said where no attention inside was judged is about the file, or about the module."""

from dataclasses import replace

import pytest

from sdpa_onnx.core.records.records import AgreementRecord
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.torch_export.exporter import export_module
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.verify.verify_model import verify
from tests.workflows.user_modules import Scaled, qkv


def _warnings(model: OnnxModel) -> set[str]:
    sizes = {"batch_size": 1, "q_seq_len": 3, "k_seq_len": 4}
    (record,) = verify(model, ["ort-cpu"], [CheckOptions(sizes=sizes, spreads=(1.0,))])
    assert isinstance(record, AgreementRecord)
    return {warning for warning in record.warnings if "only" in warning}


@pytest.fixture(scope="module", params=[18, 23])
def exported(request: pytest.FixtureRequest) -> OnnxModel:
    return export_module(Scaled().eval(), qkv(), opset=request.param)


_NOTHING = "No attention was found, neither an operator nor softmax(QK^T) V: only the outputs were compared."


def test_graph_without_attention(exported: OnnxModel) -> None:
    """Nothing is said before the graph was read; afterwards, that it has none."""
    assert _warnings(replace(exported, sites=())) == set()
    assert _warnings(replace(exported, sites=(), unread=())) == {_NOTHING}


def test_graph_whose_attention_is_not_read(exported: OnnxModel) -> None:
    """The reason comes first."""
    found = _warnings(replace(exported, sites=(), unread=("An attention is only a guess.",)))
    assert found == {
        "An attention is only a guess.",
        "No attention inside was judged: only the outputs were compared.",
    }


def test_attention_that_was_read(exported: OnnxModel) -> None:
    """Nothing is said where the attention was judged."""
    records = verify(exported, ["ort-cpu"], [CheckOptions(sizes={"batch_size": 1, "q_seq_len": 3, "k_seq_len": 4})])
    assert not [warning for record in records for warning in record.warnings if "No attention" in warning]
