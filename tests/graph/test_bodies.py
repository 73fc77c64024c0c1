"""A body of an If, Loop or Scan opened as a model computes what it computes in its place."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from sdpa_onnx.graph.bodies import bodies_of, name_apart
from sdpa_onnx.graph.lift.find import find_attentions
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.opened_bodies import OpenedBody, opened_bodies
from sdpa_onnx.workflows.check.lifted_model import lift
from tests.graph.body_models import BODY_MODELS, PLACES, body_model

_SIZES = {"B": 2, "L": 5, "S": 6, "T": 4, "P": 3}


def _lifted(name: str) -> OnnxModel:
    return lift(OnnxModel(ir=body_model(name), sites=())).model


def _run(model: ir.Model, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    proto = ir.to_proto(model)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    own = {value.name: feeds[value.name] for value in session.get_inputs()}
    return dict(zip((value.name for value in session.get_outputs()), session.run(None, own), strict=True))


def _feeds(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"q": (2, 2, 5, 8), "k": (2, 2, 6, 8), "v": (2, 2, 6, 8), "m": (2, 1, 5, 6)}
    drawn = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    return {**drawn, "c": np.array(True), "t": np.array(True)}


@pytest.mark.parametrize("name", ["if-on-an-input", "if-on-a-constant", "captured-values", "if-in-an-if"])
def test_a_branch_opened_is_the_model_with_its_condition(name: str) -> None:
    """Its output is that of the model, bit by bit."""
    model = _lifted(name)
    (body,) = opened_bodies(model)
    assert [value.name for value in body.model.ir.graph.inputs] == [value.name for value in model.ir.graph.inputs]
    (actual,) = _run(body.model.ir, _feeds()).values()
    np.testing.assert_array_equal(actual, _run(model.ir, _feeds())["y"])


def test_both_branches() -> None:
    """The names in both are the same in the file; opened, each is computed by its own nodes."""
    model = _lifted("attention-in-both-branches")
    long, short = opened_bodies(model)
    assert (long.place, short.place) == ("then_branch of If/y", "else_branch of If/y")
    feeds = _feeds()
    for body in (long, short):
        (actual,) = _run(body.model.ir, feeds).values()
        np.testing.assert_allclose(actual, _run(model.ir, feeds)["y"], rtol=0, atol=0)


def test_a_turn_of_a_loop() -> None:
    """Its inputs are what the loop carries; the number of the turn is 0. Its first turn is that of the loop."""
    (body,) = opened_bodies(_lifted("loop-with-a-cache"))
    assert [value.name for value in body.model.ir.graph.inputs] == ["q", "k", "v", "kc", "vc"]
    feeds = _feeds()
    turn = _run(body.model.ir, {**feeds, "kc": feeds["k"], "vc": feeds["v"]})
    whole = _run(body_model("loop-with-a-cache"), feeds)
    np.testing.assert_array_equal(turn["a"], whole["y"][0])


def test_a_step_of_a_scan() -> None:
    """Its inputs are state and slice."""
    (body,) = opened_bodies(_lifted("scan-over-time"))
    feeds = _feeds()
    queries = np.random.default_rng(1).standard_normal((3, 2, 2, 1, 8), dtype=np.float32)
    whole = _run(body_model("scan-over-time"), {**feeds, "q": queries})
    step = _run(body.model.ir, {**feeds, "q": queries, "h": queries[0] * 0, "qi": queries[0]})
    np.testing.assert_array_equal(step["a"], whole["y"][0])
    assert set(step) == {"hn", "a"}


@pytest.mark.parametrize("name", BODY_MODELS)
def test_every_opened_body_is_valid(name: str) -> None:
    """onnx's checker accepts it, and its attentions are sites that can be tapped."""
    model = _lifted(name)
    bodies = list(opened_bodies(model))
    assert [_attributes(one) for one in bodies] == [place for place in PLACES[name] if place]
    assert len(model.sites) == PLACES[name].count("")
    for one in bodies:
        onnx.checker.check_model(ir.to_proto(one.model.tapped().ir), full_check=True)
        assert len(one.model.sites) == 1


def _attributes(one: OpenedBody) -> str:
    return "/".join(body.attribute for body in one.body.path)


def test_place_of_a_nested_body() -> None:
    """The innermost body comes first, in the words of the file."""
    (body,) = opened_bodies(_lifted("if-in-a-loop"))
    assert body.place == "then_branch of If/hn in body of Loop/y"
    assert body.body.assumption == (
        "in the first turn, with drawn values for what the loop carries, as if its condition held"
    )


def test_names_become_unique() -> None:
    """No two values and no two nodes share a name afterwards; those of the main graph keep theirs."""
    model = body_model("attention-in-both-branches")
    main = [value.name for node in model.graph for value in node.outputs]
    name_apart(model.graph)
    names = [value.name for node in model.graph.all_nodes() for value in node.outputs]
    assert len(set(names)) == len(names)
    assert [value.name for node in model.graph for value in node.outputs] == main
    assert len(list(bodies_of(model.graph))) == 2


def test_the_file_is_not_changed() -> None:
    """The search renames and inserts in its own copy."""
    model = body_model("attention-in-both-branches")
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    find_attentions(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
