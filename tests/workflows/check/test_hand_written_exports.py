"""An export lists the attentions that its module computes by hand: their judgement and metadata are those of a call."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.spec import ScaleRule
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Subject
from sdpa_onnx.graph.model import SPECS_KEY, OnnxModel, load_model
from sdpa_onnx.torch_export.exporter import export_module
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.lifted_model import lift, with_lifted_sites
from sdpa_onnx.workflows.export.export_target import ExportResult, export_and_prove, in_form
from sdpa_onnx.workflows.verify.verify_file import verify_file

_SCALE = 8**-0.5
Tensors = tuple[torch.Tensor, ...]


class Hand(nn.Module):
    """The formula in torch's operators."""

    def __init__(self, compute: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.compute(q, k, v)


def _by_matmul(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(8), -1) @ v


def _by_einsum(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    weights = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) * _SCALE, -1)
    return torch.einsum("bhqk,bkhd->bhqd", weights, v)


def _by_bmm(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    empty = torch.empty(q.shape[0], q.shape[1], k.shape[1])
    scores = torch.baddbmm(empty, q, k.transpose(1, 2), beta=0, alpha=_SCALE)
    return torch.bmm(torch.softmax(scores, -1, dtype=torch.float32), v).unflatten(0, (-1, 4))


def _half_by_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(_by_matmul(q, k, v), k, v)


def _over_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * _SCALE, -2) @ v


class WithWeights(nn.Module):
    """torch's own attention, which returns its weights and so calls no scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True, dropout=0.1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output, weights = self.attention(x, x, x, average_attn_weights=False)
        return output, weights


def _heads() -> Tensors:
    torch.manual_seed(0)
    return torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 8)


def _exported(module: nn.Module, inputs: Tensors, opset: int, path: Path | None = None) -> ExportResult:
    return export_and_prove(
        lambda: in_form(export_module(module.eval(), inputs, opset=opset), None), target="hand", path=path
    )


def _judged(records: object) -> set[str]:
    found = [one for one in records if isinstance(one, AgreementRecord)]  # type: ignore[attr-defined]  # a sequence
    assert all(one.outcome is Outcome.OK for one in found)
    return {one.site for one in found if one.subject is Subject.ATTENTION}


@pytest.mark.slow
@pytest.mark.parametrize(("compute", "opset"), [(_by_matmul, 18), (_by_einsum, 23), (_by_bmm, 18), (_half_by_call, 23)])
def test_attention_by_hand_is_judged(compute: Callable[..., torch.Tensor], opset: int, tmp_path: Path) -> None:
    """The export and a verification of its file judge the same attentions, and nothing is said to be unseen."""
    expected = 2 if compute is _half_by_call else 1
    path = tmp_path / "hand.onnx"
    exported = _exported(Hand(compute), _heads(), opset, path)
    assert exported.is_right
    assert exported.attentions == expected
    assert not [warning for one in exported.agreement for warning in one.warnings if "attention" in warning.lower()]
    sites = _judged(exported.agreement)
    records = list(verify_file(load_model(path), ["ort-cpu"], CheckOptions(sizes={}), target="hand"))
    assert _judged(records) == sites
    assert len(sites) == expected


@pytest.mark.slow
def test_weights_that_are_returned(tmp_path: Path) -> None:
    """torch's attention with need_weights=True is judged; with a weight of each head as an output too."""
    exported = _exported(WithWeights(), (torch.randn(2, 6, 32),), 18, tmp_path / "mha.onnx")
    assert exported.is_right
    assert exported.attentions == 1


@pytest.fixture(scope="module")
def by_hand() -> OnnxModel:
    return in_form(export_module(Hand(_by_matmul).eval(), _heads(), opset=18), None)


@pytest.fixture(scope="module")
def einsum() -> OnnxModel:
    return in_form(export_module(Hand(_by_einsum).eval(), _heads()), None)


def test_metadata_of_attention_by_hand(by_hand: OnnxModel) -> None:
    """The site names values of the graph as it is, so the graph is the one that is judged."""
    (site,) = by_hand.sites
    assert site.spec.scale is ScaleRule.INVERSE_SQRT
    assert with_lifted_sites(by_hand).model is by_hand


def test_metadata_without_names(einsum: OnnxModel) -> None:
    """Operands in another axis order are no values of the graph: the metadata states what is computed."""
    assert einsum.sites == ()
    assert SPECS_KEY in einsum.ir.metadata_props
    assert len(with_lifted_sites(einsum).model.sites) == 1


def _off_by_two_percent(model: OnnxModel, path: Path) -> OnnxModel:
    proto = onnx.load_from_string(model.to_bytes())
    for place, tensor in enumerate(proto.graph.initializer):
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.size == 1:
            proto.graph.initializer[place].CopyFrom(onnx.numpy_helper.from_array(array * np.float32(1.02), tensor.name))
    path.write_bytes(proto.SerializeToString())
    return load_model(path)


@pytest.mark.parametrize("name", ["by_hand", "einsum"])
def test_planted_scale(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A scale that is off by 2 % contradicts the metadata; the file itself does not."""
    model: OnnxModel = request.getfixturevalue(name)
    good = load_model(model.save(tmp_path / "good.onnx"))
    assert lift(good).contradictions == {}
    (text,) = lift(_off_by_two_percent(model, tmp_path / "bad.onnx")).contradictions.values()
    assert "The metadata contradicts the nodes of" in text
    assert "0.353553" in text


def test_requested_form() -> None:
    """A form that is asked for is written for the attentions by hand too."""
    made = export_module(Hand(_half_by_call).eval(), _heads())
    assert in_form(made, None).node_counts()["Softmax"] == 1
    written = in_form(made, Form.ATTENTION)
    assert written.node_counts()["Attention"] == 2
    assert "Softmax" not in written.node_counts()


def test_attention_that_cannot_be_read() -> None:
    """Its reason is a warning of every record, and no other warning contradicts it."""
    model = in_form(export_module(Hand(_over_queries).eval(), _heads(), opset=18), None)
    (reason,) = model.unread or ()
    assert reason == (
        "An attention is not judged (softmax between two products): softmax over axis 2 at node node_softmax."
    )
