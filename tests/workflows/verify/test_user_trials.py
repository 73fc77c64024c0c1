"""Faults that a new user met: each was once called right."""

from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

import sdpa_onnx
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Subject
from sdpa_onnx.errors import ModelError
from sdpa_onnx.torch_export.exporter import export_module
from sdpa_onnx.workflows.export.export_target import export_and_prove


class _Dropped(torch.nn.Module):
    """Attention with dropout behind it, and a planted fault that only the exported graph has."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.dropout = torch.nn.Dropout(0.5)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        if torch.compiler.is_exporting():
            attended = attended * self.factor
        result: torch.Tensor = self.dropout(attended)
        return result


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (1.5, False)])
def test_dropout_is_no_yardstick(factor: float, right: bool) -> None:
    """A module in training mode is judged as it is exported, in evaluation mode, and stays in training mode."""
    module = _Dropped(factor)
    exported = export_and_prove(lambda: export_module(module, (torch.randn(2, 4, 5, 8),)), target="dropped")
    assert exported.is_right is right
    assert module.training


def test_file_that_cannot_be_judged_is_not_ok(tmp_path: Path) -> None:
    """A softmax over the wrong axis between two products is refused by `verify`, not passed over."""
    size = ["batch_size", 2, "seq_len", 8]
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["x", "t"], ["s"]),
        helper.make_node("Softmax", ["s"], ["w"], axis=-2),
        helper.make_node("MatMul", ["w", "x"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "plain", values[:1], values[1:])
    path = tmp_path / "plain.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    with pytest.raises(ModelError, match=r"has 1 attention\(s\) \(softmax between two products\)"):
        sdpa_onnx.verify(path)


def test_one_runtime_that_refuses_does_not_stop_the_others(tmp_path: Path) -> None:
    """A mask over keys only, which ort-cpu refuses, is a failed record there and judged on the other runtime."""
    shapes = {"Q": ["b", 2, "q", 8], "K": ["b", 2, "k", 8], "V": ["b", 2, "k", 8], "attn_mask": ["b", 1, 1, "k"]}
    kinds = {"attn_mask": TensorProto.BOOL}
    inputs = [
        helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), shape) for name, shape in shapes.items()
    ]
    output = helper.make_tensor_value_info("Y", TensorProto.FLOAT, shapes["Q"])
    graph = helper.make_graph([helper.make_node("Attention", list(shapes), ["Y"])], "masked", inputs, [output])
    path = tmp_path / "masked.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11), path)
    records = sdpa_onnx.verify(path, runtimes=["ort-cpu", "onnx-reference"])
    (refused,) = [record for record in records if record.runtime == "ort-cpu" and isinstance(record, AgreementRecord)]
    assert refused.outcome is Outcome.FAILED
    assert "inconsistent q_sequence_length" in refused.reason
    assert {record.outcome for record in records if record.runtime == "onnx-reference"} == {Outcome.OK}


class _Random(torch.nn.Module):
    """Random in evaluation mode too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        return torch.nn.functional.dropout(attended, 0.5, training=True)


@pytest.mark.slow
def test_random_module_is_not_called_right() -> None:
    """A module that gives another output each time has no truth to be compared with, and is not written."""
    exported = export_and_prove(lambda: export_module(_Random(), (torch.randn(2, 4, 5, 8),)), target="random")
    assert not exported.is_right
    assert "returns a different output when it runs again" in exported.record.reason


class _KeywordOnly(torch.nn.Module):
    """Takes its tensor by keyword, and a number beside it."""

    def forward(self, *, x: torch.Tensor, factor: float) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x) * factor


def test_module_is_called_as_it_was_exported() -> None:
    """Keyword-only tensors and constants of the sample reach the module when its end is compared."""
    sample = {"x": torch.randn(2, 4, 5, 8), "factor": 2.0}
    exported = export_and_prove(lambda: export_module(_KeywordOnly(), sample), target="keyword")
    ends = [record for record in exported.agreement if record.subject is Subject.OUTPUT]
    assert exported.is_right
    assert ends
    # Compared with numbers, not passed over because the module could not be called.
    assert all(record.diagnosis.startswith("The largest error is ") for record in ends)


def test_weights_that_are_not_numbers_are_a_record_that_can_be_read() -> None:
    """NaN weights are a finding with finite figures, not a line that nobody can read back."""
    from sdpa_onnx.core.records.records import decode_record, encode_record

    class Broken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((8, 8), float("nan")))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            projected = x @ self.weight
            return torch.nn.functional.scaled_dot_product_attention(projected, projected, projected)

    exported = export_and_prove(lambda: export_module(Broken(), (torch.randn(2, 4, 5, 8),)), target="broken")
    assert not exported.is_right
    for record in (exported.record, *exported.agreement):
        assert decode_record(encode_record(record), where="x:1") == record


def test_metadata_of_another_graph_is_told() -> None:
    """A description with another head_dim than the graph's is refused in words, not by a failing broadcast."""
    from dataclasses import replace

    from sdpa_onnx.workflows.check.feeds import draw_feeds

    model = sdpa_onnx.export(sdpa_onnx.AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8))
    site = replace(model.sites[0], spec=replace(model.sites[0].spec, head_dim=4, v_head_dim=4))
    sizes = {"batch_size": 1, "q_seq_len": 3, "kv_seq_len": 5}
    with pytest.raises(ModelError) as raised:
        draw_feeds(replace(model, sites=(site,)), sizes, spread=1.0, seed=0)
    assert str(raised.value) == (
        "Input 'Q' has shape (1, 2, 3, 8), but the attention that is described has (1, 2, 3, 4) there. "
        "The metadata does not belong to this graph; export it again."
    )


def test_module_without_an_output_is_not_exported() -> None:
    """A forward that returns None leaves nothing to export."""
    from sdpa_onnx.errors import ExportError

    class Silent(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> None:
            torch.nn.functional.scaled_dot_product_attention(x, x, x)

    with pytest.raises(ExportError) as raised:
        export_module(Silent(), (torch.randn(2, 4, 5, 8),))
    assert str(raised.value) == "Silent.forward returns no tensor, so there is nothing to export."
