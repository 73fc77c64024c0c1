"""What is said where no attention inside was judged is about the file, or about the module."""

from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from sdpa_onnx.core.records.records import AgreementRecord
from sdpa_onnx.graph.model import OnnxModel, load_model
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


@pytest.fixture(scope="module")
def module() -> nn.Module:
    return Scaled().eval()


@pytest.mark.slow
def test_file_without_what_can_be_read(exported: OnnxModel, module: nn.Module, tmp_path: Path) -> None:
    """Its module does call scaled_dot_product_attention: it is the file that shows none."""
    model = load_model(exported.save(tmp_path / "plain.onnx"))
    why = (
        "opset 18 has no Attention node"
        if model.opset == 18
        else "its Attention nodes are of unknown shape, or stand in a subgraph"
    )
    found = _warnings(replace(model, sites=(), source=module))
    assert found == {f"No attention of this file could be read ({why}): only its end was compared."}


def test_module_without_what_can_be_heard(exported: OnnxModel) -> None:
    """A model that was exported here has no attention because its module called none."""
    (found,) = _warnings(replace(exported, sites=()))
    assert found == (
        "No attention was seen in this module, since it does not call scaled_dot_product_attention (for "
        "nn.MultiheadAttention, need_weights=False makes it do so): only the module's end was compared."
    )


def test_attention_that_was_read(exported: OnnxModel) -> None:
    """Nothing is said where the attention was judged."""
    records = verify(exported, ["ort-cpu"], [CheckOptions(sizes={"batch_size": 1, "q_seq_len": 3, "k_seq_len": 4})])
    assert not [warning for record in records for warning in record.warnings if "No attention" in warning]
