"""The bias: every visibility rule by its definition, pair by pair."""

from typing import Any

import numpy as np
import pytest

from sdpa_onnx.core.attention.masks import attn_bias, causal_offset
from tests.core.loops import added_by_mask, is_visible
from tests.core.problems import BY_NAME, PROBLEMS, Problem

PLAIN = (4, 6)


def bias_of(problem: Problem, *, batch: int = 0, head: int = 0, rows: Any = None) -> np.ndarray[Any, Any]:
    case = problem.case()
    return attn_bias(
        case.spec,
        problem.inputs(),
        batch=batch,
        head=head,
        rows=np.arange(case.q_seq_len) if rows is None else np.asarray(rows),
        q_seq_len=case.q_seq_len,
        total_seq_len=case.total_seq_len,
    )


@pytest.mark.parametrize("problem", [p for p in PROBLEMS if p.name != "no-batch"], ids=lambda problem: problem.name)
def test_every_pair_follows_the_rules(problem: Problem) -> None:
    """Each element of the bias of each head equals the rules applied to that pair."""
    case, inputs = problem.case(), problem.inputs()
    for batch in range(case.batch_size):
        for head in range(case.spec.q_num_heads):
            bias = bias_of(problem, batch=batch, head=head)
            assert bias.shape == (case.q_seq_len, case.total_seq_len)
            for (i, j), actual in np.ndenumerate(bias):
                place = (batch, head, i, j)
                seen = is_visible(case.spec, inputs, place, case.q_seq_len)
                assert actual == (added_by_mask(inputs.attn_mask, place) if seen else -np.inf), place


PICTURES = {
    "causal": ["x.....", "xx....", "xxx...", "xxxx.."],
    "causal-past": ["xxxx...", "xxxxx..", "xxxxxx.", "xxxxxxx"],
    "causal-lengths": ["x.....", "xx....", "xxx...", "xxxx.."],
    "causal-lengths-negative-offset": ["......", "......", "x.....", "xx...."],
    "left-window": ["xxxxxx", "xxxxxx", ".xxxxx", "..xxxx"],
    "right-window": ["x.....", "xx....", "xxx...", "xxxx.."],
    "both-windows": ["xxx...", ".xxx..", "..xxx.", "...xxx"],
    "window-causal-past": [".xxx...", "..xxx..", "...xxx.", "....xxx"],
    "lengths": ["xxx...", "xxx...", "xxx...", "xxx..."],
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures(name: str) -> None:
    """What the rules look like, drawn by hand: x may attend."""
    drawn = ["".join("x" if np.isfinite(cell) else "." for cell in row) for row in bias_of(BY_NAME[name])]
    assert drawn == PICTURES[name]


@pytest.mark.parametrize(
    ("name", "batch", "offset"),
    [
        ("causal", 0, 0),
        ("causal-past", 0, 3),
        ("empty-past", 1, 0),
        ("causal-lengths", 0, 0),
        ("causal-lengths", 1, 2),
        ("causal-lengths-negative-offset", 0, -2),
        ("causal-lengths-negative-offset", 1, -3),
    ],
)
def test_the_causal_offset(name: str, batch: int, offset: int) -> None:
    """The past length, the valid keys minus the queries, or 0."""
    assert causal_offset(BY_NAME[name].inputs(), batch=batch, q_seq_len=4) == offset


def test_picked_rows_keep_their_own_positions() -> None:
    """A block's rows are positions in the sample, not in the block."""
    whole = bias_of(BY_NAME["causal"])
    np.testing.assert_array_equal(bias_of(BY_NAME["causal"], rows=[3, 1]), whole[[3, 1]])


@pytest.mark.parametrize("name", ["float-rank-1", "float-rank-2", "float-rank-3", "float-rank-4", "bool-one-row"])
def test_picked_rows_of_a_mask(name: str) -> None:
    """The same for a mask input of every rank."""
    whole = bias_of(BY_NAME[name], batch=1, head=1)
    np.testing.assert_array_equal(bias_of(BY_NAME[name], batch=1, head=1, rows=[2, 0]), whole[[2, 0]])
