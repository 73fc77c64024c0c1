"""Attention whose head count or width is an axis of the inputs is read at a given size; the other axes stay dynamic."""

from collections.abc import Mapping

import numpy as np
import onnx.parser
import pytest

from sdpa_onnx.core.records.records import AgreementRecord, ExportRecord, Outcome
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.given_heads import with_given_heads
from sdpa_onnx.workflows.verify.verify_file import VerifyExtras, verify_file

_TEXT = """
<ir_version: 9, opset_import: ["" : 17]>
model (INPUTS) => (float[a, b, c, d] y)
<float scale = {0.35355338}, int64 first = {0}, int64 second = {1}, int64[1] axis = {0}, int64[1] rest = {-1},
 int64[4] by_width = {0, 0, -1, 8}, int64[1] keep = {0}>
{
  STEPS
  turned = Transpose <perm = [0, 1, 3, 2]> (k)
  scores = MatMul (q, turned)
  scaled = Mul (scores, scale)
  MASK
  weights = Softmax <axis = -1> (z)
  y = MatMul (weights, v)
}
"""
_FLAT = "float[B, L, 32] x, float[B, L, 32] x2, float[B, L, 32] x3"
_SPLIT = "\n".join(
    f"{name}_apart = Reshape ({source}, shape)  {name} = Transpose <perm = [0, 2, 1, 3]> ({name}_apart)"
    for name, source in (("q", "x"), ("k", "x2"), ("v", "x3"))
)
_FROM_HEADS = """
  sizes = Shape (x)  heads_sizes = Shape (heads)
  b = Gather (sizes, first)  l = Gather (sizes, second)  h = Gather (heads_sizes, first)
  bs = Unsqueeze (b, axis)  ls = Unsqueeze (l, axis)  hs = Unsqueeze (h, axis)
  shape = Concat <axis = 0> (bs, ls, hs, rest)
"""
_BARE = "float[B, H, L, 8] q, float[B, H, S, 8] k, float[B, H, S, 8] v"
KINDS: dict[str, tuple[str, str, str, dict[str, int]]] = {
    "heads of the inputs": (_BARE, "", "", {"H": 4}),
    "three heads and a mask": (f"{_BARE}, float[B, 1, L, S] m", "", "z = Add (scaled, m)", {"H": 3}),
    "width of the inputs": ("float[B, 4, L, D] q, float[B, 4, S, D] k, float[B, 4, S, D] v", "", "", {"D": 8}),
    "heads of another input": (f"{_FLAT}, float[H] heads", _FROM_HEADS + _SPLIT, "", {"H": 4}),
    "heads by the hidden width": (
        _FLAT.replace("32", "N"),
        "shape = Identity (by_width)\n" + _SPLIT,
        "",
        {"N": 32},
    ),
}


def model_of(kind: str) -> OnnxModel:
    inputs, steps, mask, _ = KINDS[kind]
    text = _TEXT.replace("INPUTS", inputs).replace("STEPS", steps).replace("MASK", mask or "z = Identity (scaled)")
    return load_model(onnx.parser.parse_model(text))


def outcomes(kind: str, sizes: Mapping[str, int]) -> tuple[list[Outcome], list[tuple[str, ...]]]:
    records = list(
        verify_file(model_of(kind), ["ort-cpu"], CheckOptions(sizes=sizes), target="t", extras=VerifyExtras())
    )
    agreements = [record.outcome for record in records if isinstance(record, AgreementRecord)]
    return agreements, [record.dynamic_axes for record in records if isinstance(record, ExportRecord)]


@pytest.mark.parametrize("kind", KINDS)
def test_read_and_right_at_the_given_size(kind: str) -> None:
    """The attention is judged, and the axes that were not needed are proved dynamic."""
    sizes = KINDS[kind][3]
    found, axes = outcomes(kind, sizes)
    assert set(found) == {Outcome.OK}
    assert len(found) >= 3
    assert set(axes[0]) == set(model_of(kind).facts.axes) - set(sizes)


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_size_it_is_refused_with_the_option(kind: str) -> None:
    """The reason has the option that helps, where the axis is one of the inputs' own and no part of one."""
    (axis,) = KINDS[kind][3]
    option = "" if kind == "heads by the hidden width" else f" (give it: verify --size {axis}=SIZE)"
    with pytest.raises(ModelError) as raised:
        outcomes(kind, {})
    assert f"not static: node MatMul/scores{option}." in str(raised.value)


def test_sizes_of_given_inputs_count() -> None:
    """The shapes of given arrays fix the heads too."""
    drawn = np.random.default_rng(0)
    arrays = {name: drawn.standard_normal((2, 5, 7, 8)).astype(np.float32) for name in "qkv"}
    lifted, _ = with_given_heads(model_of("heads of the inputs"), CheckOptions(sizes={}, inputs=arrays))
    assert [site.spec.q_num_heads for site in lifted.model.sites] == [5]
    assert set(lifted.model.facts.axes) == {"B", "L", "S"}


def test_a_file_that_is_read_stays_as_it_is() -> None:
    """Sizes of a file with static heads fix nothing."""
    model = model_of("heads of the inputs")
    fixed, _ = with_given_heads(model, CheckOptions(sizes={"H": 2}))
    check = CheckOptions(sizes={"B": 2})
    lifted, same = with_given_heads(fixed.model, check)
    assert same is check
    assert set(lifted.model.facts.axes) == {"B", "L", "S"}
