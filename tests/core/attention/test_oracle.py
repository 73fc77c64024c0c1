"""The oracle: founding examples, a second opinion by loops, 50 digits, and laws that attention obeys."""

import warnings
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sdpa_onnx.core.attention import oracle
from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import QkOutputMode, attend, head_blocks, softmax, split_heads
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, Layout, MaskKind
from sdpa_onnx.core.judge.agreement import expect, judge
from sdpa_onnx.errors import CaseError
from tests.core.loops import attend_by_loops
from tests.core.problems import BY_NAME, PROBLEMS, Problem

Float64 = NDArray[np.float64]

ONE_HEAD = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=1)

# Float64 against float64: sums of a few dozen terms, logits below a hundred.
RTOL, ATOL = 1e-12, 1e-13


def tensor(*rows: list[float]) -> Float64:
    """One sample, one head."""
    return np.array([[rows]], dtype=float)


# --- The founding examples ---


def test_a_quarter_and_three_quarters() -> None:
    """Weights 0.25 and 0.75 on the values 2 and 6 yield 5."""
    inputs = AttentionInputs(query=tensor([1.0]), key=tensor([0.0], [np.log(3)]), value=tensor([2.0], [6.0]))
    result = attend(ONE_HEAD, inputs, qk_mode=QkOutputMode.WEIGHTS)
    np.testing.assert_allclose(result.qk, [[[[0.25, 0.75]]]], rtol=1e-15)
    np.testing.assert_allclose(result.output, [[[[5.0]]]], rtol=1e-15)


def test_a_quarter_and_three_quarters_of_two_columns() -> None:
    """The same weights on [2, 0] and [0, 4] yield [0.5, 3]."""
    spec = replace(ONE_HEAD, v_head_dim=2)
    inputs = AttentionInputs(query=tensor([1.0]), key=tensor([0.0], [np.log(3)]), value=tensor([2.0, 0.0], [0.0, 4.0]))
    np.testing.assert_allclose(attend(spec, inputs).output, [[[[0.5, 3.0]]]], rtol=1e-15)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16])
@pytest.mark.parametrize("name", ["gqa", "bsh-gqa-causal-past", "float-mask", "softcap"])
def test_inputs_of_few_bits_are_computed_in_float64(name: str, dtype: Dtype) -> None:
    """Inputs of a short format yield, to the last bit, what the same numbers yield as float64."""
    spec, inputs = BY_NAME[name].case(dtype).spec, BY_NAME[name].inputs(dtype=dtype)
    wide = AttentionInputs(
        **{
            field: array if array.dtype.kind in "bi" else array.astype(np.float64)
            for field, array in inputs.named().items()
        }
    )
    mode = QkOutputMode.SCORES
    actual, expected = attend(spec, inputs, qk_mode=mode), attend(spec, wide, qk_mode=mode)
    for field in ("output", "present_key", "present_value", "qk"):
        found = getattr(actual, field)
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, getattr(expected, field))


def test_key_is_transposed() -> None:
    """K of shape 2 x 3 becomes 3 x 2: one query of width 3 scores two keys."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=3, v_head_dim=1, scale=1.0)
    inputs = AttentionInputs(
        query=tensor([1.0, 10.0, 100.0]), key=tensor([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]), value=tensor([0.0], [0.0])
    )
    (block,) = head_blocks(spec, inputs)
    assert block.key.shape == (2, 3)
    assert block.key.T.shape == (3, 2)
    assert block.scores().shape == (1, 2)
    np.testing.assert_array_equal(block.scores(), [[321.0, 654.0]])


def test_scores_are_divided_by_the_root_of_the_width() -> None:
    """With d_k 64, equal ones score 64 / 8."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=64)
    ones = np.ones((1, 1, 1, 64))
    result = attend(spec, AttentionInputs(query=ones, key=ones, value=ones), qk_mode=QkOutputMode.SCORES)
    assert result.qk is not None
    assert result.qk.item() == 8.0


# --- A second opinion ---


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_agrees_with_nested_loops(problem: Problem) -> None:
    """Every convention once: the oracle equals three loops over Python floats."""
    spec, inputs = problem.case().spec, problem.inputs()
    actual = attend(spec, inputs).output
    expected = attend_by_loops(spec, inputs)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=RTOL, atol=ATOL)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_agrees_with_nested_loops_on_sharp_logits(problem: Problem) -> None:
    """The same where a row is nearly one-hot, so that the highest logit must be subtracted."""
    spec, inputs = problem.case().spec, problem.inputs(spread=40.0, seed=1)
    np.testing.assert_allclose(attend(spec, inputs).output, attend_by_loops(spec, inputs), rtol=1e-10, atol=1e-11)


def test_logits_of_a_thousand_do_not_overflow() -> None:
    """exp(1000) is infinite in float64; softmax of equal thousands is not."""
    inputs = AttentionInputs(query=tensor([1000.0]), key=tensor([1.0], [1.0]), value=tensor([2.0], [6.0]))
    assert attend(ONE_HEAD, inputs).output.item() == 4.0


def test_agrees_with_fifty_digits() -> None:
    """Softcap, past and causality at once, against mpmath."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=7, softcap=3.0, is_causal=True, has_past=True)
    rng = np.random.default_rng(5)
    query, key, value = rng.standard_normal((3, 1, 1, 4, 7)) * 2
    past_key, past_value = rng.standard_normal((2, 1, 1, 3, 7))
    actual = attend(
        spec, AttentionInputs(query=query, key=key, value=value, past_key=past_key, past_value=past_value)
    ).output[0, 0]
    keys, values = np.concatenate([past_key, key], axis=2)[0, 0], np.concatenate([past_value, value], axis=2)[0, 0]
    with mpmath.workdps(50):
        for row in range(4):
            seen = range(row + 3 + 1)
            dots = [mpmath.fdot(query[0, 0, row].tolist(), keys[j].tolist()) / mpmath.sqrt(7) for j in seen]
            weights = [mpmath.exp(3 * mpmath.tanh(dot / 3)) for dot in dots]
            for column in range(7):
                right = mpmath.fdot(weights, [float(values[j, column]) for j in seen]) / mpmath.fsum(weights)
                assert abs(actual[row, column] - right) < 1e-14


# --- Fully masked rows ---


@pytest.mark.parametrize("name", ["all-hidden", "no-keys"])
def test_nothing_visible_gives_zeros(name: str) -> None:
    """The output of a query without a visible key is zero, not NaN and not the mean of the values."""
    problem = BY_NAME[name]
    output = attend(problem.case().spec, problem.inputs()).output
    assert output.size > 0
    assert not output.any()


def test_a_hidden_row_beside_a_seen_row() -> None:
    """Only the row that sees nothing is zero, and its weights are zero too."""
    problem = BY_NAME["bool-mask"]
    result = attend(problem.case().spec, problem.inputs(), qk_mode=QkOutputMode.WEIGHTS)
    assert result.qk is not None
    assert not result.output[:, :, -1].any()
    assert not result.qk[:, :, -1].any()
    np.testing.assert_allclose(result.qk[:, :, 0].sum(-1), 1.0, rtol=1e-15)


def test_queries_before_the_first_key_see_nothing() -> None:
    """With a negative causal offset only the first queries have zero output."""
    problem = BY_NAME["causal-lengths-negative-offset"]
    output = attend(problem.case().spec, problem.inputs()).output
    # 4 queries, 2 and 1 valid keys: offsets -2 and -3.
    assert [bool(row.any()) for row in output[0, 0]] == [False, False, True, True]
    assert [bool(row.any()) for row in output[1, 0]] == [False, False, False, True]


# --- The other outputs ---


def test_the_four_stages_of_the_scores() -> None:
    """Scores, after softcap, after mask and weights each follow their formula."""
    problem = BY_NAME["softcap-float-mask"]
    spec, inputs = problem.case().spec, problem.inputs()
    stages = {mode: attend(spec, inputs, qk_mode=mode).qk for mode in QkOutputMode}
    key = np.repeat(inputs.key, 3, axis=1)
    scores = np.einsum("bhid,bhjd->bhij", inputs.query, key) / np.sqrt(5)
    capped = 1.5 * np.tanh(scores / 1.5)
    masked = capped + inputs.attn_mask
    weights = np.exp(masked) / np.exp(masked).sum(-1, keepdims=True)
    for mode, right in zip(QkOutputMode, (scores, capped, masked, weights), strict=True):
        np.testing.assert_allclose(stages[mode], right, rtol=1e-12, atol=1e-14, err_msg=mode.name)


def test_scores_are_left_out_unless_asked_for() -> None:
    """No mode, no rows x keys array."""
    assert attend(BY_NAME["plain"].case().spec, BY_NAME["plain"].inputs()).qk is None


def test_present_is_past_then_new() -> None:
    """The cache precedes the new keys, and stays 4-D when the other arrays are 3-D."""
    problem = BY_NAME["bsh-gqa-causal-past"]
    inputs = problem.inputs()
    result = attend(problem.case().spec, inputs)
    assert inputs.past_key is not None
    assert inputs.past_value is not None
    assert result.present_key.shape == (2, 2, 6, 5)
    assert result.present_value.shape == (2, 2, 6, 3)
    np.testing.assert_array_equal(result.present_key[:, :, :2], inputs.past_key)
    np.testing.assert_array_equal(result.present_value[:, :, :2], inputs.past_value)
    np.testing.assert_array_equal(result.present_key[:, 1, 2:], inputs.key[:, :, 5:])
    np.testing.assert_array_equal(result.present_value[:, 1, 2:], inputs.value[:, :, 3:])


def test_both_layouts_are_one_attention() -> None:
    """3-D is 4-D with the heads moved side by side."""
    spec = BY_NAME["gqa"].case().spec
    inputs = BY_NAME["gqa"].inputs()

    def flat(array: NDArray[Any]) -> NDArray[Any]:
        return array.transpose(0, 2, 1, 3).reshape(array.shape[0], array.shape[2], -1)

    in_3d = AttentionInputs(query=flat(inputs.query), key=flat(inputs.key), value=flat(inputs.value))
    actual = attend(replace(spec, layout=Layout.BSH), in_3d).output
    np.testing.assert_array_equal(actual, flat(attend(spec, inputs).output))


@pytest.mark.parametrize(("batch_size", "queries", "keys"), [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_3d_arrays_without_an_element(batch_size: int, queries: int, keys: int) -> None:
    """No sample, query or key: the output still has the width of all heads."""
    spec = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=5, v_head_dim=3, layout=Layout.BSH)
    inputs = AttentionInputs(
        query=np.ones((batch_size, queries, 20)),
        key=np.ones((batch_size, keys, 10)),
        value=np.ones((batch_size, keys, 6)),
    )
    output = attend(spec, inputs).output
    assert output.shape == (batch_size, queries, 12)
    assert not output.any()


def test_query_heads_share_neighbouring_key_heads() -> None:
    """Grouped heads are repeated (0 0 0 1 1 1), not tiled (0 1 0 1 0 1)."""
    spec, inputs = BY_NAME["gqa"].case().spec, BY_NAME["gqa"].inputs()
    repeated = replace(inputs, key=np.repeat(inputs.key, 3, axis=1), value=np.repeat(inputs.value, 3, axis=1))
    multi_head = replace(spec, kv_num_heads=6)
    np.testing.assert_array_equal(attend(spec, inputs).output, attend(multi_head, repeated).output)
    tiled = replace(inputs, key=np.tile(inputs.key, (1, 3, 1, 1)), value=np.tile(inputs.value, (1, 3, 1, 1)))
    assert np.abs(attend(spec, inputs).output - attend(multi_head, tiled).output).max() > 0.1


def test_softmax_of_no_keys_is_empty() -> None:
    """No column, no maximum."""
    assert softmax(np.zeros((3, 0))).shape == (3, 0)


# --- Blocks ---


def test_rows_are_picked_in_the_order_asked() -> None:
    """Only the wanted queries of each head, with their own bias."""
    spec, inputs = BY_NAME["causal"].case().spec, BY_NAME["causal"].inputs()
    blocks = list(head_blocks(spec, inputs, rows=np.array([0, 2])))
    assert [(block.batch, block.head) for block in blocks] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for block in blocks:
        np.testing.assert_array_equal(block.rows, [0, 2])
        np.testing.assert_array_equal(np.isfinite(block.bias).sum(1), [1, 3])
        np.testing.assert_array_equal(block.query, inputs.query[block.batch, block.head][[0, 2]])


@pytest.mark.parametrize("elements", [1, 6, 7, 13])
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_blocks_do_not_change_the_result(problem: Problem, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut into blocks of one row or of a few, the same output and scores."""
    spec, inputs = problem.case().spec, problem.inputs()
    whole = attend(spec, inputs, qk_mode=QkOutputMode.AFTER_MASK)
    monkeypatch.setattr(oracle, "_BLOCK_ELEMENTS", elements)
    cut = attend(spec, inputs, qk_mode=QkOutputMode.AFTER_MASK)
    np.testing.assert_allclose(cut.output, whole.output, rtol=RTOL, atol=ATOL)
    np.testing.assert_allclose(cut.qk, whole.qk, rtol=RTOL, atol=ATOL)
    if elements == 1:
        # One row a block.
        assert len(list(head_blocks(spec, inputs))) == inputs.query.size // spec.head_dim


# --- Laws ---

SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def attentions(draw: st.DrawFn) -> tuple[AttentionSpec, AttentionInputs]:
    """A masked attention of a few queries and keys, any grouping and spread."""
    kv_num_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    q_seq_len, kv_seq_len = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    spec = AttentionSpec(
        q_num_heads=kv_num_heads * group,
        kv_num_heads=kv_num_heads,
        head_dim=draw(st.integers(1, 6)),
        v_head_dim=draw(st.integers(1, 4)),
        mask=MaskKind.FLOAT,
        softcap=draw(st.sampled_from([0.0, 0.5, 20.0])),
    )
    rng = np.random.default_rng(draw(SEEDS))
    width = draw(st.sampled_from([0.1, 1.0, 5.0]))
    mask = rng.standard_normal((1, spec.q_num_heads, q_seq_len, kv_seq_len))
    mask[rng.random(mask.shape) < draw(st.sampled_from([0.0, 0.4, 1.0]))] = -np.inf
    inputs = AttentionInputs(
        query=width * rng.standard_normal((1, spec.q_num_heads, q_seq_len, spec.head_dim)),
        key=width * rng.standard_normal((1, kv_num_heads, kv_seq_len, spec.head_dim)),
        value=rng.standard_normal((1, kv_num_heads, kv_seq_len, spec.v_head_dim)),
        attn_mask=mask,
    )
    return spec, inputs


@given(attention=attentions(), seed=SEEDS)
def test_the_order_of_the_keys_does_not_matter(attention: tuple[AttentionSpec, AttentionInputs], seed: int) -> None:
    """Keys, values and mask columns permuted together leave the output."""
    spec, inputs = attention
    order = np.random.default_rng(seed).permutation(inputs.key.shape[2])
    assert inputs.attn_mask is not None
    shuffled = replace(
        inputs,
        key=inputs.key[:, :, order],
        value=inputs.value[:, :, order],
        attn_mask=inputs.attn_mask[..., order],
    )
    np.testing.assert_allclose(attend(spec, shuffled).output, attend(spec, inputs).output, rtol=1e-9, atol=1e-10)


@given(attention=attentions(), constant=st.floats(-100, 100))
def test_a_constant_on_a_row_changes_nothing(attention: tuple[AttentionSpec, AttentionInputs], constant: float) -> None:
    """Softmax knows differences only."""
    spec, inputs = attention
    assert inputs.attn_mask is not None
    lifted = replace(inputs, attn_mask=inputs.attn_mask + constant)
    np.testing.assert_allclose(attend(spec, lifted).output, attend(spec, inputs).output, rtol=1e-9, atol=1e-10)


@given(attention=attentions())
def test_the_output_is_an_average_of_visible_values(attention: tuple[AttentionSpec, AttentionInputs]) -> None:
    """No column leaves the range of the values that its query sees; a value it does not see has no say."""
    spec, inputs = attention
    output = attend(spec, inputs).output[0]
    assert inputs.attn_mask is not None
    for head in range(spec.q_num_heads):
        value = inputs.value[0, head // spec.heads_per_kv]
        for row, mask in zip(output[head], inputs.attn_mask[0, head], strict=True):
            seen = value[np.isfinite(mask)]
            if not seen.size:
                assert not row.any()
                continue
            assert (row >= seen.min(0) - 1e-12).all()
            assert (row <= seen.max(0) + 1e-12).all()


@given(attention=attentions(), seed=SEEDS, cut=st.integers(0, 8))
def test_causal_output_does_not_know_the_future(
    attention: tuple[AttentionSpec, AttentionInputs], seed: int, cut: int
) -> None:
    """Keys and values after a query's own position may be anything."""
    spec, inputs = attention
    causal = replace(spec, is_causal=True)
    rng = np.random.default_rng(seed)
    key, value = inputs.key.copy(), inputs.value.copy()
    key[:, :, cut + 1 :] = 50 * rng.standard_normal(key[:, :, cut + 1 :].shape)
    value[:, :, cut + 1 :] = 1e6 * rng.standard_normal(value[:, :, cut + 1 :].shape)
    changed = attend(causal, replace(inputs, key=key, value=value)).output[:, :, : cut + 1]
    np.testing.assert_allclose(changed, attend(causal, inputs).output[:, :, : cut + 1], rtol=1e-12, atol=1e-12)


@given(attention=attentions())
@settings(max_examples=50)
def test_any_attention_agrees_with_nested_loops(attention: tuple[AttentionSpec, AttentionInputs]) -> None:
    """The second opinion again, on shapes nobody chose."""
    spec, inputs = attention
    np.testing.assert_allclose(attend(spec, inputs).output, attend_by_loops(spec, inputs), rtol=1e-9, atol=1e-10)


@given(attention=attentions(), elements=st.integers(1, 30))
@settings(max_examples=50)
def test_any_cut_into_blocks_is_the_whole(attention: tuple[AttentionSpec, AttentionInputs], elements: int) -> None:
    """Memory limits decide the blocks, never the result."""
    spec, inputs = attention
    whole = attend(spec, inputs).output
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracle, "_BLOCK_ELEMENTS", elements)
        np.testing.assert_allclose(attend(spec, inputs).output, whole, rtol=1e-9, atol=1e-10)


# --- Arrays that do not fit ---

FOUR = {"query": (1, 2, 3, 4), "key": (1, 2, 5, 4), "value": (1, 2, 5, 4)}
TWO_HEADS = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4)


def zeros(**shapes: tuple[int, ...]) -> AttentionInputs:
    return AttentionInputs(**{name: np.zeros(shape) for name, shape in {**FOUR, **shapes}.items()})


MISFITS: list[tuple[dict[str, tuple[int, ...]], str]] = [
    (
        {"query": (1, 3, 3, 4)},
        "query has shape (1, 3, 3, 4), which does not fit 2 heads of width 4 in layout bnsh.",
    ),
    ({"query": (1, 3, 8)}, "query has shape (1, 3, 8), which does not fit 2 heads of width 4 in layout bnsh."),
    ({"key": (1, 2, 5, 3)}, "key has shape (1, 2, 5, 3), which does not fit 2 heads of width 4 in layout bnsh."),
    ({"value": (1, 1, 5, 4)}, "value has shape (1, 1, 5, 4), which does not fit 2 heads of width 4 in layout bnsh."),
    (
        {"value": (1, 2, 6, 4)},
        (
            "query (1, 2, 3, 4), key (1, 2, 5, 4) and value (1, 2, 6, 4) do not match. "
            "Batch sizes must be equal, and key and value must have the same length."
        ),
    ),
    (
        {"query": (2, 2, 3, 4)},
        (
            "query (2, 2, 3, 4), key (1, 2, 5, 4) and value (1, 2, 5, 4) do not match. "
            "Batch sizes must be equal, and key and value must have the same length."
        ),
    ),
]


@pytest.mark.parametrize(("shapes", "text"), MISFITS, ids=[str(shapes) for shapes, _ in MISFITS])
def test_arrays_that_do_not_fit_are_refused(shapes: dict[str, tuple[int, ...]], text: str) -> None:
    """The message names the array and its shape."""
    with pytest.raises(CaseError) as caught:
        attend(TWO_HEADS, zeros(**shapes))
    assert str(caught.value) == text


def test_a_flat_array_of_the_wrong_width_is_refused() -> None:
    """In the 3-D layout heads times width must match."""
    flat = {"query": (1, 3, 9), "key": (1, 5, 8), "value": (1, 5, 8)}
    with pytest.raises(CaseError) as caught:
        split_heads(replace(TWO_HEADS, layout=Layout.BSH), zeros(**flat))
    assert str(caught.value) == "query has shape (1, 3, 9), which does not fit 2 heads of width 4 in layout bsh."


@pytest.mark.parametrize(
    "shapes",
    [
        {"attn_mask": (2, 5)},
        {"attn_mask": (3, 6)},
        {"attn_mask": (3, 1, 3, 5)},
        {"attn_mask": (1, 3, 3, 5)},
        {"past_key": (1, 2, 4, 4)},
        {"past_key": (1, 3, 4, 4), "past_value": (1, 3, 4, 4)},
        {"past_key": (1, 2, 4, 4), "past_value": (1, 2, 3, 4)},
        {"nonpad_kv_seqlen": (3,)},
    ],
    ids=str,
)
def test_masks_and_caches_that_do_not_fit_are_refused(shapes: dict[str, tuple[int, ...]]) -> None:
    """`attend` promises a CaseError for any array that does not fit."""
    with pytest.raises(CaseError):
        attend(replace(TWO_HEADS, has_past="past_key" in shapes), zeros(**shapes))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, 1e308])
def test_infinite_inputs_warn_of_nothing(bad: float) -> None:
    """Infinite and NaN inputs produce the correct output without a NumPy warning."""
    spec = replace(ONE_HEAD, softcap=2.0)
    inputs = AttentionInputs(query=tensor([bad], [1.0]), key=tensor([0.0], [bad]), value=tensor([bad], [bad]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for one in (ONE_HEAD, spec):
            result = attend(one, inputs, qk_mode=QkOutputMode.SCORES)
            judge(expect(one, inputs, precision=find_precision("float32")), np.full_like(result.output, np.nan))
    assert result.qk is not None
    assert not np.isfinite(result.qk).all()
