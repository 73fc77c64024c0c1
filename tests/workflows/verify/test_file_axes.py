"""What a file says of itself: static axes among dynamic ones, and scales of one length."""

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper

from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.graph.model_facts import TRACED_KEY
from sdpa_onnx.workflows.verify.inspect_file import scale_doubts, static_axes
from tests.graph.models import bare, fixed_batch, model_of


def _declared(**inputs: list[int | str | None]) -> OnnxModel:
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in inputs]
    return load_model(model_of(nodes, dict(inputs), {f"{name}_out": shape for name, shape in inputs.items()}))


@pytest.mark.parametrize(
    ("inputs", "found"),
    [
        ({"x": [2, "length", 16]}, ["the batch axis 0 of 'x' is fixed to 2 in the file"]),
        ({"x": ["batch", 7, 16]}, ["the sequence axis 1 of 'x' is fixed to 7 in the file"]),
        ({"Q": ["batch", 4, 5, 8]}, ["the sequence axis 2 of 'Q' is fixed to 5 in the file"]),
        (
            {"x": ["batch", "length", 16], "attn_mask": [1, 1, 5, "length"]},
            ["the sequence axis 2 of 'attn_mask' is fixed to 5 in the file"],
        ),
    ],
)
def test_static_among_dynamic(inputs: dict[str, list[int | str | None]], found: list[str]) -> None:
    """The axis, its input and its size are told."""
    assert list(static_axes(_declared(**inputs))) == found


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": ["batch", "length", 16]},
        {"x": [2, 7, 16]},
        {"Q": ["batch", 4, "length", 8], "attn_mask": [1, 1, 1, "length"]},
        {"x": ["batch", 16]},
        {"x": ["batch", "length", 16], "gain": [16]},
    ],
    ids=["all", "none", "broadcast", "width", "vector"],
)
def test_nothing_to_tell(inputs: dict[str, list[int | str | None]]) -> None:
    """Free axes, a file without any, broadcasts and widths are no static axes."""
    assert static_axes(_declared(**inputs)) == ()


def test_ids_are_sequences() -> None:
    """Two axes of whole numbers are batch and sequence."""
    model = model_of([helper.make_node("Identity", ["ids"], ["y"])], {"ids": [2, "length"]}, {"y": [2, "length"]})
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("ids", TensorProto.INT64, [2, "length"]))
    assert static_axes(load_model(model)) == ("the batch axis 0 of 'ids' is fixed to 2 in the file",)


def _traced(scale: float, **sizes: int) -> OnnxModel:
    model = bare(AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=64, scale=scale))
    if sizes:
        model.ir.metadata_props[TRACED_KEY] = msgspec.json.encode(sizes).decode()
    return load_model(model.ir)


_DOUBT = (
    "attention: scale 0.0625 is not 1/sqrt(d_k) = 0.125; it equals 1/n for a length n = 16 and may be fixed to that "
    "length; verify --against MODULE proves or clears it."
)


@pytest.mark.parametrize("sizes", [{}, {"q_seq_len": 5, "kv_seq_len": 16}, {"new": 6, "past": 10}])
def test_scale_of_one_length(sizes: dict[str, int]) -> None:
    """1/16 is doubted where nothing is known, where 16 was a length, and where two lengths make 16."""
    assert scale_doubts(_traced(1 / 16, **sizes)) == (_DOUBT,)


@pytest.mark.parametrize("scale", [0.3, 1.0, 1 / 64, 0.125])
def test_scale_without_doubt(scale: float) -> None:
    """A constant of no length and the rules of the width are silent."""
    assert scale_doubts(_traced(scale)) == ()


def test_scale_of_no_traced_length() -> None:
    """Where the sizes are known and none explains it, the scale is the module's own."""
    assert scale_doubts(_traced(1 / 16, q_seq_len=5, kv_seq_len=7)) == ()


def test_fixed_batch_is_declared_free() -> None:
    """What a file hides in a Reshape is not read off its inputs: only running finds it."""
    proto = fixed_batch()
    assert isinstance(proto, onnx.ModelProto)
    assert static_axes(load_model(proto)) == ()
