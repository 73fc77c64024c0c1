"""A NaN in visible inputs must reach the output, a hidden NaN may, and other elements are judged as usual."""

from dataclasses import replace

import numpy as np
import pytest

from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.oracle import attend
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, MaskKind
from sdpa_onnx.core.judge.agreement import Agreement, expect, judge
from sdpa_onnx.core.records.verdicts import Verdict

# Query i sees keys 0..i.
SPEC = AttentionSpec(q_num_heads=2, kv_num_heads=1, head_dim=4, is_causal=True)
CLEAN = draw_inputs(AttentionCase(spec=SPEC, q_seq_len=3, kv_seq_len=3), seed=1)
RIGHT = attend(SPEC, CLEAN).output.astype(np.float32)


def holed(name: str, *place: int) -> AttentionInputs:
    array = getattr(CLEAN, name).copy()
    array[place] = np.nan
    return replace(CLEAN, **{name: array})


def judged(inputs: AttentionInputs, actual: np.ndarray, spec: AttentionSpec = SPEC) -> Agreement:  # type: ignore[type-arg]
    return judge(expect(spec, inputs, precision=find_precision("float32")), actual)


def with_nan(*places: tuple[object, ...]) -> np.ndarray:  # type: ignore[type-arg]
    output = RIGHT.copy()
    for place in places:
        output[place] = np.nan
    return output


ALL = slice(None)
# (input, where its NaN stands, output that must be NaN, output that may be).
SEEN = {
    "value": (("value", 0, 0, 1, 2), (0, ALL, slice(1, 3), 2), (0, ALL, 0, 2)),
    "key": (("key", 0, 0, 1, 0), (0, ALL, slice(1, 3)), (0, ALL, 0)),
    "query": (("query", 0, 1, 2, 0), (0, 1, 2), None),
}


@pytest.mark.parametrize("name", SEEN)
def test_seen_nan_must_come_out_and_hidden_nan_may(name: str) -> None:
    """With NaN in all places that see it the output is right, with and without it where it is hidden."""
    hole, must, may = SEEN[name]
    inputs = holed(*hole)
    assert judged(inputs, with_nan(must)).verdict is Verdict.OK
    if may is not None:
        assert judged(inputs, with_nan(must, may)).verdict is Verdict.OK
    found = judged(inputs, RIGHT)
    assert found.verdict is Verdict.WRONG
    assert found.swallowed == np.isnan(with_nan(must)).sum()
    one = with_nan(must)
    first = tuple(int(index) for index in np.argwhere(np.isnan(one))[0])
    one[first] = 0.0
    assert judged(inputs, one).diagnosis == (
        "A NaN in the inputs was lost: 1 element whose query attends to it is a number, "
        f"first at (batch, head, query, column) {first}."
    )


def test_nan_does_not_excuse_the_rest() -> None:
    """A NaN or another number where no NaN reaches is wrong, and so is another number where a NaN is hidden."""
    inputs = holed("value", 0, 0, 1, 2)
    must = (0, ALL, slice(1, 3), 2)
    assert judged(inputs, with_nan(must, (0, 0, 2, 1))).not_finite == 1
    for place in ((0, 0, 2, 1), (0, 0, 0, 2)):
        output = with_nan(must)
        output[place] += 0.01
        assert judged(inputs, output).mismatched == 1


def test_a_masked_row_sees_no_nan() -> None:
    """A query without a visible key is zero though its own numbers and the keys are NaN, or NaN."""
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=1, head_dim=4, mask=MaskKind.BOOL)
    mask = np.array([[False] * 3, [True] * 3, [True] * 3])
    inputs = replace(holed("query", 0, 0, 0, 0), attn_mask=mask)
    right = attend(spec, replace(CLEAN, attn_mask=mask)).output.astype(np.float32)
    assert judged(inputs, right, spec).verdict is Verdict.OK
    right[0, 0, 0] = np.nan
    assert judged(inputs, right, spec).verdict is Verdict.OK
    right[0, 0, 1] = np.nan
    assert judged(inputs, right, spec).verdict is Verdict.WRONG


def test_a_weight_of_nothing_may_lose_a_nan() -> None:
    """A visible key whose weight is below the roundoff of weights may let its NaN go; one above may not."""
    spec = AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=1, scale=1.0)
    for logit, lost in ((-20.0, Verdict.OK), (-10.0, Verdict.WRONG)):
        inputs = AttentionInputs(
            query=np.ones((1, 1, 1, 1), dtype=np.float32),
            key=np.array([0.0, logit], dtype=np.float32).reshape(1, 1, 2, 1),
            value=np.array([1.0, np.nan], dtype=np.float32).reshape(1, 1, 2, 1),
        )
        zero = replace(inputs, value=np.nan_to_num(inputs.value))
        assert judged(inputs, attend(spec, zero).output.astype(np.float32), spec).verdict is lost


def test_nan_beyond_the_sampled_rows_is_a_doubt() -> None:
    """Queries that were not judged may be NaN if an input is."""
    inputs = holed("value", 0, 0, 0, 0)
    expectation = expect(SPEC, inputs, precision=find_precision("float32"), rows_per_head=2)
    found = judge(expectation, with_nan((0, ALL, ALL, 0)))
    assert found.verdict is Verdict.OK
    assert found.warnings == ("2 elements outside the judged rows are not finite; overflow or NaN is possible there.",)


@pytest.mark.filterwarnings("error")
def test_signalling_nan_is_no_warning() -> None:
    """Memory that was never written is judged without a warning of numpy's."""
    output = RIGHT.copy()
    output.view(np.uint32)[0, 0, 0, 0] = 0x7FA00000
    assert judged(CLEAN, output).not_finite == 1
    half = attend(SPEC, CLEAN).output.astype(np.float16)
    half.view(np.uint16)[0, 0, 0, 0] = 0x7D00
    expectation = expect(SPEC, CLEAN, precision=find_precision("float16"), rows_per_head=2)
    assert judge(expectation, half).not_finite == 1
