"""A faulty runtime differs from the real one only in the outputs that the fault changes."""

import numpy as np
import pytest

from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.oracle import attend
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, MaskKind
from sdpa_onnx.core.faults.planted_faults import FAULTS
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import LoadOptions, Supported, get_runtime
from sdpa_onnx.workflows.verify.plant_faults import plant_in
from tests.core.by_name import find_fault
from tests.graph.models import product
from tests.workflows.faulty_runtime import FaultyRuntime

_SPEC = AttentionSpec(
    q_num_heads=4, kv_num_heads=2, head_dim=8, is_causal=True, has_past=True, mask=MaskKind.BOOL, softcap=4.0
)
_CASE = AttentionCase(spec=_SPEC, batch_size=2, q_seq_len=3, kv_seq_len=3, past_seq_len=4)


@pytest.fixture(scope="module")
def model() -> OnnxModel:
    return load_model(build_attention_model(_SPEC, opset=23, dtype=Dtype.FLOAT32))


def _run(model: OnnxModel, fault: str, inputs: AttentionInputs) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    runtime = FaultyRuntime(get_runtime("ort-cpu"), find_fault(fault), seed=4)
    with runtime.load(model, LoadOptions()) as session:
        return session.run(inputs.onnx_feeds())


def test_output_is_the_fault_and_the_cache_is_right(model: OnnxModel) -> None:
    """The output has the fault; outputs that the fault does not change are those of the runtime."""
    inputs = draw_inputs(_CASE)
    outputs = _run(model, "softcap-ignored", inputs)
    wrong = AttentionSpec(**{**{name: getattr(_SPEC, name) for name in _SPEC.__slots__}, "softcap": 0.0})
    np.testing.assert_array_equal(outputs["Y"], attend(wrong, inputs).output.astype(np.float32))
    truth = attend(_SPEC, inputs)
    np.testing.assert_array_equal(outputs["present_key"], truth.present_key.astype(np.float32))
    np.testing.assert_array_equal(outputs["present_value"], truth.present_value.astype(np.float32))


def test_cache_fault_leaves_the_output(model: OnnxModel) -> None:
    """A fault of the cache changes one present output only."""
    inputs = draw_inputs(_CASE)
    outputs, truth = _run(model, "present-key-last-missing", inputs), attend(_SPEC, inputs)
    assert not outputs["present_key"][:, :, -1].any()
    np.testing.assert_allclose(outputs["Y"], truth.output, atol=1e-5)
    np.testing.assert_array_equal(outputs["present_value"], truth.present_value.astype(np.float32))


def test_everything_else_is_the_real_runtime(model: OnnxModel) -> None:
    """Name, version, support and report are those of the real runtime; it is not timed."""
    real = get_runtime("ort-cpu")
    faulty = FaultyRuntime(real, FAULTS[0])
    assert (faulty.name, faulty.version()) == (real.name, real.version())
    assert faulty.supports(model) == faulty.available() == Supported()
    assert not faulty.measures_time
    feeds = draw_inputs(_CASE).onnx_feeds()
    with real.load(model, LoadOptions()) as right, faulty.load(model, LoadOptions()) as wrong:
        right.run(feeds)
        wrong.run(feeds)
        assert wrong.ran() == right.ran()
        wrong.bind(feeds)()


def test_real_outputs_are_not_modified(model: OnnxModel) -> None:
    """Planting a fault does not modify the arrays of the real run."""
    inputs = draw_inputs(_CASE)
    with get_runtime("ort-cpu").load(model, LoadOptions()) as session:
        outputs = session.run(inputs.onnx_feeds())
    before = {name: array.tobytes() for name, array in outputs.items()}
    planted = plant_in(model.sites[0], find_fault("output-zero"), inputs.onnx_feeds(), outputs, seed=0)
    assert {name: array.tobytes() for name, array in outputs.items()} == before
    assert not planted["Y"].any()


def test_only_a_bare_attention_can_have_a_fault() -> None:
    """A model that is not one attention is an error."""
    with pytest.raises(ModelError) as refused:
        FaultyRuntime(get_runtime("ort-cpu"), FAULTS[0]).load(load_model(product()), LoadOptions())
    assert str(refused.value) == (
        "A fault can be planted only in a model of one attention. Export the attention alone."
    )
