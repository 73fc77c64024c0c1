"""Python makes, reads and checks models as the command line does."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sdpa_onnx as so
from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.records.records import AgreementRecord
from sdpa_onnx.errors import ExportError, ModelError, PlanError
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.lower import lower
from sdpa_onnx.graph.model import OnnxModel

_SPEC = so.AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4, is_causal=True)


def _model() -> OnnxModel:
    return so.load(build_attention_model(_SPEC, opset=23, dtype=so.Dtype.FLOAT32))


def test_inspect_tries_the_axes() -> None:
    """`inspect` runs the model, `find_attention` and run=False read it only."""
    (tried,) = so.inspect(_model())
    assert (tried.node, tried.baked) == ("attention", ())
    assert tried.sizes_tried is not None
    for read in (so.inspect(_model(), run=False), so.find_attention(_model())):
        assert isinstance(read, so.RecordList)
        assert read[0].sizes_tried is None


def test_repr_of_a_file_counts_no_attention_that_it_has_not_searched() -> None:
    """An Attention node is counted when a model is loaded; a hand-written attention is not yet found then."""
    assert "1 attention," in repr(_model())
    message = onnx.load_from_string(so.convert(_model(), "decomposed", runtime=None).to_bytes())
    del message.metadata_props[:]
    bare = so.load(message)
    assert "attentions: see inspect" in repr(bare)
    assert len(so.inspect(bare, run=False)) == 1


def test_export_of_a_spec_in_a_form() -> None:
    """The form is written, and refused in one sentence if it does not exist or needs timing without a runtime."""
    assert so.export(_SPEC, form="blocked").facts.form == "blocked"
    with pytest.raises(PlanError, match=r"^There is no form 'fused'\. Known: "):
        so.export(_SPEC, form="fused")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"^Form 'auto' needs a runtime to time the forms on\."):
        so.export(_SPEC, form="auto")
    with pytest.raises(PlanError, match=r"^seconds requires form='auto'"):
        so.export(_SPEC, seconds=3.0)
    with pytest.raises(PlanError, match=r"^at requires form='auto'"):
        so.convert(_model(), "blocked", at=[{"q_seq_len": 8}])


def test_convert_options() -> None:
    """Options of a form are those of the command."""
    by_query = so.convert(_model(), "decomposed", runtime=None)
    by_scores = so.convert(_model(), "decomposed", runtime=None, scale_placement="scores")
    assert by_query.content_hash() != by_scores.content_hash()
    with pytest.raises(PlanError, match="inner requires form='blocked'"):
        so.convert(_model(), "attention", inner="decomposed")
    with pytest.raises(PlanError, match="scale_placement requires form='decomposed' or 'blocked'"):
        so.convert(_model(), "attention", scale_placement="scores")


def test_inputs_of_the_caller(tmp_path: Path) -> None:
    """Arrays or a file are judged as they are; arrays that do not fit are refused."""
    shape = (1, 2, 3, 4)
    arrays = {name: np.random.default_rng(0).normal(size=shape).astype(np.float32) for name in ("Q", "K", "V")}
    np.savez(tmp_path / "in.npz", allow_pickle=False, **arrays)
    for inputs in (arrays, tmp_path / "in.npz", str(tmp_path / "in.npz")):
        records = so.verify(_model(), inputs=inputs)
        assert [record.outcome for record in records] == ["ok"] * len(records)
    with pytest.raises(PlanError, match=r"^inputs lacks the input 'Q'; it has nothing"):
        so.verify(_model(), inputs={})


def test_what_is_no_model_or_target() -> None:
    """One sentence."""
    with pytest.raises(ModelError, match="there is no such file"):
        so.inspect("missing.onnx")
    with pytest.raises(ExportError, match=r"^A int cannot be exported\."):
        so.export(3)


def test_verify_against_a_module() -> None:
    """A module is compared as its name is, also without sample inputs; what does not accept the inputs is refused."""
    import torch

    class Twice(torch.nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.out = torch.nn.Linear(width, width)

        def forward(self, query: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.out(torch.nn.functional.scaled_dot_product_attention(query, query, query))
            return found

    class Sampled(Twice):
        def sample_inputs(self) -> tuple[torch.Tensor]:
            return (torch.zeros(2, 1, 5, self.out.in_features),)

    module = Sampled(4)
    model = so.load(so.export(module, module.sample_inputs()).ir)
    for right in (module, Twice(4)):
        records = so.verify(model, against=right)
        assert {record.outcome for record in records} == {"ok"}
        assert any(record.subject == "output" for record in records if isinstance(record, AgreementRecord))
    with pytest.raises(PlanError) as caught:
        so.verify(model, against=Sampled(8))
    assert str(caught.value) == (
        "Sampled does not accept the inputs of the model (query: 4 wide, expects 8). Is it the right module?"
    )
    with pytest.raises(PlanError, match=r"^A int is no PyTorch module\."):
        so.verify(model, against=3)


def test_verify_against_the_name_of_a_module_without_sample_inputs(tmp_path: Path) -> None:
    """The file has the inputs: after `export --shape`, the command that `export` prints next runs as it is."""
    file = tmp_path / "bare.py"
    file.write_text(
        "import torch\nimport torch.nn.functional as F\n"
        "class Bare(torch.nn.Module):\n"
        "    factor = 1.0\n"
        "    def forward(self, query):\n"
        "        return F.scaled_dot_product_attention(query, query, query) * self.factor\n"
        "class Other(Bare):\n"
        "    factor = 1.1\n"
    )
    exported = so.export(f"{file}:Bare", shapes={"query": (2, 1, 5, 4)})
    model = so.load(exported.ir)
    assert {record.outcome for record in so.verify(model, against=f"{file}:Bare")} == {"ok"}
    wrong = [record for record in so.verify(model, against=f"{file}:Other") if record.outcome == "disagrees"]
    assert wrong
    assert {record.subject for record in wrong if isinstance(record, AgreementRecord)} == {"output"}


@pytest.mark.slow
def test_export_of_a_module_in_a_form_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a runtime, an export is returned only if it is right there."""
    import torch

    class Block(torch.nn.Module):
        def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    sample = tuple(torch.zeros(1, 2, 5, 4) for _ in range(3))
    assert so.export(Block(), sample, form="ort-mha", runtime="ort-cpu").facts.form == "ort-mha"

    def swapped(
        graph: ir.Model, attention: GraphAttention, form: Form, options: LowerOptions, *, edits: object
    ) -> GraphAttention:
        written = lower(graph, replace(attention, key=attention.value, value=attention.key), form, options)
        return replace(attention, output=written.output)

    monkeypatch.setattr("sdpa_onnx.workflows.choose_form.form_strategy.lower", swapped)
    with pytest.raises(ExportError, match=r"^The export of Block was not proved on ort-cpu: "):
        so.export(Block(), sample, form="ort-mha", runtime="ort-cpu")


@pytest.mark.slow
def test_saturation() -> None:
    """The records of the command, next to their predictions."""
    records = so.saturation(head_dims=[8], kv_seq_lens=[16], draws=4, rows=8, module=False)
    assert [(record.scale_rule, record.head_dim) for record in records] == [("none", 8), ("1/sqrt(d_k)", 8)]
    assert all(measured.predicted is not None for measured in [next(iter(records[0].measures.values()))])


@pytest.mark.slow
def test_conformance() -> None:
    """The rows of the command; an unknown feature is refused."""
    records = so.conformance(only=["causal"], opsets=[23], dtypes=["float32"])
    assert {record.group for record in records} == {"causal"}
    with pytest.raises(PlanError):
        so.conformance(only=["nothing-like-it"])
