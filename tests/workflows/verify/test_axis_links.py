"""Axes that must be equally long are linked, also for a runtime that takes unequal ones."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx.parser
import onnx.shape_inference
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.errors import PlanError, SessionError
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, Session, Unsupported, get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.isolate.isolated_runtime import own_process
from sdpa_onnx.workflows.verify.axis_links import axis_links
from sdpa_onnx.workflows.verify.dynamic_axes import prove_axes
from sdpa_onnx.workflows.verify.verify_file import verify_file
from tests.sweep.fakes import Faulty, FaultySession

# A step with a cache: what is new is joined to what was, and the two lengths of the cache have names of their own.
_STEP = """
<ir_version: 10, opset_import: ["": 23]>
step (float[b, 2, n, 8] q, float[b, 2, n, 8] k, float[b, 2, n, 8] v,
      float[b, 2, past_k, 8] old_k, float[b, 2, past_v, 8] old_v) => (float[b, 2, n, 8] y)
{
   keys = Concat <axis = 2> (old_k, k)
   values = Concat <axis = 2> (old_v, v)
   [sdpa] y = Attention (q, keys, values)
}
"""
_LINKS = {"past_v": "past_k"}


@functools.cache
def _step() -> OnnxModel:
    return load_model(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(_STEP)))


class LenientSession(FaultySession):
    """Gives an empty array where the real one refuses."""

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        try:
            return self.fault(inputs, self.session.run(inputs))
        except SessionError:
            return {"y": np.zeros((0, 2, 0, 8), np.float32)}


@dataclass
class Lenient(Faulty):
    """A runtime that refuses no sizes."""

    name: str = "lenient"

    def load(self, model: OnnxModel, options: LoadOptions) -> Session:
        return LenientSession(self.real.load(model, options), self.fault)


def _openvino() -> Runtime:
    runtime = get_runtime("openvino")
    if isinstance(runtime.available(), Unsupported):
        pytest.skip("openvino is not installed")
    return runtime


@pytest.mark.parametrize("make", [lambda: get_runtime("ort-cpu"), Lenient, _openvino], ids=["ort", "lenient", "ov"])
def test_caches_are_linked(make: Callable[[], Runtime]) -> None:
    """Both lengths of the cache go together, whether or not the runtime refuses unequal ones."""
    assert axis_links(_step(), make(), traced={"b": 2, "n": 1, "past_k": 9, "past_v": 9}, seed=0) == _LINKS
    assert axis_links(_step(), make(), traced=None, seed=0) == _LINKS


def test_caches_are_linked_apart() -> None:
    """The strict runtime is asked in a process of its own where the judged one has its own."""
    _openvino()
    with own_process(get_runtime("openvino"), 60.0) as runtime:
        assert axis_links(_step(), runtime, traced=None, seed=0) == _LINKS


def test_lenient_runtime_is_no_finding() -> None:
    """The axes are proved: no size set has caches of unequal lengths."""
    proof = prove_axes(_step(), Lenient(), target="t", count=3)
    assert (proof.outcome, proof.reason, dict(proof.links)) == (Outcome.OK, "", _LINKS)


@pytest.mark.parametrize("sizes", [{}, {"past_v": 9}, {"past_k": 9, "past_v": 9}], ids=["none", "one", "both"])
def test_openvino_on_a_step(sizes: dict[str, int]) -> None:
    """Right where it should be, at chosen and at given lengths."""
    _openvino()
    records = list(verify_file(_step(), ["openvino"], CheckOptions(sizes=sizes, spreads=(1.0,)), target="t"))
    assert len(records) > 1
    assert {record.reason for record in records if record.outcome is not Outcome.OK} == set()


@pytest.mark.parametrize("runtime", ["ort-cpu", "openvino"])
def test_unequal_lengths_that_are_given(runtime: str) -> None:
    """A caller's own mistake is told as such, and is no finding about the runtime."""
    if runtime == "openvino":
        _openvino()
    check = CheckOptions(sizes={"past_k": 9, "past_v": 5})
    with pytest.raises(PlanError) as caught:
        list(verify_file(_step(), [runtime], check, target="t"))
    assert str(caught.value) == (
        "The model runs only where 'past_k' and 'past_v' are equally long, not at 9 and 5. "
        "Give both the same size, or only one of them."
    )


def test_empty_outputs_at_sizes_that_fit_are_found() -> None:
    """The strict runtime excuses only what it refuses itself; values inside that do not fit are told with it."""

    def empty(inputs: object, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: array[:0] for name, array in outputs.items()}

    proof = prove_axes(_step(), Lenient(fault=empty), target="t", count=2)  # type: ignore[arg-type]
    assert proof.outcome is Outcome.DISAGREES
    assert proof.reason.startswith("It is wrong wherever it was tried, e.g. at b 3, n ")
    assert ", key (0, 2, " in proof.reason
    assert " do not match." in proof.reason
