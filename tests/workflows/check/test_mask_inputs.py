"""Float masks are fed what masks hold: -inf and the lowest number; axes of their own are found."""

import numpy as np
import onnx.parser
import pytest

from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.workflows.check.feeds import draw_feeds
from sdpa_onnx.workflows.check.lifted_model import lift
from sdpa_onnx.workflows.check.mask_inputs import drawn_as_masks, mask_only_axes

SIZES = {"B": 2, "L": 3, "S": 4, "T": 4}
_MODEL = """
<ir_version: 9, opset_import: ["" : 17]>
attention (float[B,2,L,4] q, float[B,2,S,4] k, float[B,2,S,4] v, MASK) => (float[B,2,L,4] y)
{
  kt = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul (q, kt)
  STEPS
  p = Softmax (x)  y = MatMul (p, v)
}
"""


def read(mask: str, steps: str) -> OnnxModel:
    text = _MODEL.replace("MASK", mask).replace("STEPS", steps)
    return lift(load_model(onnx.parser.parse_model(text))).model


def test_float_masks_hide_keys_by_both_numbers() -> None:
    """Never all keys of a row by -inf; the last row by the lowest number, unless the first key stays visible."""
    model = read("float[B,1,L,T] m", "x = Add (s, m)")
    feeds = draw_feeds(model, SIZES, spread=1.0, seed=0)
    infinite, lowest = drawn_as_masks(model, feeds, keep_visible=False, seed=0)
    assert np.isneginf(infinite["m"]).any()
    assert np.isfinite(infinite["m"][..., 0]).all()
    assert (lowest["m"][..., -1, :] == np.finfo(np.float32).min).all()
    assert (lowest["m"][..., :-1, :] > -1e30).any()
    (_, kept) = drawn_as_masks(model, feeds, keep_visible=True, seed=0)
    assert (kept["m"][..., 0] > -1e30).all()
    assert all(infinite[name] is feeds[name] for name in "qkv")


def test_several_masks_do_not_add_up_to_infinity() -> None:
    """The lowest number twice would be -inf, a row of which has no mean."""
    model = read("float[B,1,L,S] m, float[1,2,L,S] bias", "a = Add (s, m)  x = Add (a, bias)")
    _, lowest = drawn_as_masks(model, draw_feeds(model, SIZES, spread=1.0, seed=0), keep_visible=False, seed=0)
    assert np.isfinite(lowest["m"] + lowest["bias"]).all()


def test_no_mask_is_no_mask() -> None:
    """A query is not drawn so, nor is a boolean mask."""
    model = read("bool[B,1,L,S] m, float none", "x = Where (m, s, none)")
    assert not list(drawn_as_masks(model, draw_feeds(model, SIZES, spread=1.0, seed=0), keep_visible=False, seed=0))


@pytest.mark.parametrize(("axis", "own"), [("S", ()), ("T", ("T",))])
def test_axes_of_masks_alone(axis: str, own: tuple[str, ...]) -> None:
    """They may be 1 where the keys are not."""
    assert mask_only_axes(read(f"float[B,1,L,{axis}] m", "x = Add (s, m)")) == own
