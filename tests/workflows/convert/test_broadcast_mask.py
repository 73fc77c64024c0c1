"""A mask of opset 23 whose last axis is 1 keeps its meaning when it is written in a form or at a later opset."""

import numpy as np
import onnx.parser
import pytest

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import attend
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import LoadOptions, get_runtime
from sdpa_onnx.workflows.convert.convert_model import convert_model


def _model(mask: str, opset: int = 23) -> OnnxModel:
    values = f"float[2,4,5,8] q, float[2,4,5,8] k, float[2,4,5,8] v, {mask} mask, float[2,4,3,8] pk, float[2,4,3,8] pv"
    text = f'<ir_version: 10, opset_import: ["" : {opset}]> g ({values}) => (float[2,4,5,8] y, float[2,4,8,8] a, '
    body = "float[2,4,8,8] b) { y, a, b = Attention (q, k, v, mask, pk, pv) }"
    return load_model(onnx.parser.parse_model(text + body))


def _feeds(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((2, 4, 5, 8), dtype=np.float32) for name in "qkv"}
    feeds |= {name: rng.standard_normal((2, 4, 3, 8), dtype=np.float32) for name in ("pk", "pv")}
    return {**feeds, "mask": rng.standard_normal(shape, dtype=np.float32)}


@pytest.mark.parametrize("opset", [23, 24, 25])
@pytest.mark.parametrize("form", [Form.DECOMPOSED, Form.ATTENTION, Form.BLOCKED])
def test_a_mask_that_broadcasts_over_the_keys(form: Form, opset: int) -> None:
    """Opset 25 would hide every key but the first: the mask is expanded."""
    feeds = _feeds((5, 1))
    converted = convert_model(_model("float[5,1]"), form, opset=opset, again=True)
    assert converted.converted
    with get_runtime("ort-cpu").load(converted.model, LoadOptions()) as session:
        actual = session.run(feeds)["y"]
    (site,) = _model("float[5,1]").sites
    given = {name: feeds[value] for name, value in site.inputs.items()}
    wide = np.repeat(feeds["mask"], 8, axis=1)
    expected = attend(site.spec, AttentionInputs(**{**given, "attn_mask": wide})).output
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_a_mask_of_opset_24_keeps_its_padding() -> None:
    """There the last axis of 1 is one key; nothing is expanded."""
    converted = convert_model(_model("float[5,1]", 24), Form.ATTENTION, opset=25, again=True)
    assert "Expand" not in converted.model.node_counts()
