"""Sizes that are only a guess take little memory: a file that ran nowhere was tried at 512 samples of length 512."""

import onnx
import pytest
from onnx import helper

from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.workflows.check.long_sizes import alike_guesses, fits_memory
from sdpa_onnx.workflows.verify.dynamic_axes import prove_axes
from tests.graph.models import model_of
from tests.sweep.fakes import Arrays, Faulty, Outputs

_LONG = 40_000


def _model(*numbers: int) -> OnnxModel:
    """A graph without a readable attention that holds these whole numbers."""
    sizes = helper.make_node("Constant", [], ["sizes"], value_ints=list(numbers))
    nodes = [sizes, helper.make_node("Identity", ["x"], ["y"])]
    shape: list[int | str | None] = ["batch_size", "length", 8]
    return load_model(onnx.shape_inference.infer_shapes(model_of(nodes, {"x": shape}, {"y": shape})))


@pytest.mark.parametrize(
    ("samples", "length", "fits"), [(1, 2896, True), (1, 2897, False), (2, 2048, True), (3, 2048, False)]
)
def test_scores_of_all_samples_count(samples: int, length: int, *, fits: bool) -> None:
    """16 heads x samples x queries x keys are at most 2 ** 27 scores."""
    model = _model(3)
    assert fits_memory(model, {"batch_size": samples, "length": length}, model.facts.batch_axes) is fits


def test_one_sample_where_two_are_too_many() -> None:
    """A number that does not even fit with one sample is left out."""
    guesses = alike_guesses(_model(3), ["batch_size", "length"], [7, 2048, 2500, _LONG])
    assert [tuple(sizes.values()) for sizes in guesses] == [(2, 7), (2, 2048), (1, 2500)]


def test_a_file_that_runs_nowhere_is_tried_at_small_sizes() -> None:
    """No run of the search for sizes has more rows than its limit allows."""
    tried = []

    def refuse(inputs: Arrays, _: Outputs) -> Outputs:
        tried.append(inputs["x"].shape)
        raise SessionError("It does not run.")

    proof = prove_axes(_model(3, 512, _LONG), Faulty(refuse), target="t")
    assert proof.failure.startswith("It runs at none of the sizes that were tried, e.g. at ")
    assert {(2, 3, 8), (2, 512, 8), (3, 512, 8), (512, 3, 8)} <= {*tried}
    assert max(samples * length**2 for samples, length, _ in tried) <= 2**23
