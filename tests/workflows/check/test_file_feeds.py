"""Inputs of files of any maker: indices inside their tables, masks with a hidden row, names for every axis."""

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.workflows.check.feeds import draw_feeds
from sdpa_onnx.workflows.check.file_feeds import named_axes, with_hidden_rows
from tests.workflows.convert_sources import with_ids


def _masked(shape: list[str | int]) -> OnnxModel:
    """A boolean input of some shape, passed on."""
    info = [helper.make_tensor_value_info(name, TensorProto.BOOL, shape) for name in ("keep", "out")]
    graph = helper.make_graph([helper.make_node("Identity", ["keep"], ["out"])], "graph", info[:1], info[1:])
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return load_model(model)


@pytest.mark.parametrize(
    ("shape", "hidden"),
    [
        ([3, 4], (slice(-1, None), slice(None))),
        ([2, 1, 3, 4], (slice(None), slice(None), -1)),
        ([3, 1, 1, 4], (-1,)),
    ],
    ids=["samples", "queries", "one-query"],
)
def test_one_row_is_hidden(shape: list[str | int], hidden: tuple[object, ...]) -> None:
    """The last query, or the last sample where the mask has no queries; all other rows stay as they were."""
    model = _masked(shape)
    feeds = {"keep": np.ones(shape, bool)}  # type: ignore[arg-type]
    found = with_hidden_rows(model, feeds)
    assert found is not None
    assert not found["keep"][hidden].any()  # type: ignore[index]
    rest = found["keep"].copy()
    rest[hidden] = True  # type: ignore[index]
    assert rest.all()
    assert feeds["keep"].all()


@pytest.mark.parametrize(
    ("windows", "visible"), [((), [0]), ((-1,), [0]), ((3,), [0, 4]), ((3, 1), [0, 2, 4, 6])], ids=str
)
def test_every_window_keeps_a_key(windows: tuple[int, ...], visible: list[int]) -> None:
    """Where no query may lose all its keys, a window past the first key still sees one."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=4)
    (site,) = load_model(ir.to_proto(build_attention_model(spec, opset=24, dtype=Dtype.FLOAT32))).sites
    sites = tuple(replace(site, spec=replace(spec, left_window=window)) for window in windows)
    model = replace(_masked([3, 8]), sites=sites)
    found = with_hidden_rows(model, {"keep": np.ones((3, 8), bool)}, keep_visible=True)
    assert found is not None
    assert np.flatnonzero(found["keep"][-1]).tolist() == visible


def test_nothing_to_hide() -> None:
    """Without a mask there are no such inputs."""
    model = load_model(with_ids())
    feeds = draw_feeds(model, {"batch": 2, "seq": 3}, spread=1.0, seed=0)
    assert with_hidden_rows(model, {**feeds, "seen": feeds["seen"][:, :0]}) is None


def test_every_axis_gets_a_name() -> None:
    """Axes without a name get one; what has a name keeps it, an expression too."""
    model = _masked([3, 4])
    value = model.ir.graph.inputs[0]
    value.shape = type(value.shape)([None, "2*n", "p2o.Dim 0", 8])  # type: ignore[misc, call-arg]
    named = named_axes(load_model(model.ir))
    assert named.facts.axes == ("keep_axis0", "n", "p2o.Dim 0")
    assert named_axes(named) is named
