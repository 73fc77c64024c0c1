"""Judge what a runtime gave for one case: every output, and what the feature asks besides.

The output by the judge of the core, the caches bit by bit, the scores by their own judge.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.masks import attn_bias
from sdpa_onnx.core.attention.oracle import attend, split_heads
from sdpa_onnx.core.attention.precision import FloatFormat, Precision, find_precision
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.judge.agreement import Agreement, Expectation, expect, judge
from sdpa_onnx.core.judge.cache_agreement import judge_copy, present_of
from sdpa_onnx.core.judge.qk_agreement import expect_qk, judge_qk
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.workflows.conformance.feature import NAN_POISONS, Feature, Operator
from sdpa_onnx.workflows.conformance.operators import OperatorCase

__all__ = ["OutputFinding", "allowed_precision", "judge_case", "visible_pairs"]

Array = NDArray[np.generic]

_FORMATS = {
    Dtype.FLOAT64: FloatFormat.FLOAT64,
    Dtype.FLOAT32: FloatFormat.FLOAT32,
    Dtype.FLOAT16: FloatFormat.FLOAT16,
    Dtype.BFLOAT16: FloatFormat.BFLOAT16,
}
# Values of softmax_precision. Source: TensorProto.DataType.
_BY_ELEMENT = {1: FloatFormat.FLOAT32, 10: FloatFormat.FLOAT16, 11: FloatFormat.FLOAT64, 16: FloatFormat.BFLOAT16}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFinding:
    """What was found of one output of one case.

    Args:
        role: Which output.
        agreement: The judge's word and figures.
    """

    role: str
    agreement: Agreement

    @property
    def is_wrong(self) -> bool:
        return self.agreement.verdict is Verdict.WRONG

    @property
    def is_suspicious(self) -> bool:
        return self.agreement.verdict is Verdict.SUSPICIOUS


def allowed_precision(declared: str, feature: Feature, dtype: Dtype) -> Precision:
    """The arithmetic that a right runtime may use: what it declares, or what the operator's text lets it use.

    Source: ONNX Attention, opset 23: "If softmax precision is not provided, the same
        precision as the input of softmax (Q and K) is used"; a runtime may do better.
    """
    precision = find_precision(declared)
    if feature.operator not in (Operator.ATTENTION, Operator.BODY):
        return precision
    element = feature.attributes.get("softmax_precision")
    format_ = _FORMATS[dtype] if element is None else _BY_ELEMENT[int(element)]
    if format_.unit_roundoff <= precision.softmax.unit_roundoff:
        return precision
    # The scores are cast to it, and the row is added up in it.
    return replace(
        precision,
        scores=_coarser(precision.scores, format_),
        softmax=format_,
        weights=_coarser(precision.weights, format_),
        output_sum=_coarser(precision.output_sum, format_),
    )


def judge_case(
    feature: Feature, posed: OperatorCase, outputs: Mapping[str, Array], precision: Precision
) -> Iterator[OutputFinding]:
    """Judge every output of one run."""
    by_role = {role: outputs[name] for role, name in posed.roles.items()}
    if feature.poison in NAN_POISONS:
        yield OutputFinding(role="output", agreement=_judge_with_nan(posed, by_role["output"], precision))
    else:
        expectation = _expectation(_Problem(spec=posed.spec, inputs=posed.inputs, precision=precision))
        yield OutputFinding(role="output", agreement=judge(expectation, by_role["output"]))
    yield from _caches(posed, by_role)
    if "qk" in by_role and feature.qk_mode is not None:
        expected = expect_qk(posed.spec, posed.inputs, mode=feature.qk_mode, precision=precision)
        yield OutputFinding(role="qk", agreement=judge_qk(expected, by_role["qk"]))


def visible_pairs(spec: AttentionSpec, inputs: AttentionInputs) -> NDArray[np.bool_]:
    """(batch_size, q_num_heads, q_seq_len, total_seq_len): which query may see which key."""
    query, key, _ = split_heads(spec, inputs)
    batch_size, heads, q_seq_len, _ = query.shape
    visible = np.zeros((batch_size, heads, q_seq_len, key.shape[2]), dtype=bool)
    rows = np.arange(q_seq_len)
    for batch in range(batch_size):
        for head in range(heads):
            bias = attn_bias(
                spec, inputs, batch=batch, head=head, rows=rows, q_seq_len=q_seq_len, total_seq_len=key.shape[2]
            )
            visible[batch, head] = ~np.isneginf(bias)
    return visible


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Problem:
    """A key of the cache: equal where spec, arithmetic and every array are."""

    spec: AttentionSpec
    inputs: AttentionInputs
    precision: Precision

    def _content(self) -> tuple[object, ...]:
        arrays = self.inputs.named()
        parts = tuple((name, array.shape, array.dtype.name, array.tobytes()) for name, array in arrays.items())
        return (self.spec, self.precision, parts)

    def __hash__(self) -> int:
        return hash(self._content())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Problem) and self._content() == other._content()


@lru_cache(maxsize=128)
def _expectation(problem: _Problem) -> Expectation:
    """Rows of one feature at several opsets are asked the same."""
    return expect(problem.spec, problem.inputs, precision=problem.precision)


def _coarser(one: FloatFormat, other: FloatFormat) -> FloatFormat:
    return max(one, other, key=lambda format_: format_.unit_roundoff)


def _caches(posed: OperatorCase, by_role: Mapping[str, Array]) -> Iterator[OutputFinding]:
    """The caches given back: past and new, joined, unchanged to the last bit."""
    wanted = present_of(posed.spec, posed.inputs)
    if "present" in by_role:  # both in one array, key first
        wanted["present"] = np.stack(list(wanted.values()))
    for role, expected in wanted.items():
        if role in by_role:
            yield OutputFinding(role=role, agreement=judge_copy(role, by_role[role], expected))


def _judge_with_nan(posed: OperatorCase, actual: Array, precision: Precision) -> Agreement:
    """NaN must reach every query that sees it; where it is hidden it may, and all else must be right.

    The NaN stands in the first column: of a value it reaches that column only, of a key all.
    """
    clean = _without_nan(posed.inputs)
    expectation = expect(posed.spec, clean, precision=precision)
    if actual.shape != expectation.shape:
        return judge(expectation, actual)
    right = attend(posed.spec, clean).output
    must, may = _nan_places(posed)
    values = actual.astype(np.float64)
    lost = int(np.count_nonzero(must & ~np.isnan(values)))
    if lost:
        return Agreement(
            verdict=Verdict.WRONG,
            diagnosis=_lost_in_words(lost, int(np.count_nonzero(must))),
            mismatched=lost,
            total=values.size,
        )
    patched = np.where((must | may) & np.isnan(values), right, values)
    return judge(expectation, patched.astype(actual.dtype) if patched.dtype != actual.dtype else patched)


def _lost_in_words(lost: int, total: int) -> str:
    if total == 1:
        return "The one element whose query sees a NaN is not NaN."
    return f"{lost} of {total} elements whose query sees a NaN {'is' if lost == 1 else 'are'} not NaN."


def _nan_places(posed: OperatorCase) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Elements of the output that must be NaN, and those that may; both like a BNSH output."""
    _, key, value = split_heads(posed.spec, posed.inputs)
    visible = visible_pairs(posed.spec, posed.inputs)
    group = posed.spec.heads_per_kv
    nan_value = np.repeat(np.isnan(value), group, axis=1)
    nan_key = np.repeat(np.logical_or.reduce(np.isnan(key), axis=-1), group, axis=1)
    seen_key = np.logical_or.reduce(visible & np.expand_dims(nan_key, 2), axis=-1, keepdims=True)
    any_key = np.logical_or.reduce(nan_key, axis=-1, keepdims=True)
    reaches = visible @ nan_value  # (B, H, S, v_head_dim): whether any visible key has NaN in the column
    present = np.logical_or.reduce(nan_value, axis=2, keepdims=True)
    must = reaches | seen_key
    may = np.broadcast_to(present | np.expand_dims(any_key, 2), reaches.shape)
    return must, may


def _without_nan(inputs: AttentionInputs) -> AttentionInputs:
    clean = {
        name: np.nan_to_num(array) if array.dtype.kind == "f" and name != "attn_mask" else array
        for name, array in inputs.named().items()
    }
    return AttentionInputs(**clean)
