"""Axes are proved by running; one that was baked is named with the evidence."""

import itertools

import onnx
import pytest

from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Subject
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.torch_export.exporter import export_module
from sdpa_onnx.workflows.verify.axis_links import size_sets
from sdpa_onnx.workflows.verify.dynamic_axes import AxesProof, prove_axes
from tests.graph.models import fixed_batch, fixed_length, fixed_mask
from tests.sweep.fakes import Faulty
from tests.workflows.user_modules import ScaledByLength, ScaledByLogLength, qkv

_AXES = ("batch_size", "q_seq_len", "kv_seq_len")


def _proof(model: OnnxModel, **options: object) -> AxesProof:
    return prove_axes(
        model,
        get_runtime("ort-cpu"),
        target="t",
        traced=model.facts.traced,
        **options,  # type: ignore[arg-type]
    )


def test_sizes_that_are_tried() -> None:
    """Eight sets: 1, 2, a prime and something large on every axis, lengths never alike, batches never constant."""
    sets = size_sets(_AXES)
    assert len(sets) == 8
    for axis in _AXES[1:]:
        tried = [sizes[axis] for sizes in sets]
        assert {1, 2, 13, 128} <= set(tried)
        assert len(set(tried)) == 8
    assert all(sizes["q_seq_len"] != sizes["kv_seq_len"] for sizes in sets)
    assert {sizes["batch_size"] for sizes in sets} == {1, 2, 3, 5}


@pytest.mark.parametrize("name", ["bare_model", "decomposed_model", "module_model", "founding_model"])
def test_right_model_is_proved_at_eight_sizes(name: str, request: pytest.FixtureRequest) -> None:
    """Exported at one size, right at eight others: bare in both forms, a user's module and a founding use."""
    model: OnnxModel = request.getfixturevalue(name)
    proof = _proof(model)
    assert (proof.outcome, proof.reason, proof.baked, proof.sizes_tried) == (Outcome.OK, "", (), 8)
    assert {record.outcome for record in proof.records} == {Outcome.OK}
    sites = [record for record in proof.records if record.subject is not Subject.OUTPUT]
    assert len({(record.sizes.batch_size, record.sizes.q_seq_len, record.sizes.kv_seq_len) for record in sites}) == 8
    assert set(proof.dynamic_axes) >= {"batch_size"}


def test_ends_when_it_is_enough(bare_model: OnnxModel) -> None:
    """The first size set is always run; no other is begun once the caller has enough."""
    assert _proof(bare_model, is_enough=lambda: True).sizes_tried == 1
    asked = itertools.chain([False], itertools.repeat(True))
    assert _proof(bare_model, is_enough=lambda: next(asked)).sizes_tried == 2


def test_batches_of_another_name() -> None:
    """Axes that count samples get small sizes, whatever their name is."""
    assert size_sets(["s77", "s27"], count=2, batches={"s77"}) == [{"s77": 1, "s27": 1}, {"s77": 3, "s27": 2}]


@pytest.mark.parametrize(
    ("graph", "axis", "node"),
    [(fixed_length(), "q_seq_len", "node_view"), (fixed_mask(), "kv_seq_len", "hide")],
    ids=["reshape", "mask"],
)
def test_length_baked_in_a_file_of_another_tool(graph: onnx.ModelProto, axis: str, node: str) -> None:
    """A length that no metadata tells is found from the numbers in the graph, and named with its node."""
    proof = _proof(load_model(graph), count=4)
    assert axis in {found.axis for found in proof.baked}
    assert {found.node for found in proof.baked} == {node}
    assert f"{axis} 7 works, " in next(found.evidence for found in proof.baked if found.axis == axis)


@pytest.mark.parametrize("graph", [fixed_length(size=-1), fixed_mask(size=0)], ids=["reshape", "mask"])
def test_right_twin_of_a_baked_length(graph: onnx.ModelProto) -> None:
    """The same graphs with the length taken from the input are proved free."""
    proof = _proof(load_model(graph), count=4)
    assert (proof.reason, proof.sizes_tried) == ("", 4)


def test_progress_is_told(bare_model: OnnxModel) -> None:
    """After each size set the caller hears how many are done."""
    heard: list[tuple[int, int]] = []
    _proof(bare_model, count=3, on_size=lambda done, of: heard.append((done, of)))
    assert heard == [(1, 3), (2, 3), (3, 3)]


def test_batch_baked_into_a_reshape() -> None:
    """A Reshape with a constant batch is named with axis, node and the sizes that work and do not."""
    proof = _proof(load_model(fixed_batch()))
    assert proof.outcome is Outcome.DISAGREES
    assert [(axis.axis, axis.node) for axis in proof.baked] == [("batch_size", "node_view")]
    assert proof.baked[0].evidence.startswith("batch_size 2 works, ")
    assert proof.reason.startswith("axis 'batch_size' is fixed at 'node_view' (batch_size 2 works, ")


def _with_constant_scale(model: OnnxModel, keys: int) -> OnnxModel:
    """The bare model as an exporter writes it that bakes a scale of 1 / keys into the node."""
    proto = onnx.load_from_string(model.to_bytes())
    node = next(node for node in proto.graph.node if node.op_type == "Attention")
    kept = [attribute for attribute in node.attribute if attribute.name != "scale"]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute("scale", 1.0 / keys)])
    return load_model(proto)


def test_wrong_at_every_size_is_no_baked_axis(bare_model: OnnxModel) -> None:
    """A constant that is wrong everywhere is told with the judge's evidence, and blames no axis."""
    proof = _proof(_with_constant_scale(bare_model, 6))
    assert (proof.outcome, proof.baked) == (Outcome.DISAGREES, ())
    assert proof.failure.startswith("It is wrong wherever it was tried, e.g. at batch_size ")
    assert "bound" in proof.failure


def test_scale_of_a_dynamic_length_is_kept() -> None:
    """1/S_k is exported so that it follows the length, and is proved at sizes where a baked one would be wrong."""
    proof = _proof(export_module(ScaledByLength().eval(), qkv(), opset=23))
    assert (proof.outcome, proof.reason, proof.sizes_tried) == (Outcome.OK, "", 8)
    assert proof.records
    assert {record.outcome for record in proof.records} == {Outcome.OK}


@pytest.mark.parametrize("opset", [18, 23])
def test_scale_of_a_logarithm_is_kept(opset: int) -> None:
    """log S_k follows the length in both forms, and is proved at sizes where a baked one would be wrong."""
    proof = _proof(export_module(ScaledByLogLength().eval(), qkv(), opset=opset), count=4)
    assert (proof.outcome, proof.reason) == (Outcome.OK, "")
    assert any(record.subject is Subject.OUTPUT for record in proof.records)


def test_scale_baked_at_the_traced_length_is_found(bare_model: OnnxModel) -> None:
    """A runtime that is right at the length of the sample only is caught, and the length is named."""

    def baked(inputs: dict, outputs: dict) -> dict:  # type: ignore[type-arg]
        keys = inputs["K"].shape[2]
        return {name: array * (1.0 if keys == 6 else 1.5) for name, array in outputs.items()}

    proof = prove_axes(
        bare_model,
        Faulty(fault=lambda inputs, outputs: _float32(baked(dict(inputs), outputs))),
        target="t",
        traced={"batch_size": 2, "q_seq_len": 5, "kv_seq_len": 6},
    )
    assert [axis.axis for axis in proof.baked] == ["kv_seq_len"]
    assert proof.baked[0].node == "sdpa"
    assert proof.baked[0].evidence.startswith("kv_seq_len 6 works, ")
    assert "bound" in proof.baked[0].evidence


def _float32(outputs: dict) -> dict:  # type: ignore[type-arg]
    return {name: array.astype("float32") for name, array in outputs.items()}


@pytest.mark.parametrize("axis", ["batch_size", "q_seq_len", "kv_seq_len"])
def test_each_axis_alone(bare_model: OnnxModel, axis: str) -> None:
    """Whichever axis is fixed, that one is named and no other."""
    traced = {"batch_size": 2, "q_seq_len": 5, "kv_seq_len": 6}
    place = {"batch_size": ("Q", 0), "q_seq_len": ("Q", 2), "kv_seq_len": ("K", 2)}[axis]

    def baked(inputs: dict, outputs: dict) -> dict:  # type: ignore[type-arg]
        right = inputs[place[0]].shape[place[1]] == traced[axis]
        return outputs if right else {name: array + 1 for name, array in outputs.items()}

    proof = prove_axes(bare_model, Faulty(fault=baked), target="t", traced=traced)  # type: ignore[arg-type]
    assert [found.axis for found in proof.baked] == [axis]


def test_model_without_dynamic_axes_has_nothing_to_prove() -> None:
    """A graph of fixed sizes tries none, and says so."""
    proto = fixed_batch()
    for value in (*proto.graph.input, *proto.graph.output):
        for dim, size in zip(value.type.tensor_type.shape.dim, (2, 4, 16), strict=False):
            if dim.dim_param:
                dim.dim_value = size
    proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 2, 4, 8]))
    proof = _proof(load_model(proto))
    assert (proof.dynamic_axes, proof.sizes_tried, proof.outcome) == ((), 0, Outcome.OK)


def test_other_seed_draws_other_inputs(bare_model: OnnxModel) -> None:
    """The seed reaches the inputs."""

    def errors(seed: int) -> list[float]:
        return [record.max_abs_error for record in _proof(bare_model, seed=seed, count=3).records]

    assert errors(0) == errors(0) != errors(1)


def test_records_name_what_was_judged(bare_model: OnnxModel) -> None:
    """Target, runtime, form and opset stand in every record."""
    for record in _proof(bare_model, count=2).records:
        assert isinstance(record, AgreementRecord)
        assert (record.target, record.runtime, record.form, record.opset) == ("t", "ort-cpu", "attention", 23)
