"""The proven bound: no right result leaves it, in any order of evaluation, format or input."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.oracle import attend, head_blocks
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype
from sdpa_onnx.core.judge.agreement import expect, judge
from sdpa_onnx.core.judge.block_bound import gamma
from sdpa_onnx.core.judge.bounds import bound_block
from sdpa_onnx.core.records.records import Verdict
from tests.core.kernels import ARITHMETICS, KERNELS, run_kernel, run_torch
from tests.core.problems import BY_NAME, PROBLEMS, Problem

Array = NDArray[Any]

# Queries of the wide sweep; each row is bounded by itself, so few say as much as many.
ROWS = 24


def largest_ratio(spec: AttentionSpec, inputs: AttentionInputs, dtype: str, kernels: list[str]) -> dict[str, float]:
    """Largest |error| / bound of each kernel, after asserting that the judge finds no fault."""
    expectation = expect(spec, inputs, precision=find_precision(dtype))
    ratios = {}
    for name in kernels:
        if name == "torch":
            actual = run_torch(spec, inputs, ARITHMETICS[dtype])
        else:
            actual = run_kernel(KERNELS[name], spec, inputs, ARITHMETICS[dtype])
        found = judge(expectation, actual)
        assert found.verdict in (Verdict.OK, Verdict.ROUNDING_LEVEL), f"{name}: {found.diagnosis}"
        assert found.not_finite == 0
        assert found.warnings == ()
        ratios[name] = found.max_bound_ratio
    return ratios


# --- Right results, every convention ---

# Scores of the emulated float16 stay far below 65504 at these sizes.
COMPUTED = [problem for problem in PROBLEMS if problem.name not in ("no-keys", "no-batch", "no-queries")]


@pytest.mark.parametrize("dtype", Dtype)
@pytest.mark.parametrize("problem", COMPUTED, ids=lambda problem: problem.name)
def test_right_results_lie_inside(problem: Problem, dtype: Dtype) -> None:
    """Masks, windows, softcap, grouping: five evaluation orders in four formats, flat to sharp softmax."""
    for spread in (0.3, 4.0, 30.0):
        inputs = problem.inputs(spread=spread, seed=2, dtype=dtype)
        largest_ratio(problem.case(dtype).spec, inputs, dtype.value, list(KERNELS))


@pytest.mark.parametrize("dtype", Dtype)
@pytest.mark.parametrize("spread", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("head_dim", [8, 64, 200])
@pytest.mark.parametrize("kv_seq_len", [16, 131])
def test_right_results_lie_inside_on_a_grid(head_dim: int, kv_seq_len: int, spread: float, dtype: Dtype) -> None:
    """The same and torch's own kernel over width, length and spread; the bound is not empty either."""
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=1, head_dim=head_dim, is_causal=True)
    case = AttentionCase(spec=spec, q_seq_len=kv_seq_len, dtype=dtype)
    ratios = largest_ratio(spec, draw_inputs(case, spread=spread, seed=head_dim), dtype.value, [*KERNELS, "torch"])
    # Row 0 sees one key and is a plain copy; elsewhere rounding is visible, so a bound of 1e6 times too much shows.
    assert max(ratios.values()) > 1e-4


WIDTHS, LENGTHS, SPREADS = (8, 16, 32, 64, 128, 256, 512, 1024), (16, 64, 256, 1024, 4096), (1.0, 10.0, 100.0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", Dtype)
def test_right_results_lie_inside_up_to_1024_wide_and_4096_long(dtype: Dtype) -> None:
    """The full range of the guarantee: d_k 8 to 1024, 16 to 4096 keys, spread 1 to 100."""
    worst: dict[str, tuple[float, str]] = {}
    for head_dim in WIDTHS:
        spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=head_dim, v_head_dim=min(head_dim, 128))
        for kv_seq_len in LENGTHS:
            case = AttentionCase(spec=spec, q_seq_len=ROWS, kv_seq_len=kv_seq_len, dtype=dtype)
            for spread in SPREADS:
                inputs = draw_inputs(case, spread=spread, seed=head_dim + kv_seq_len)
                for name, ratio in largest_ratio(spec, inputs, dtype.value, [*KERNELS, "torch"]).items():
                    place = f"d_k {head_dim}, {kv_seq_len} keys, spread {spread:g}"
                    worst[name] = max(worst.get(name, (0.0, "")), (ratio, place))
    for name, (ratio, place) in worst.items():
        print(f"{dtype.value:9} {name:11} largest error / bound {ratio:.3g} at {place}")  # noqa: T201 - for `pytest -s`
    assert max(ratio for ratio, _ in worst.values()) <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16])
def test_right_results_lie_inside_on_a_long_square(dtype: Dtype) -> None:
    """4096 causal queries on 4096 keys, sampled rows judged."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=64, is_causal=True)
    inputs = draw_inputs(AttentionCase(spec=spec, q_seq_len=4096, dtype=dtype), seed=1)
    largest_ratio(spec, inputs, dtype.value, ["naive", "prescaled", "tiled", "torch"])


# --- Adversarial inputs ---

SHAPE = {"q_num_heads": 1, "kv_num_heads": 1, "head_dim": 32}
Spoil = Callable[[AttentionInputs], AttentionInputs]


def cancelling(inputs: AttentionInputs) -> AttentionInputs:
    """First half of each product positive, second half negative, thirty times the score."""
    query, key = np.abs(inputs.query) * 4, np.abs(inputs.key) * 4
    key[..., 16:] *= -1
    return replace(inputs, query=query.astype(inputs.query.dtype), key=key.astype(inputs.key.dtype))


def constant(inputs: AttentionInputs) -> AttentionInputs:
    """All roundings have the same sign: 0.1 is not a binary fraction."""
    return replace(
        inputs,
        query=np.full_like(inputs.query, 1.1),
        key=np.full_like(inputs.key, 0.7),
        value=np.full_like(inputs.value, 0.1),
    )


def offset_value(inputs: AttentionInputs) -> AttentionInputs:
    """Values of 1000 and a little: the offset's rounding swamps the little."""
    return replace(inputs, value=(inputs.value + 1000).astype(inputs.value.dtype))


def outlier_key(inputs: AttentionInputs) -> AttentionInputs:
    """One key thirty times as long as the others."""
    key = inputs.key.copy()
    key[:, :, 5] *= 30
    return replace(inputs, key=key)


def outlier_channel(inputs: AttentionInputs) -> AttentionInputs:
    """One channel fifteen times as wide in queries and keys; scores stay below float16's 65504."""
    query, key = inputs.query.copy(), inputs.key.copy()
    query[..., 3] *= 15
    key[..., 3] *= 15
    return replace(inputs, query=query, key=key)


def tiny_value(inputs: AttentionInputs) -> AttentionInputs:
    """Values near the smallest that float16 holds."""
    return replace(inputs, value=(inputs.value * 1e-7).astype(inputs.value.dtype))


def alternating_value(inputs: AttentionInputs) -> AttentionInputs:
    """Values of +-1000 whose average nearly vanishes."""
    value = np.where(np.arange(inputs.value.shape[2]) % 2, 1000.0, -1000.0)[:, None] + inputs.value
    return replace(inputs, value=value.astype(inputs.value.dtype))


def zero_query(inputs: AttentionInputs) -> AttentionInputs:
    """Equal weights."""
    return replace(inputs, query=np.zeros_like(inputs.query))


SPOILERS = [
    cancelling,
    constant,
    offset_value,
    outlier_key,
    outlier_channel,
    tiny_value,
    alternating_value,
    zero_query,
]


@pytest.mark.parametrize("dtype", Dtype)
@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda spoil: spoil.__name__)
def test_adversarial_inputs_stay_inside(spoil: Spoil, dtype: Dtype) -> None:
    """Cancellation, constants, offsets, outliers: what defeats a statistical tolerance keeps to the proof."""
    spec = AttentionSpec(**SHAPE)
    case = AttentionCase(spec=spec, batch_size=2, q_seq_len=40, kv_seq_len=150, dtype=dtype)
    for spread in (1.0, 10.0):
        inputs = spoil(draw_inputs(case, spread=spread, seed=11))
        largest_ratio(spec, inputs, dtype.value, [*KERNELS, "torch"])


@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.FLOAT16])
def test_a_far_key_that_rounding_brings_back(dtype: Dtype) -> None:
    """A key fifty below the highest, whose products cancel: rounding query * sqrt(scale) lifts it to the top.

    The sum of |query| |key| is so large that the declared rounding moves the score by more than fifty: an output of 0
    and one of 1 are both right.
    """
    fmt = ARITHMETICS[dtype.value]
    unit = find_precision(dtype).prescaled.unit_roundoff
    root = float(fmt.store(np.sqrt(0.125)))
    # Of the numbers from 1 to 2: the one that times the root rounds up most, and the one that rounds down most.
    numbers = 1.0 + 2.0 * unit * np.arange(round(0.5 / unit))
    change = fmt.store(numbers * root).astype(np.float64) / (numbers * root)
    up, down = numbers[change.argmax()], numbers[change.argmin()]
    # 31 positive and 31 negative products that all but cancel; two more bring the score to -50.
    size = 8.0 * 140.0 / (0.9 * unit) / 62
    query = np.array([up] * 31 + [down] * 31 + [1.0, 1.0])
    far = np.array([size / up] * 31 + [-size / down] * 31 + [0.0, 0.0]).astype(fmt.storage).astype(np.float64)
    for tuning in (62, 63):
        far[tuning] = np.float64((8 * -50.0 - query @ far).astype(fmt.storage))
    score = query @ far / 8
    assert score == pytest.approx(-50, abs=3), "the far key has no weight"
    inputs = AttentionInputs(
        query=query.reshape(1, 1, 1, 64).astype(fmt.storage),
        key=np.stack([np.zeros(64), far])[None, None].astype(fmt.storage),
        value=np.array([0.0, 1.0]).reshape(1, 1, 2, 1).astype(fmt.storage),
    )
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=64, v_head_dim=1)
    assert run_kernel(KERNELS["prescaled"], spec, inputs, fmt).item() > 0.5, "rounding made it the highest"
    largest_ratio(spec, inputs, dtype.value, ["naive", "tiled", "prescaled"])


def test_subnormal_queries_stay_inside() -> None:
    """The smallest float16 times the root of the scale is 0: scores that vanish are within the declared arithmetic."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=64, v_head_dim=1)
    inputs = AttentionInputs(
        query=np.full((1, 1, 1, 64), 2.0**-24, dtype=np.float16),
        key=np.stack([np.full(64, 6e4), np.full(64, -6e4)])[None, None].astype(np.float16),
        value=np.array([1.0, -1.0]).reshape(1, 1, 2, 1).astype(np.float16),
    )
    assert run_kernel(KERNELS["prescaled"], spec, inputs, ARITHMETICS["float16"]).item() == 0.0
    largest_ratio(spec, inputs, "float16", list(KERNELS))


def test_huge_values_have_a_bound_that_is_a_number() -> None:
    """Values whose square overflows float64 are judged, not waved through with NaN."""
    spec = AttentionSpec(**SHAPE)
    inputs = draw_inputs(AttentionCase(spec=spec, q_seq_len=8, dtype=Dtype.FLOAT64))
    huge = replace(inputs, value=inputs.value * 1e200)
    expectation = expect(spec, huge, precision=find_precision("float64"))
    right = attend(spec, huge).output
    assert judge(expectation, right).verdict is Verdict.OK
    assert judge(expectation, right * 1.01).verdict is Verdict.WRONG


# --- Formats that declare more rounding ---


def test_a_weaker_format_allows_more() -> None:
    """Bounds grow with every format declared: float64, float32, TF32 or float16, float16 accumulators."""
    problem = BY_NAME["gqa"]
    (block, *_) = head_blocks(problem.case().spec, problem.inputs())
    names = ("float64", "float32", "tf32", "float16", "float16-accumulation")
    bounds = [bound_block(block, find_precision(name)).bound for name in names]
    for weaker, stronger in zip(bounds[1:], bounds[:-1], strict=True):
        assert (weaker > stronger).all()


def test_tf32_operands_lie_inside_tf32_and_outside_float32() -> None:
    """A product with 11-bit operands is right for TF32 and proven wrong for float32."""
    spec = AttentionSpec(**SHAPE)
    inputs = draw_inputs(AttentionCase(spec=spec, q_seq_len=64))

    def to_tf32(array: Array) -> Array:
        bits = array.astype(np.float32).view(np.uint32)
        return ((bits + 0x0FFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)).view(np.float32)

    rounded = replace(inputs, query=to_tf32(inputs.query), key=to_tf32(inputs.key), value=to_tf32(inputs.value))
    actual = run_kernel(KERNELS["naive"], spec, rounded, ARITHMETICS["float32"])
    assert judge(expect(spec, inputs, precision=find_precision("tf32")), actual).verdict is Verdict.OK
    assert judge(expect(spec, inputs, precision=find_precision("float32")), actual).verdict is Verdict.WRONG


def test_tf32_rounds_weights_and_values_both() -> None:
    """Values just below a midpoint of TF32 and weights of 1/9 are rounded down both: one and a half unit roundoffs."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=4)
    value = np.full((1, 1, 9, 4), 1 + 2.0**-11 - 2.0**-20, dtype=np.float32)
    inputs = AttentionInputs(
        query=np.zeros((1, 1, 2, 4), dtype=np.float32), key=np.ones((1, 1, 9, 4), dtype=np.float32), value=value
    )
    expectation = expect(spec, inputs, precision=find_precision("tf32"))
    found = judge(expectation, run_kernel(KERNELS["naive"], spec, inputs, ARITHMETICS["tf32"]))
    assert found.max_abs_error > 1.4 * 2.0**-11
    assert found.mismatched == 0


def test_more_keys_and_wider_heads_allow_more() -> None:
    """The bound of equal weights grows with the number of terms in each sum."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=4)
    sizes = []
    for keys in (4, 64, 1024):
        ones = np.ones((1, 1, keys, 4))
        (block,) = head_blocks(spec, AttentionInputs(query=ones[:, :, :1], key=ones, value=ones))
        sizes.append(bound_block(block, find_precision("float32")).bound.item(0))
    assert sizes == sorted(sizes)
    assert sizes[2] > 10 * sizes[0]


def test_the_bound_of_one_visible_key_is_a_few_roundings() -> None:
    """A copied value may be off by the row sum, division and output, not by the logits."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=4)
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, 1, 1, 1, 4))
    (block,) = head_blocks(spec, AttentionInputs(query=100 * query, key=100 * key, value=value))
    bound = bound_block(block, find_precision("float32")).bound
    assert (bound < 20 * 2.0**-24 * np.abs(value[0, 0])).all()
    assert (bound > 2.0**-24 * np.abs(value[0, 0])).all()


def test_a_hidden_row_allows_next_to_nothing() -> None:
    """Where no key is visible only underflow is allowed."""
    problem = BY_NAME["all-hidden"]
    for block in head_blocks(problem.case().spec, problem.inputs()):
        assert (bound_block(block, find_precision("float32")).bound < 1e-35).all()


@pytest.mark.parametrize(
    ("terms", "unit", "expected"),
    [
        (0, 2.0**-24, 0.0),
        (1, 2.0**-24, 2.0**-24 / (1 - 2.0**-24)),
        (100, 1e-3, 0.1 / 0.9),
        (499, 1e-3, 0.499 / 0.501),
        (500, 1e-3, 1.0),
        (2000, 1e-3, 4.0),
    ],
)
def test_gamma(terms: int, unit: float, expected: float) -> None:
    """n u / (1 - n u) below a half, twice n u from there."""
    assert float(gamma(terms, unit)) == pytest.approx(expected, rel=1e-12)


# --- The derivative that the smallest proven scale error comes from ---


@pytest.mark.parametrize(
    "name",
    ["plain", "gqa", "causal-past", "float-mask", "bool-mask", "scale-negative", "softcap", "softcap-float-mask"],
)
def test_per_scale_is_the_derivative(name: str) -> None:
    """d output / d ln(scale) equals a central difference of the oracle, also under a softcap."""
    spec, inputs = BY_NAME[name].case().spec, BY_NAME[name].inputs(seed=4)
    step = 1e-6
    higher = attend(replace(spec, scale=spec.scale_value * (1 + step)), inputs).output
    lower = attend(replace(spec, scale=spec.scale_value * (1 - step)), inputs).output
    expected = (higher - lower) / (2 * step)
    assert np.abs(expected).max() > 1e-3
    for block in head_blocks(spec, inputs):
        actual = bound_block(block, find_precision("float64")).per_scale
        np.testing.assert_allclose(actual, expected[block.batch, block.head, block.rows], rtol=1e-5, atol=1e-8)


def test_the_bound_s_output_is_the_oracle_s() -> None:
    """Judge and oracle speak of the same truth."""
    spec, inputs = BY_NAME["softcap-float-mask"].case().spec, BY_NAME["softcap-float-mask"].inputs()
    output = attend(spec, inputs).output
    for block in head_blocks(spec, inputs):
        actual = bound_block(block, find_precision("float32")).output
        np.testing.assert_array_equal(actual, output[block.batch, block.head, block.rows])
