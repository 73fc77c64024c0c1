"""Files of onnxruntime's quantizer are read, judged by what they declare, and refused or converted by name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.quantization import QuantFormat, QuantType

from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.judge.agreement import Agreement
from sdpa_onnx.core.judge.attention_outputs import judge_attention_outputs
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Subject
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import LoadOptions, get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.lifted_model import lift, with_lifted_sites
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model
from tests.workflows.quantised_files import Arrays, block, dynamic, feeds, static

Change = Callable[[ir.Graph], None]
_INT8, _UINT8, _INT16 = QuantType.QInt8, QuantType.QUInt8, QuantType.QInt16
STATIC: dict[str, dict[str, Any]] = {
    "uint8": {"activation_type": _UINT8},
    "int8, per channel": {"activation_type": _INT8, "per_channel": True},
    "int8, symmetric": {"activation_type": _INT8, "extra_options": {"ActivationSymmetric": True}},
    "products only": {"activation_type": _UINT8, "op_types_to_quantize": ["MatMul"]},
    "int16": {"activation_type": _INT16, "extra_options": {"UseQDQContribOps": True}},
}
BLOCKS: dict[str, dict[str, bool]] = {
    "plain": {},
    "mask": {"mask": True},
    "div": {"mask": True, "divides": True},
    "scaled operands": {"scaled_operands": True},
}


@pytest.fixture
def made(tmp_path: Path) -> Callable[[str, str], Path]:
    """Quantise a block: (name of the block, name of the options) -> file."""

    def make(source: str, options: str) -> Path:
        plain, target = tmp_path / "plain.onnx", tmp_path / "quantised.onnx"
        onnx.save(block(**BLOCKS[source]), plain)
        static(plain, target, **STATIC[options])
        return target

    return make


def checked(model: OnnxModel) -> list[AgreementRecord]:
    check = CheckOptions(sizes={"batch": 2, "length": 11})
    return check_model(model, get_runtime("ort-cpu"), check, target="t", expectations=ExpectationCache())


@pytest.mark.parametrize("options", STATIC)
@pytest.mark.parametrize("source", BLOCKS)
def test_right_files_are_right(made: Callable[[str, str], Path], source: str, options: str) -> None:
    """20 static files: the attention is read with its pairs, and every check is right."""
    model = with_lifted_sites(load_model(made(source, options))).model
    (site,) = model.sites
    assert site.quantisers is not None
    assert site.quantisers.text == "scores and weights quantized"
    records = checked(model)
    assert [record.reason for record in records if record.outcome is not Outcome.OK] == []
    assert [record.subject for record in records] == [Subject.ATTENTION] * 3


def test_integer_operators_are_refused_by_name(tmp_path: Path) -> None:
    """The format without pairs has no float between the products."""
    onnx.save(block(), tmp_path / "plain.onnx")
    static(tmp_path / "plain.onnx", tmp_path / "q.onnx", quant_format=QuantFormat.QOperator)
    (found,) = lift(load_model(tmp_path / "q.onnx")).found
    assert found.reason == "the scores and the weights are quantized: QLinearSoftmax at node node_weights_quant"


# --- Faults in a file ---


def judged(path: Path, fed: Arrays, change: Change | None = None, declared: Arrays | None = None) -> Agreement:
    """Judge the values of a file with a fault between its products by what the right file declares.

    Args:
        path: The right file, whose attention is the truth.
        fed: Inputs of the faulty run.
        change: Plants the fault in a copy of the graph; None = it has none.
        declared: Inputs of the attention that the judge gets instead of those of the run, by value name.
    """
    model = with_lifted_sites(load_model(path)).model
    site, faulty = model.sites[0], replace(model, ir=model.ir.clone())
    if change is not None:
        change(faulty.ir.graph)
    with get_runtime("ort-cpu").load(faulty.tapped(), LoadOptions()) as session:
        arrays: Arrays = {**model.constants(), **fed, **session.run(fed), **(declared or {})}
    found = judge_attention_outputs(
        site.spec,
        site.arrays_in(arrays),
        {OutputRole.OUTPUT: arrays[site.output]},
        precision=find_precision("float32"),
        mask_rule=site.mask_rule,
    )
    return found[OutputRole.OUTPUT]


def other_scale(name: str, factor: float) -> Change:
    """Both nodes of a pair have another scale."""

    def change(graph: ir.Graph) -> None:
        value = graph.initializers[name]
        assert value.const_value is not None
        value.const_value = ir.tensor(np.float32(factor) * value.const_value.numpy(), name=name)

    return change


def other_zero_point(name: str) -> Change:
    """The DequantizeLinear of a pair has a zero point that is off by one."""

    def change(graph: ir.Graph) -> None:
        value = graph.initializers[name]
        assert value.const_value is not None
        right = value.const_value.numpy()
        wrong = np.asarray(right + (1 if right < np.iinfo(right.dtype).max else -1), right.dtype)
        moved = ir.Value(name="moved", type=value.type, shape=value.shape, const_value=ir.tensor(wrong, name="moved"))
        graph.register_initializer(moved)
        (node,) = [user for user, place in value.uses() if user.op_type == "DequantizeLinear" and place == 2]
        node.replace_input_with(2, moved)

    return change


@pytest.mark.parametrize("name", ["qk", "scores", "masked", "weights"])
@pytest.mark.parametrize("options", ["uint8", "int8, per channel", "int8, symmetric"])
def test_wrong_scale_is_found(made: Callable[[str, str], Path], options: str, name: str) -> None:
    """A scale that is 5 % too large in both nodes of a pair is wrong."""
    path, fed = made("mask", options), feeds(["mask"], seed=9)
    assert judged(path, fed).verdict is Verdict.OK
    assert judged(path, fed, other_scale(f"{name}_scale", 1.05)).verdict is Verdict.WRONG


@pytest.mark.parametrize("name", ["qk", "scores", "weights"])
@pytest.mark.parametrize("options", ["uint8", "int8, per channel", "int8, symmetric"])
def test_wrong_zero_point_is_found(made: Callable[[str, str], Path], options: str, name: str) -> None:
    """A zero point that is off by one in one node is wrong, except after the mask: a softmax does not see it there."""
    path, fed = made("mask", options), feeds(["mask"], seed=9)
    assert judged(path, fed, other_zero_point(f"{name}_zero_point")).verdict is Verdict.WRONG
    assert judged(path, fed, other_zero_point("masked_zero_point")).verdict is Verdict.OK


@pytest.mark.parametrize("options", STATIC)
def test_dropped_key_is_found(made: Callable[[str, str], Path], options: str) -> None:
    """A run that hides one key more than the mask that the judge sees is wrong."""
    path, fed = made("mask", options), feeds(["mask"], seed=9)
    model = with_lifted_sites(load_model(path)).model
    name = model.sites[0].attn_mask
    assert name is not None
    with get_runtime("ort-cpu").load(model.tapped(), LoadOptions()) as session:
        seen = {name: {**fed, **session.run(fed)}[name]}
    hidden = {**fed, "mask": fed["mask"].copy()}
    hidden["mask"][..., -1] = -5.0
    assert judged(path, hidden).verdict is Verdict.OK
    assert judged(path, hidden, declared=seen).verdict is Verdict.WRONG


# --- Exports of ours that were quantised since ---


@pytest.mark.slow
@pytest.mark.parametrize("form", ["attention", "decomposed"])
def test_metadata_does_not_accuse_a_quantised_export(tmp_path: Path, form: str) -> None:
    """The values that our metadata names are those before the pairs; the nodes count."""
    import torch

    import sdpa_onnx

    class Attend(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.projections = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            *operands, last = self.projections
            heads = [one(x).unflatten(2, (4, 8)).transpose(1, 2) for one in operands]
            attended = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
            joined: torch.Tensor = last(attended.transpose(1, 2).flatten(2))
            return joined

    torch.manual_seed(0)
    opset = 23 if form == "attention" else 18
    exported = sdpa_onnx.export(Attend(), (torch.randn(2, 7, 32),), form=form, opset=opset)
    exported.save(tmp_path / "own.onnx")
    static(tmp_path / "own.onnx", tmp_path / "quantised.onnx")
    records = sdpa_onnx.verify(str(tmp_path / "quantised.onnx"), runtimes=["ort-cpu"])
    assert [record.reason for record in records if record.outcome is Outcome.DISAGREES] == []
    assert any(record.outcome is Outcome.OK for record in records)


_COARSE = "The scores are quantized in steps of"


def test_coarse_steps_are_a_warning(tmp_path: Path) -> None:
    """A mask of the lowest number that took part in the calibration leaves the scores no step."""
    onnx.save(block(mask=True), tmp_path / "plain.onnx")
    static(tmp_path / "plain.onnx", tmp_path / "q.onnx")
    model = load_model(tmp_path / "q.onnx")
    value = model.ir.graph.initializers["masked_scale"]
    value.const_value = ir.tensor(np.float32(1.33e36), name="masked_scale")
    (found,) = lift(model).found
    assert found.warnings == (
        f"{_COARSE} 1.33e+36: a smaller difference gives the same weight (node masked_DequantizeLinear).",
    )


def test_dynamic_file_is_judged(tmp_path: Path) -> None:
    """Weights in int8 are outside of the attention, which is judged as in float32."""
    onnx.save(block(mask=True), tmp_path / "plain.onnx")
    dynamic(tmp_path / "plain.onnx", tmp_path / "q.onnx")
    model = with_lifted_sites(load_model(tmp_path / "q.onnx")).model
    assert model.sites[0].quantisers is None
    assert {record.outcome for record in checked(model)} == {Outcome.OK}
