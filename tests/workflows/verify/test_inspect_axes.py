"""`inspect` tries the axes of a file for a short time and says what it found."""

import itertools

import onnx

from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.workflows.verify.inspect_axes import AxesTrial, try_axes
from sdpa_onnx.workflows.verify.inspect_file import inspect_model
from tests.graph.models import fixed_batch, fixed_length, fixed_mask


def _trial(model: OnnxModel | onnx.ModelProto, runtime: str = "ort-cpu", *, seconds: float = 0.0) -> AxesTrial:
    """Try a model with a clock that moves by so much at each look."""
    loaded = load_model(model)
    ticks = itertools.count()
    records = inspect_model(loaded, target="t")
    return try_axes(loaded, records, runtime, target="t", clock=lambda: seconds * next(ticks))


def test_right_file(bare_model: OnnxModel) -> None:
    """Nothing fixed, four sizes."""
    trial = _trial(bare_model)
    assert trial.says == "Every attention is right at 4 sizes (lengths to 97) on ort-cpu."
    assert [(record.baked, record.sizes_tried, record.warnings) for record in trial.records] == [((), 4, ())]


def test_fixed_axis_is_in_the_record() -> None:
    """The axis, its node and the evidence."""
    trial = _trial(fixed_batch())
    assert trial.says.startswith(
        "Not proved at 4 sizes (lengths to 64) on ort-cpu: axis 'batch_size' is fixed at 'node_view' ("
    )
    assert [(axis.axis, axis.node) for axis in trial.records[0].baked] == [("batch_size", "node_view")]


def test_file_of_which_nothing_is_judged() -> None:
    """It is run all the same: a fixed length is found, and a right one is not called judged."""
    assert "axis 'q_seq_len' is fixed at 'node_view'" in _trial(fixed_length()).says
    right = _trial(fixed_mask(size=0))
    assert right.says == "It runs (nothing in it could be judged) at 4 sizes (lengths to 97) on ort-cpu."


def test_ends_in_time(bare_model: OnnxModel) -> None:
    """Once its seconds are over no further size is begun, and the number of sizes says so."""
    trial = _trial(bare_model, seconds=60.0)
    assert trial.says == "Every attention is right at 1 size (lengths to 64) on ort-cpu."
    assert trial.records[0].sizes_tried == 1


def test_axis_without_a_name() -> None:
    """Sizes cannot be chosen for an axis that has no name, and that is said."""
    proto = fixed_batch()
    proto.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    trial = _trial(proto)
    assert trial.says.startswith("Axes were not tried: Input 'x' has an axis without a name.")
    assert trial.records[0].sizes_tried is None
