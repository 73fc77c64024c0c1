"""Integer inputs: every draw obeys the operators, differs between samples and reaches the edge."""

import numpy as np
import pytest

from sdpa_onnx.graph.integers.meaning import IntegerGraph
from sdpa_onnx.graph.integers.rules import RULES
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.check.feeds import Feeds, draw_feeds
from sdpa_onnx.workflows.check.integer_draws import IllegalSizesError, unknown_integers
from sdpa_onnx.workflows.check.legal_sizes import nearest_legal
from tests.graph.integers.graphs import GRAPHS, graph


def _broken(model: OnnxModel, sizes: dict[str, int], feeds: Feeds) -> list[str]:
    shapes = {name: array.shape for name, array in feeds.items()}
    integers = IntegerGraph(model.ir, shapes, sizes)
    for value in integers.in_order:
        integers.draw(value, feeds[value.name or ""])
    return list(integers.broken())


@pytest.mark.parametrize("draws", [4, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", GRAPHS)
def test_every_draw_is_legal(name: str, draws: int) -> None:
    """No constraint of the table is broken, at any size, whatever the seed."""
    case = GRAPHS[name]
    model = graph(case.body, case.opset)
    for sizes in case.sizes:
        for seed in range(draws):
            assert _broken(model, sizes, draw_feeds(model, sizes, spread=1.0, seed=seed)) == []


def test_every_rule_is_drawn() -> None:
    """The graphs of these tests have an input for each row of the table, but for operators outside attention."""
    texts = " ".join(case.body for case in GRAPHS.values())
    missing = {rule.operator for rule in RULES if f"{rule.operator}" not in texts}
    assert missing == {"EmbedLayerNormalization", "GatherElements", "GatherND", "ScatterElements"}


_BREAKS: dict[str, tuple[str, dict[str, object]]] = {
    "past the total": ("gqa", {"lens": [0, 0, 6], "total": [6]}),
    "none reaches the total": ("gqa", {"lens": [0, 0, 1], "total": [4]}),
    "longer than the cache": ("gqa", {"lens": [0, 0, 8], "total": [9]}),
    "the outside case": ("gqa", {"lens": [0, 0, 1], "total": [1]}),
    "beyond the tables": ("gqa-positions", {"ids": [[3], [16], [0]]}),
    "more than the keys": ("mha-lengths", {"mask": [9, 10, 1]}),
    "no room": ("scatter", {"at": [0, 8, 3]}),
    "beyond the table": ("table", {"ids": 10}),
    "below the table": ("table", {"ids": -3}),
    "longer than the mask": ("lengths", {"n": [10, 1, 2]}),
}


@pytest.mark.parametrize("name", [name for name in _BREAKS if name != "more than the keys"])
def test_broken_constraint_is_seen(name: str) -> None:
    """The check of a draw notices numbers that the operator does not accept, just outside the limit too."""
    which, changes = _BREAKS[name]
    case = GRAPHS[which]
    model, sizes = graph(case.body), case.sizes[0]
    feeds = draw_feeds(model, sizes, spread=1.0, seed=0)
    for key, numbers in changes.items():
        array = np.asarray(numbers, feeds[key].dtype)
        feeds[key] = np.broadcast_to(array, feeds[key].shape).copy()
    assert _broken(model, sizes, feeds)


@pytest.mark.parametrize(
    ("name", "value", "sizes"),
    [
        ("gqa", "lens", {"b": 3, "s": 1, "p": 6}),
        ("scatter", "at", {"b": 3, "n": 5}),
        ("mha-lengths", "mask", {"b": 3, "s": 4, "t": 9}),
        ("lengths", "n", {"b": 3, "s": 4, "t": 9, "m": 9}),
        ("rotary", "ids", {"b": 3, "s": 7}),
        ("table", "ids", {"b": 3, "s": 7}),
        ("genai", "attention_mask", {"b": 3, "s": 1, "p": 6, "t": 7}),
    ],
)
def test_samples_differ(name: str, value: str, sizes: dict[str, int]) -> None:
    """No two samples get the same numbers, where there are enough."""
    for seed in range(5):
        drawn = draw_feeds(graph(GRAPHS[name].body), sizes, spread=1.0, seed=seed)[value]
        if name != "gqa" or drawn.max() >= 2:
            assert len(np.unique(drawn.reshape(3, -1), axis=0)) == 3


def test_edge_is_drawn() -> None:
    """One sample fills the cache, or has all keys; positions rise by one; a slot is written once."""
    at = draw_feeds(graph(GRAPHS["scatter"].body), {"b": 3, "n": 5}, spread=1.0, seed=1)["at"]
    assert at.max() == 7
    lengths = draw_feeds(graph(GRAPHS["mha-lengths"].body), {"b": 3, "s": 4, "t": 9}, spread=1.0, seed=1)["mask"]
    assert lengths.max() == 9
    rows = draw_feeds(graph(GRAPHS["rotary"].body), {"b": 3, "s": 7}, spread=1.0, seed=1)["ids"]
    assert (np.diff(rows) == 1).all()
    slots = draw_feeds(graph(GRAPHS["scatter-nd"].body), {"n": 12}, spread=1.0, seed=1)["at"]
    assert sorted(slots.tolist()) == list(range(12))


def test_lengths_differ_between_the_steps_of_a_ladder() -> None:
    """Each spread gets lengths of its own."""
    model = graph(GRAPHS["gqa"].body)
    drawn = [draw_feeds(model, {"b": 3, "s": 1, "p": 30}, spread=spread, seed=0)["lens"] for spread in (0.3, 1.0, 4.0)]
    assert len({array.tobytes() for array in drawn}) == 3


_MEANT: dict[str, tuple[str, dict[str, int], str, tuple[int, int]]] = {
    "keys up to a length": (
        """g (int64[b,1] n, float[b,t] x) => (bool[b,t] y) <int64 zero = {0}, int64 one = {1}>
        { shape = Shape <start: int = 1> (x)  end = Squeeze(shape)  keys = Range(zero, end, one)
          y = Less(keys, n) }""",
        {"b": 3, "t": 9},
        "n",
        (1, 9),
    ),
    "keys up to a position": (
        """g (int64[b,s] at, float[b,t] x) => (bool[b,s,t] y) <int64 zero = {0}, int64 one = {1}, int64[1] last = {2}>
        { shape = Shape <start: int = 1> (x)  end = Squeeze(shape)  keys = Range(zero, end, one)
          rows = Unsqueeze(at, last)  y = LessOrEqual(keys, rows) }""",
        {"b": 3, "s": 4, "t": 9},
        "at",
        (0, 8),
    ),
    "the end of a slice": (
        """g (int64[1] n, float[b,t] x) => (float[b,m] y) <int64[1] zero = {0}, int64[1] axis = {1}>
        { y = Slice(x, zero, n, axis) }""",
        {"b": 3, "t": 9},
        "n",
        (1, 9),
    ),
    "a mask by a sum": (
        """g (int64[b,t] m) => (int64[b,t] y) <int64 axis = {1}> { y = CumSum(m, axis) }""",
        {"b": 3, "t": 9},
        "m",
        (0, 1),
    ),
    "a mask by a cast": (
        "g (int64[b,t] m) => (bool[b,t] y) { y = Cast <to: int = 9> (m) }",
        {"b": 3, "t": 9},
        "m",
        (0, 1),
    ),
    "positions of a sine": (
        """g (int64[b,s] p, float[4] f) => (float[b,s,4] y) <int64[1] last = {2}>
        { x = Cast <to: int = 1> (p)  u = Unsqueeze(x, last)  a = Mul(u, f)  y = Sin(a) }""",
        {"b": 3, "s": 9},
        "p",
        (0, 18),
    ),
    "a table behind a range": (
        """g (int64 past, float[b,s] x, float[20,4] table) => (float[s,4] y) <int64 one = {1}>
        { shape = Shape <start: int = 1> (x)  new = Squeeze(shape)  end = Add(past, new)  at = Range(past, end, one)
          y = Gather(table, at) }""",
        {"b": 2, "s": 7},
        "past",
        (0, 13),
    ),
    "a name": (
        "g (int64[b,s] position_ids) => (int64[b,s] y) { y = Identity(position_ids) }",
        {"b": 3, "s": 5},
        "position_ids",
        (0, 10),
    ),
}


@pytest.mark.parametrize("name", _MEANT)
def test_meaning_is_found_in_the_graph(name: str) -> None:
    """What follows an input says what it is, and how large; beyond 0 and 1 where it is no mask."""
    body, sizes, value, (low, high) = _MEANT[name]
    model = graph(body)
    drawn = [draw_feeds(model, sizes, spread=1.0, seed=seed)[value] for seed in range(20)]
    assert low <= min(array.min() for array in drawn)
    assert max(array.max() for array in drawn) <= high
    assert high == 1 or max(array.max() for array in drawn) > 1
    assert unknown_integers(model.ir) == ()


def test_unknown_meaning_is_said() -> None:
    """What nothing explains is 0 or 1, and a sentence says so."""
    model = graph("g (int64[b,3] x) => (int64[b,3] y) { y = Identity(x) }")
    assert set(np.unique(draw_feeds(model, {"b": 50}, spread=1.0, seed=0)["x"])) == {0, 1}
    assert unknown_integers(model.ir) == ("Input 'x' is drawn as 0 or 1: its meaning is unknown.",)


def test_sizes_without_room_are_refused() -> None:
    """More new entries than the cache holds have no legal index: an error that names the input, and smaller sizes."""
    model = graph(GRAPHS["scatter"].body)
    with pytest.raises(IllegalSizesError, match="No numbers of input 'at' are legal at these sizes"):
        draw_feeds(model, {"b": 3, "n": 13}, spread=1.0, seed=0)
    assert draw_feeds(model, {"b": 3, "n": 12}, spread=1.0, seed=0)["at"].tolist() == [0, 0, 0]
    assert nearest_legal(model, {"b": 3, "n": 40}) == {"b": 3, "n": 10}
    assert nearest_legal(model, {"b": 3, "n": 40}, keep=("n",)) is None


def test_sum_of_two_axes_is_found() -> None:
    """A mask that must be as long as the cache and the new tokens gets that length."""
    model = graph(GRAPHS["genai"].body)
    found = nearest_legal(model, {"b": 1, "s": 20, "p": 6, "t": 64}, keep=("s", "p"))
    assert found == {"b": 1, "s": 20, "p": 6, "t": 26}
    # A buffer of 13 keys, of which 8 are used.
    assert nearest_legal(model, {"b": 3, "s": 1, "p": 13, "t": 64}) == {"b": 3, "s": 1, "p": 13, "t": 8}
