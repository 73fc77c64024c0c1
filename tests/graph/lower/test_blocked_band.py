"""A mask of the lowest numbers with a band: blocks skip keys only where every query sees one within the band."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.spec import AttentionSpec, MaskKind
from sdpa_onnx.core.attention.window_bounds import WindowBounds
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower import blocked_plan
from sdpa_onnx.graph.lower.lower import lower
from sdpa_onnx.graph.nodes import Nodes
from tests.graph.lower.canonical import Bare

Array = NDArray[np.float32]
SPEC = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8, mask=MaskKind.FLOAT)
LOWEST = float(np.finfo(np.float32).min)
LENGTH = 150
BANDS = {
    "causal": WindowBounds(right=0),
    "window to the left": WindowBounds(left=20, right=0),
    "window to both sides": WindowBounds(left=9, right=30),
    "window to the right": WindowBounds(right=70),
}


def session(band: WindowBounds, *, mask_axes: list[int | str] | None = None) -> ort.InferenceSession:
    """The blocked form of an attention whose mask has this band."""
    model, attention = Bare(spec=SPEC, opset=17, mask_axes=mask_axes).build()
    lower(model, replace(attention, mask_band=band), Form.BLOCKED)
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = 1
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), settings, ["CPUExecutionProvider"])


def drawn(
    band: WindowBounds, hidden: str, *, batch: int = 3, queries: int = LENGTH, keys: int = LENGTH
) -> dict[str, Array]:
    """Inputs, with a mask of the band and of padding by the lowest number."""
    rng = np.random.default_rng(0)
    distance = np.arange(keys) - np.arange(queries)[:, None]
    seen = (distance <= (keys if band.right is None else band.right)) & (
        distance >= (-queries if band.left is None else -band.left)
    )
    padding = np.ones((batch, 1, 1, keys), np.bool_)
    match hidden:
        case "start":
            padding[0, ..., :100] = False
        case "end":
            padding[0, ..., 40:] = False
        case "a sample":
            padding[1] = False
        case "a key":
            padding[..., 0] = False
        case _:
            pass
    mask = np.where(seen & padding, np.float32(0), np.float32(LOWEST))
    shapes = {"Q": (batch, 4, queries, 8), "K": (batch, 2, keys, 8), "V": (batch, 2, keys, 8)}
    drawn = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {**drawn, "attn_mask": mask}


def expected(feeds: dict[str, Array]) -> Array:
    """softmax(QK^T / sqrt(8) + mask) V, in float32 as in a source, so that the lowest number absorbs a score."""
    key, value = (np.repeat(feeds[name], 2, axis=1) for name in ("K", "V"))
    scores = feeds["Q"] @ key.swapaxes(-1, -2) / np.float32(np.sqrt(8)) + feeds["attn_mask"]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True) @ value)


def error(run: ort.InferenceSession, feeds: dict[str, Array]) -> float:
    return float(np.abs(run.run(None, feeds)[0] - expected(feeds)).max())


@pytest.mark.parametrize("band", BANDS.values(), ids=BANDS)
def test_every_row_is_what_the_mask_says(band: WindowBounds) -> None:
    """Also a query that sees no key: it averages over all keys."""
    run = session(band)
    for hidden in ("nothing", "start", "end", "a sample", "a key"):
        assert error(run, drawn(band, hidden)) < 1e-5, hidden


@pytest.mark.parametrize(("queries", "keys"), [(1, 150), (64, 64), (65, 65), (100, 130), (130, 100)])
def test_other_lengths(queries: int, keys: int) -> None:
    """Few queries, ragged blocks, and different lengths."""
    band = BANDS["window to the left"]
    feeds = drawn(band, "a key", queries=queries, keys=keys)
    found = session(band).run(None, feeds)[0]
    assert found.shape == (3, 4, queries, 8)
    np.testing.assert_allclose(found, expected(feeds), atol=1e-5)


@pytest.mark.parametrize(
    ("axes", "part"),
    [(["L", "T"], (0, 0)), (["B", "H", "L", "T"], ...), ([1, 1, "L", "T"], np.s_[:1])],
    ids=["two axes", "every head", "one sample"],
)
def test_other_shapes_of_the_mask(axes: list[int | str], part: object) -> None:
    """The guard reads masks that broadcast over samples or heads, and of several heads."""
    band = BANDS["causal"]
    feeds = drawn(band, "start", batch=2)
    if axes[0] == "B":
        feeds["attn_mask"] = np.repeat(feeds["attn_mask"], 4, axis=1)
        feeds["attn_mask"][1, 3, 120] = LOWEST  # in one head only, this query sees nothing
    feeds["attn_mask"] = np.ascontiguousarray(feeds["attn_mask"][part])  # type: ignore[index]
    assert error(session(band, mask_axes=axes), feeds) < 1e-5


def test_keys_outside_are_not_read() -> None:
    """A NaN in a later key reaches only queries of the blocks that see it, unless some query there sees no key."""
    band = BANDS["causal"]
    for hidden, spoiled in (("nothing", False), ("a sample", True)):
        feeds = drawn(band, hidden, batch=2)
        feeds["K"][1, :, -1] = np.nan
        found = session(band).run(None, feeds)[0]
        assert bool(np.isnan(found[1, :, :64]).any()) is spoiled, hidden
        assert not np.isnan(found[0]).any()


def test_planted_skip_without_a_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """If blocks always skip, a query that sees no key averages over too few, and the check above notices."""

    def always(nodes: Nodes, attention: GraphAttention, highest: ir.Value, **_: object) -> ir.Value:
        return nodes.constant(True, ir.DataType.BOOL)

    monkeypatch.setattr(blocked_plan, "is_seen_by_all", always)
    band = BANDS["causal"]
    run = session(band)
    assert error(run, drawn(band, "nothing")) < 1e-5
    assert error(run, drawn(band, "start")) > 0.1
