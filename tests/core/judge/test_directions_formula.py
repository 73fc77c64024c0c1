"""Score tests on given numbers: each estimate and its limits in pairs, and each direction by its definition."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import draw_inputs
from sdpa_onnx.core.attention.oracle import HeadBlock, head_blocks
from sdpa_onnx.core.attention.precision import Precision, find_precision
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype
from sdpa_onnx.core.attention.stages import stages_of
from sdpa_onnx.core.judge.bounds import bound_stages
from sdpa_onnx.core.judge.directions import (
    Direction,
    RowScores,
    SharedErrors,
    SizedMistake,
    clipped,
    directions_of,
    find_directions,
    rounded_scale,
    score_rows,
)
from sdpa_onnx.core.judge.sigma import BlockSigma, sigma_of

Float64 = NDArray[np.float64]

FLOAT64, FLOAT32, TF32 = find_precision("float64"), find_precision("float32"), find_precision("tf32")
FLOAT16, BFLOAT16 = find_precision("float16"), find_precision("bfloat16")


def scores(direction: Direction, estimates: Float64, information: Float64 | float = 1.0) -> list[RowScores]:
    """Scores of rows that show this mistake in these sizes, and no other mistake; in two blocks."""
    known = np.zeros((4, estimates.size))
    known[list(Direction).index(direction)] = information
    products = known * estimates
    return [RowScores(information=known[:, part], products=products[:, part]) for part in (slice(0, 3), slice(3, None))]


def alternating(mean: float, apart: float, rows: int = 200) -> Float64:
    """Half of the rows above the mean, half below it."""
    return mean + apart * np.where(np.arange(rows) % 2, 1.0, -1.0)


def found(
    direction: Direction,
    estimates: Float64,
    information: Float64 | float = 1.0,
    *,
    square_sum: float = 1e-3,
    precision: Precision = FLOAT64,
    shared: SharedErrors | None = None,
) -> SizedMistake | None:
    mistakes = find_directions(scores(direction, estimates, information), square_sum, precision, shared)
    assert all(mistake.name == direction.value for mistake in mistakes)
    return mistakes[0] if mistakes else None


# --- The estimate ---


def test_the_estimate_is_the_average_by_information() -> None:
    """Rows count by their information, but none for more than ten times the median; the share is what it explains."""
    information = 1e8 * np.array([1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 4.0, 4.0, 100.0])
    estimates = np.array([0.010, 0.0101, 0.0099, 0.010, 0.0101, 0.0099, 0.010, 0.0101, 0.0102])
    weights = np.minimum(information, 20e8)
    expected = float(weights @ estimates) / float(weights.sum())
    explained = expected**2 * float(weights.sum())
    mistake = found(Direction.SCALE, estimates, information, square_sum=explained / 0.3)
    assert mistake is not None
    assert mistake.estimate == pytest.approx(expected, rel=1e-12)
    assert mistake.share == pytest.approx(0.3, rel=1e-12)
    np.testing.assert_array_equal(clipped(information), weights)
    np.testing.assert_array_equal(clipped(np.array([0.0, 0.0, 1.0, 50.0, 3.0])), [0.0, 0.0, 1.0, 30.0, 3.0])


def test_the_share_is_at_most_one() -> None:
    """Numbers that contradict each other explain no more than everything."""
    mistake = found(Direction.SCALE, alternating(0.01, 0.001), square_sum=1e-9)
    assert mistake is not None
    assert mistake.share == 1.0


@pytest.mark.parametrize(("share", "is_found"), [(0.0201, True), (0.0199, False)])
def test_a_mistake_explains_at_least_a_fiftieth(share: float, is_found: bool) -> None:
    """Certain, but too small a part of the errors to matter."""
    assert (found(Direction.SCALE, alternating(0.01, 1e-4), square_sum=200 * 0.01**2 / share) is not None) is is_found
    rounded = rounded_scale(scores(Direction.SCALE, alternating(0.01, 1e-4)), 200 * 0.01**2 / share, FLOAT16)
    assert (rounded != 0.0) is is_found


@pytest.mark.parametrize(("rows", "is_found"), [(8, True), (7, False)])
def test_eight_rows_are_needed(rows: int, is_found: bool) -> None:
    """And eight independent ones: rows of one cluster count as one."""
    estimates = alternating(0.01, 1e-5, rows)
    assert (found(Direction.SCALE, estimates) is not None) is is_found
    both = np.repeat(estimates, 3)
    clusters = np.repeat(np.arange(rows), 3)
    shared = SharedErrors(variances=np.zeros(4), clusters=(clusters[:3], clusters[3:]))
    assert (found(Direction.SCALE, both, shared=shared) is not None) is is_found


def test_rows_without_information_do_not_count() -> None:
    """Below 1e-12 of the largest there is nothing to learn, whatever the quotient is."""
    estimates, information = alternating(0.01, 1e-5, 20), np.ones(20)
    estimates[:8], information[:8] = 50.0, 0.9e-12
    mistake = found(Direction.SCALE, estimates, information)
    assert mistake is not None
    assert mistake.estimate == pytest.approx(0.01, rel=1e-3)
    information[:8] = 1.1e-12
    wild = found(Direction.SCALE, estimates, information)
    assert wild is None or wild.standard_error > mistake.standard_error


@pytest.mark.parametrize("square_sum", [0.0, -1.0])
def test_without_errors_there_is_no_mistake(square_sum: float) -> None:
    """Nothing to explain."""
    assert found(Direction.SCALE, alternating(0.01, 1e-5), square_sum=square_sum) is None
    assert rounded_scale(scores(Direction.SCALE, alternating(0.01, 1e-5)), square_sum, FLOAT16) == 0.0
    assert find_directions([], 1.0, FLOAT64, None) == ()


def test_the_mistake_that_explains_most_comes_first() -> None:
    """Each direction has its own row of scores."""
    parts = [scores(direction, alternating(size, 1e-6)) for direction, size in
             ((Direction.SCALE, 0.01), (Direction.LAST_KEY, 1.0), (Direction.LEAK, 0.02))]  # fmt: skip
    added = [
        RowScores(
            information=sum(part[block].information for part in parts),  # type: ignore[arg-type] # sum starts with 0
            products=sum(part[block].products for part in parts),  # type: ignore[arg-type]
        )
        for block in range(2)
    ]
    names = [mistake.name for mistake in find_directions(added, 0.5, FLOAT64, None)]
    assert names == ["last key missing", "uniform leak", "scale"]


# --- Its error ---


def test_many_rows_have_the_error_of_their_scatter() -> None:
    """Scatter over the root of the number of rows; six of them are the limit of right results."""
    mistake = found(Direction.SCALE, alternating(0.01, 0.01), information=1e6)
    assert mistake is not None
    assert mistake.standard_error == pytest.approx(0.01 / math.sqrt(200), rel=1e-9)


@pytest.mark.parametrize(("mean", "is_found"), [(0.01 * 6.01, True), (0.01 * 5.99, False)])
def test_six_standard_errors_are_the_limit(mean: float, is_found: bool) -> None:
    """200 rows apart by 0.01 times the root of 200."""
    for sign in (1, -1):
        estimates = sign * alternating(mean, 0.01 * math.sqrt(200))
        assert (found(Direction.SCALE, estimates, information=1e6) is not None) is is_found
        limited = rounded_scale(scores(Direction.SCALE, estimates, 1e6), 1e-3, FLOAT16)
        assert (limited != 0.0) is is_found


def test_few_rows_have_students_error_or_that_of_sigma() -> None:
    """Eight rows: five normal deviates are 37 of Student's with 7 degrees of freedom; or scatter and sigma together."""
    estimates, freedom = alternating(0.01, 0.0001, 8), 7.0
    scatter = 0.0001 / math.sqrt(8)
    normal = 5.0 * (8.0 * freedom + 3.0) / (8.0 * freedom + 1.0)
    student = math.sqrt(freedom * math.expm1(normal**2 / freedom)) / 6.0
    assert student > 2.0
    for information, expected in ((1e2, student * scatter), (1e9, math.hypot(scatter, 1e-9**0.5 * 8**-0.5))):
        mistake = found(Direction.SCALE, estimates, information)
        assert mistake is not None
        assert mistake.standard_error == pytest.approx(expected, rel=1e-9)


def test_clusters_count_as_one_row_and_shared_errors_are_added() -> None:
    """300 rows in 100 clusters: the scatter between the clusters, and the variance that all rows have in common."""
    between, within = alternating(0.0, 0.002, 100), np.tile([-0.001, 0.0, 0.001], 100)
    estimates = 0.05 + np.repeat(between, 3) + within
    labels = np.repeat(np.arange(100), 3)
    shared = SharedErrors(variances=np.array([1e-8, 4.0, 4.0, 4.0]), clusters=(labels[:3], labels[3:]))
    mistake = found(Direction.SCALE, estimates, 1e9, shared=shared)
    assert mistake is not None
    assert mistake.standard_error == pytest.approx(math.hypot(0.002 / math.sqrt(100), 1e-4), rel=1e-6)


# --- What is legitimate ---


@pytest.mark.parametrize(
    ("direction", "precision", "limit"),
    [
        (Direction.SCALE, FLOAT32, 8 * 2.0**-24),
        (Direction.SCALE, TF32, 2 * 2.0**-11),
        (Direction.SCALE, FLOAT16, 2 * 2.0**-11),
        (Direction.SCALE, BFLOAT16, 2 * 2.0**-8),
        (Direction.SCALE, replace(FLOAT32, scores=FLOAT16.scores), 2 * 2.0**-11),
        (Direction.SCALE, replace(FLOAT32, prescaled=FLOAT16.scores), 2 * 2.0**-11),
        (Direction.LEAK, FLOAT32, 4 * 2.0**-24),
        (Direction.LEAK, TF32, 4 * 2.0**-11),
        (Direction.LEAK, replace(FLOAT32, weights=FLOAT16.weights), 4 * 2.0**-11),
        (Direction.LEAK, replace(FLOAT32, output=FLOAT16.output), 4 * 2.0**-11),
    ],
)
def test_what_the_declared_rounding_can_cause_is_no_mistake(
    direction: Direction, precision: Precision, limit: float
) -> None:
    """A certain estimate just below the limit of the format is legitimate, just above it is not."""
    for share, is_found in ((0.99, False), (1.01, True)):
        for sign in (1, -1):
            estimates = np.full(50, sign * share * limit)
            assert (found(direction, estimates, square_sum=limit**2, precision=precision) is not None) is is_found
    if direction is Direction.SCALE:
        for sign in (1, -1):
            for share, taken in ((0.5, 0.5), (3.0, 1.0)):
                estimates = np.full(50, sign * share * limit)
                assert rounded_scale(scores(direction, estimates), limit**2, precision) == (
                    pytest.approx(sign * taken * limit, rel=1e-12)
                )


@pytest.mark.parametrize("direction", [Direction.LAST_KEY, Direction.FIRST_KEY])
@pytest.mark.parametrize(
    ("size", "is_found"), [(0.69, False), (0.71, True), (1.29, True), (1.31, False), (-1.0, False)]
)
def test_a_missing_key_is_missing_altogether(direction: Direction, size: float, is_found: bool) -> None:
    """Its size is 1; a half, twice or the opposite of it is something else."""
    assert (found(direction, alternating(size, 1e-3), square_sum=100.0) is not None) is is_found


@pytest.mark.parametrize("direction", [Direction.LAST_KEY, Direction.FIRST_KEY])
@pytest.mark.parametrize(("error", "is_found"), [(0.74 / 6, True), (0.76 / 6, False)])
def test_a_missing_key_is_clear_by_a_quarter(direction: Direction, error: float, is_found: bool) -> None:
    """The estimate of 1 is a quarter more than six standard errors away from 0."""
    estimates = alternating(1.0, error * math.sqrt(200))
    assert (found(direction, estimates, 1e6, square_sum=1e6) is not None) is is_found


# --- The directions ---

SPECS = {
    "plain": AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=8, v_head_dim=5),
    "causal": AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=8, is_causal=True),
    "window": AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=4, left_window=3, right_window=1),
    "softcap": AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=8, softcap=2.0),
}


def block_of(name: str) -> HeadBlock:
    case = AttentionCase(spec=SPECS[name], q_seq_len=9, kv_seq_len=12, dtype=Dtype.FLOAT64)
    (block,) = head_blocks(SPECS[name], draw_inputs(case, spread=1.5, seed=2))
    return block


def without_key(block: HeadBlock, *, last: bool) -> Float64:
    """The output if the last or first visible key of each query were hidden."""
    bias = block.bias.copy()
    for row in bias:
        row[np.flatnonzero(np.isfinite(row))[-1 if last else 0]] = -np.inf
    return stages_of(replace(block, bias=bias)).output


@pytest.mark.parametrize("name", SPECS)
def test_each_direction_is_what_its_mistake_changes(name: str) -> None:
    """In units of sigma, less the part along the output; rows that see one key have no direction."""
    block = block_of(name)
    stages = stages_of(block)
    sigma = sigma_of(stages, bound_stages(stages, FLOAT32), FLOAT32)
    actual = directions_of(stages, sigma, FLOAT32)
    step = 1e-5
    more, less = (stages_of(replace(block, scale=block.scale * (1 + sign * step))).output for sign in (1, -1))
    visible = np.isfinite(block.bias)
    mean = np.array([block.value[row].mean(0) for row in visible])
    changes = (
        (more - less) / (2 * step),
        without_key(block, last=True) - stages.output,
        without_key(block, last=False) - stages.output,
        mean - stages.output,
    )
    for row in np.flatnonzero(visible.sum(1) > 1):
        output = stages.output[row] / sigma.sigma[row]
        for index, change in enumerate(changes):
            push = change[row] / sigma.sigma[row]
            push -= output * (push @ output) / (output @ output)
            np.testing.assert_allclose(actual.pushes[index, row], push, rtol=1e-6, atol=1e-6 * np.abs(push).max())
            assert actual.information[index, row] == pytest.approx(float(push @ push), rel=1e-6)
    assert not actual.pushes[:, visible.sum(1) == 1].any()


def test_scores_are_projections() -> None:
    """A deviation of twice a direction has twice its information as product."""
    stages = stages_of(block_of("plain"))
    sigma = sigma_of(stages, bound_stages(stages, FLOAT32), FLOAT32)
    directions = directions_of(stages, sigma, FLOAT32)
    for index in range(4):
        actual = score_rows(directions, 2.0 * directions.pushes[index])
        np.testing.assert_allclose(actual.products[index], 2.0 * directions.information[index], rtol=1e-12)


def flat(value: Float64, weights: Float64) -> HeadBlock:
    """Queries that give these weights to the keys of these values."""
    queries, keys = weights.shape
    return HeadBlock(
        batch=0, head=0, rows=np.arange(queries), query=np.log(weights), key=np.eye(keys), value=value,
        bias=np.zeros((queries, keys)), scale=1.0, softcap=0.0,
    )  # fmt: skip


def pushed(block: HeadBlock, precision: Precision) -> NDArray[np.bool_]:
    """Which elements have a direction, with a sigma of one."""
    stages = stages_of(block)
    ones = np.ones_like(stages.output)
    rows = np.ones(ones.shape[0], dtype=bool)
    directions = directions_of(stages, BlockSigma(sigma=ones, judged=rows, regular=~rows, hidden=~rows), precision)
    elements: NDArray[np.bool_] = directions.pushes[3] != 0.0
    return elements


@pytest.mark.parametrize(("precision", "step"), [(FLOAT16, 2.0**-10), (BFLOAT16, 2.0**-7), (TF32, 2.0**-10)])
@pytest.mark.parametrize(("steps", "has_direction"), [(1.95, False), (2.05, True)])
def test_an_output_that_is_rounded_to_its_main_value_has_no_direction(
    precision: Precision, step: float, steps: float, has_direction: bool
) -> None:
    """Within two steps of the format (of TF32's operands) from the value of the key with most weight."""
    weights = np.array([[0.75, 0.25], [0.25, 0.75]])
    # The first row's output is 1; its main value is so many steps below.
    value = np.array([[1.0 - steps * step, 1.0], [1.0 + 3.0 * steps * step, -1.0]])
    assert pushed(flat(value, weights), precision)[0, 0] == has_direction


@pytest.mark.parametrize(("size", "has_direction"), [(1.05, True), (0.95, False)])
def test_a_column_that_varies_by_less_than_a_step_has_no_direction(size: float, has_direction: bool) -> None:
    """Root mean square distance of the outputs from the mean of the values, in steps of the largest output."""
    weights = np.array([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]])
    # The mean of the values is a sixth of `apart` from the outputs, and the value of the main key a half.
    apart = 6.0 * size * 2.0**-10 * 1000.0
    value = np.array([[1000.0 + apart / 2.0, 1.0], [1000.0 - apart / 2.0, -2.0], [1000.0 - apart / 2.0, 5.0]])
    assert pushed(flat(value, weights), replace(FLOAT64, output=FLOAT16.output))[:, 0].all() == has_direction
