"""Attentions in bodies count as often as the bodies run."""

import numpy as np
import onnx
import pytest
from onnx import parser

from sdpa_onnx.graph.model import load_model
from sdpa_onnx.workflows.check.feeds import draw_feeds
from sdpa_onnx.workflows.check.lifted_model import with_lifted_sites
from sdpa_onnx.workflows.timing.graph_visits import UncountedError, visits
from sdpa_onnx.workflows.timing.graph_work import CountedWork, model_work
from tests.graph.body_models import BODY_MODELS, body_proto, body_text

_SIZES = {"B": 2, "L": 5, "S": 7, "T": 3, "P": 4}
# Exponentials, one for each pair of the 2 samples, 2 heads, 5 queries and 7 keys, counted by hand.
_ONE = 2 * 2 * 5 * 7
_EXPS = {
    "if-never-taken": 0,
    "if-in-a-loop": 2 * _ONE,
    "one-outside-one-inside": 2 * _ONE,
    "loop-over-layers": 3 * 2 * 2 * 5 * 5,
    "loop-with-a-cache": 2 * 2 * (5 + 6 + 7),
    "scan-over-time": 3 * 2 * 2 * 7,
}


def _work(proto: onnx.ModelProto) -> CountedWork:
    model = with_lifted_sites(load_model(proto)).model
    sizes = {axis: size for axis, size in _SIZES.items() if axis in model.facts.axes}
    feeds = draw_feeds(model, sizes, spread=1.0, seed=0)
    return model_work(model, sizes, feeds | {name: np.array(True) for name in "ct" if name in feeds})


@pytest.mark.parametrize("name", BODY_MODELS)
def test_counted_by_hand(name: str) -> None:
    """The branch that runs, all turns of a loop, a cache that grows."""
    counted = _work(body_proto(name))
    assert counted.work is not None
    exps = _EXPS.get(name, _ONE)
    assert (counted.work.exps, counted.work.useful_flops, counted.reason) == (exps, exps * 2 * 16, "")


def test_an_unknown_number_of_turns_is_stated() -> None:
    """The number of turns is computed from the contents of an input: there is no count, and a sentence says why."""
    text = body_text("loop-over-layers").replace(
        "n = Constant <value = int64 {3}> ()", "big = ReduceMax <keepdims = 0> (x)  n = Cast <to = 7> (big)"
    )
    assert _work(parser.parse_model(text)) == CountedWork(
        work=None,
        reason="FLOPs and roof are unknown: the number of its turns is not known, so the attention in body of Loop/y "
        "is not counted.",
    )


def test_a_condition_that_may_end_a_loop_is_unknown() -> None:
    """Its turns depend on what it computes."""
    text = body_text("if-in-a-loop").replace("co = Identity (c)", "m = ReduceMax <keepdims = 0> (h)  co = Less (m, sc)")
    assert _work(parser.parse_model(text)).work is None


def test_a_branch_that_is_not_known() -> None:
    """Without the contents of its condition; a body without an attention stops nothing."""
    model = with_lifted_sites(load_model(body_proto("if-on-an-input"))).model
    with pytest.raises(UncountedError, match="it is not known which branch runs"):
        list(visits(model, _SIZES))
    plain = load_model(body_proto("if-on-an-input"))
    assert [visit.times for visit in visits(plain, _SIZES)] == [1]
