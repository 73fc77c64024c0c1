"""Random cases: all legal, all features, the same numbers the same arrays."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import split_heads
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.probes import PROBES
from sdpa_onnx.core.attention.random_cases import CASES_PER_GRAPH, RandomCase, draw_case, draw_graph
from sdpa_onnx.core.attention.spec import MaskKind
from sdpa_onnx.core.judge.expectation import expect

_ALWAYS = {
    *("causal", "left window", "right window", "past", "past of 0", "lengths", "bool mask", "float mask"),
    *("mask of 1 query", "mask shorter than the keys", "no mask", "softcap", "scale 0", "negative scale"),
    *(
        "grouped heads",
        "v_head_dim differs from head_dim",
        "3-D layout",
        "no sample",
        "no query",
        "no new key",
        "1 query",
    ),
    *("1 query", "query length differs from new key length", "score output"),
    *(f"mode {mode}" for mode in range(4)),
    *(f"softmax_precision {dtype}" for dtype in ("float64", "float32", "float16", "bfloat16")),
    *("float64", "float32", "float16", "opset 23", "opset 24", "opset 25"),
    *(f"probe {probe.name}" for probe in PROBES),
}

_numbers = st.integers(0, 10**9)


def _assert_legal(case: RandomCase) -> None:
    """Check attributes and arrays against the operator's specification of that opset."""
    spec, inputs, opset = case.case.spec, case.inputs, case.graph.opset
    assert opset >= 25 or not spec.has_window
    assert opset >= 24 or inputs.nonpad_kv_seqlen is None
    assert (inputs.past_key is None) == (not spec.has_past)
    assert not (spec.has_past and inputs.nonpad_kv_seqlen is not None)
    shapes = case.case.input_shapes() | ({} if inputs.attn_mask is None else {"attn_mask": inputs.attn_mask.shape})
    assert {name: array.shape for name, array in inputs.named().items()} == shapes
    assert (inputs.attn_mask is not None) == bool(case.graph.mask_form)
    if inputs.attn_mask is not None:
        _assert_legal_mask(case, inputs.attn_mask)


def _assert_legal_mask(case: RandomCase, mask: np.ndarray) -> None:
    keys, opset = case.case.total_seq_len, case.graph.opset
    assert 2 <= mask.ndim <= 4
    full = (case.case.batch_size, case.case.spec.q_num_heads, case.case.q_seq_len)[-(mask.ndim - 1) :]
    assert all(size in (1, wanted) for size, wanted in zip(mask.shape[:-1], full, strict=True))
    assert mask.shape[-1] == keys or (opset >= 24 and 1 < mask.shape[-1] < keys)
    lengths = case.inputs.nonpad_kv_seqlen
    assert lengths is None or mask.shape[-1] >= lengths.max(initial=0)
    assert mask.dtype == np.bool_ if case.graph.mask_is_bool else mask.dtype == case.inputs.query.dtype
    if case.case.spec.mask is not MaskKind.LENGTHS:
        assert case.graph.mask_is_bool == (case.case.spec.mask is MaskKind.BOOL)


@settings(max_examples=40, deadline=None)
@given(seed=_numbers, number=_numbers)
def test_every_case_is_legal(seed: int, number: int) -> None:
    """The oracle accepts the case, and it satisfies the operator's specification."""
    case = draw_case(seed, number)
    _assert_legal(case)
    split_heads(case.case.spec, case.inputs)
    expectation = expect(case.case.spec, case.inputs, precision=find_precision(case.case.dtype))
    assert expectation.shape[0] == case.case.batch_size


@settings(max_examples=30, deadline=None)
@given(seed=_numbers, number=_numbers)
def test_same_numbers_same_arrays(seed: int, number: int) -> None:
    """A case can be drawn again by itself."""
    one, two = draw_case(seed, number), draw_case(seed, number)
    assert (one.graph, one.case, one.source) == (two.graph, two.case, two.source)
    assert _content(one.inputs) == _content(two.inputs)


def test_numbers_and_seeds_differ() -> None:
    """Neighbours have the same graph and other arrays; another seed has other ones."""
    first, second = draw_case(0, 0), draw_case(0, 1)
    assert first.graph == second.graph == draw_graph(0, CASES_PER_GRAPH - 1)
    assert _content(first.inputs) != _content(second.inputs)
    assert _content(first.inputs) != _content(draw_case(1, 0).inputs)
    assert len({draw_graph(0, number * CASES_PER_GRAPH) for number in range(50)}) == 50


def test_every_feature_comes_up() -> None:
    """Within 2,000 numbers each feature and each probe is met, none in all cases."""
    counts = Counter(word for number in range(2000) for word in draw_case(3, number).features)
    assert set(counts) == _ALWAYS
    assert max(counts.values()) < 1700


@pytest.mark.parametrize("breaks", ["mask keys", "opset"])
def test_an_illegal_case_would_be_seen(breaks: str) -> None:
    """The check of these tests can fail."""
    wanted = (draw_case(0, number) for number in range(2000))
    case = next(one for one in wanted if one.graph.opset == 25 and one.case.spec.has_window and one.graph.mask_form)
    if breaks == "opset":
        changed = _replaced(case, opset=24)
    else:
        mask = np.zeros((2, case.case.total_seq_len + 1), bool)
        changed = _replaced(case, mask=mask)
    with pytest.raises(AssertionError):
        _assert_legal(changed)


def _replaced(case: RandomCase, *, opset: int | None = None, mask: np.ndarray | None = None) -> RandomCase:
    from dataclasses import replace

    graph = case.graph if opset is None else replace(case.graph, opset=opset)
    inputs = case.inputs if mask is None else replace(case.inputs, attn_mask=mask)
    return replace(case, graph=graph, inputs=inputs)


def _content(inputs: AttentionInputs) -> dict[str, tuple[object, ...]]:
    return {name: (array.shape, array.dtype, array.tobytes()) for name, array in inputs.named().items()}
