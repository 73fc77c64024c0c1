"""Rows without a visible key under a softmax without a guard: NaN is expected there and nothing is accused."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionSpec, MaskKind
from sdpa_onnx.core.faults.planted_faults import right_output
from sdpa_onnx.core.judge.agreement import Agreement, expect, judge
from sdpa_onnx.core.judge.expectation import has_empty_rows
from sdpa_onnx.core.records.verdicts import Verdict

_SPEC = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, mask=MaskKind.BOOL)
Floats = NDArray[np.float32]


def _inputs(queries: int = 5) -> AttentionInputs:
    """Query 3 of the second sample sees no key, query 1 of the first one only the first key."""
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((2, 2, n, 8)).astype(np.float32) for n in (queries, 7, 7))
    mask = np.ones((2, 1, queries, 7), bool)
    mask[1, 0, 3] = False
    mask[0, 0, 1, 1:] = False
    return AttentionInputs(query=query, key=key, value=value, attn_mask=mask)


def _output(inputs: AttentionInputs, empty: float = np.nan) -> Floats:
    output = right_output(_SPEC, inputs).astype(np.float32)
    output[1, :, 3] = empty
    return output


def _judged(inputs: AttentionInputs, output: Floats, *, nan_rows: bool = True) -> Agreement:
    expectation = expect(_SPEC, inputs, precision=find_precision("float32"), nan_rows=nan_rows)
    return judge(expectation, output)


def test_nan_where_the_graph_defines_it() -> None:
    """NaN is right there, with one warning; under a softmax with a guard it is wrong."""
    inputs = _inputs()
    found = _judged(inputs, _output(inputs))
    assert found.verdict is Verdict.OK
    (warning,) = found.warnings
    assert warning == (
        "A row in which no key is visible gives NaN (the softmax has no guard); keep one key visible in each row, or "
        "guard it with torch.where(torch.isnan(weights), 0.0, weights) after the softmax."
    )
    assert found.judged == found.total
    assert _judged(inputs, _output(inputs), nan_rows=False).verdict is Verdict.WRONG


@pytest.mark.parametrize("empty", [0.0, 0.3, np.inf])
def test_anything_else_there_is_a_note(empty: float) -> None:
    """A runtime that returns something else there is not accused; the second warning says so."""
    inputs = _inputs()
    found = _judged(inputs, _output(inputs, empty))
    assert found.verdict is Verdict.OK
    _, note = found.warnings
    assert note == (
        "In a row in which no key is visible the graph defines NaN, and this runtime returns numbers; both count as "
        "right."
    )


def test_no_query_sees_a_key() -> None:
    """NaN everywhere is right there, not a check in which nothing was judged."""
    inputs = replace(_inputs(), attn_mask=np.zeros((2, 1, 5, 7), bool))
    found = _judged(inputs, np.full_like(inputs.query, np.nan))
    assert found.verdict is Verdict.OK
    assert found.judged == found.total


def test_no_warning_without_such_a_row() -> None:
    """Where every query sees a key, the verdict and its figures are those of a softmax with a guard."""
    inputs = replace(_inputs(), attn_mask=np.ones((2, 1, 5, 7), bool))
    output = right_output(_SPEC, inputs).astype(np.float32)
    found = _judged(inputs, output)
    assert found.warnings == ()
    assert found == _judged(inputs, output, nan_rows=False)


@pytest.mark.parametrize("row", [(0, 0, 1), (1, 1, 2)])
def test_nan_in_another_row_is_wrong(row: tuple[int, int, int]) -> None:
    """Also in a row that sees a single key."""
    inputs = _inputs()
    output = _output(inputs)
    output[row] = np.nan
    found = _judged(inputs, output)
    assert found.verdict is Verdict.WRONG
    assert found.not_finite == 8


def test_masked_key_that_leaks_is_wrong() -> None:
    """Every other row is judged by its bound: one hidden key that counts is found."""
    inputs = _inputs()
    seen = np.array(inputs.attn_mask)
    seen[0, 0, 1, 1] = True
    output = _output(replace(inputs, attn_mask=seen))
    assert _judged(inputs, output).verdict is Verdict.WRONG


@pytest.mark.parametrize(("queries", "verdict"), [([3], Verdict.OK), ([3, 40], Verdict.WRONG)])
def test_rows_that_are_not_sampled(queries: list[int], verdict: Verdict) -> None:
    """Of a large case some rows are judged; NaN in another one is right only where no key is visible."""
    inputs = _inputs(50)
    expectation = expect(_SPEC, inputs, precision=find_precision("float32"), rows_per_head=2, nan_rows=True)
    assert expectation.rows is not None
    assert list(expectation.rows) == [0, 49]
    output = _output(inputs)
    output[1, :, queries] = np.nan
    assert judge(expectation, output).verdict is verdict


@pytest.mark.parametrize(
    ("mask", "is_causal", "queries", "expected"),
    [
        (None, False, 5, False),
        (None, True, 5, False),
        (np.ones((1, 7), bool), False, 5, False),
        (np.zeros((1, 7), bool), False, 5, True),
        (np.full((1, 7), -np.inf, np.float32), False, 5, True),
        (np.full((1, 7), -1e9, np.float32), False, 5, False),
    ],
)
def test_without_such_a_row_both_softmaxes_are_the_same(
    mask: NDArray[np.generic] | None, is_causal: bool, queries: int, expected: bool
) -> None:
    """Then forms with and without a guard share one expectation, and no place of a NaN is computed."""
    kind = MaskKind.NONE if mask is None else MaskKind.BOOL if mask.dtype == bool else MaskKind.FLOAT
    spec, inputs = replace(_SPEC, mask=kind, is_causal=is_causal), replace(_inputs(queries), attn_mask=mask)
    assert has_empty_rows(spec, inputs) is expected
    assert bool(expect(spec, inputs, precision=find_precision("float32"), nan_rows=True).nans) is expected
