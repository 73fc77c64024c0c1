"""Judge the outputs of a runtime for one conformance case: attention output, caches and scores.

The attention output is judged by its proven bound, the caches bit by bit, the scores by a bound of their
own. Does not run the case.
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
    """The judgement of one output of one case.

    Args:
        role: Which output.
        agreement: Verdict and figures.
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
    """The arithmetic that a correct runtime may use: what it declares, or what the operator specification permits.

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
    # The scores are cast to this type, and the row is summed in it.
    return replace(
        precision,
        scores=_coarser_format(precision.scores, format_),
        softmax=format_,
        weights=_coarser_format(precision.weights, format_),
        output_sum=_coarser_format(precision.output_sum, format_),
    )


def judge_case(
    feature: Feature, operator_case: OperatorCase, outputs: Mapping[str, Array], precision: Precision
) -> Iterator[OutputFinding]:
    """Judge every output of one run."""
    by_role = {role: outputs[name] for role, name in operator_case.roles.items()}
    if feature.poison in NAN_POISONS:
        yield OutputFinding(role="output", agreement=_judge_with_nan(operator_case, by_role["output"], precision))
    else:
        expectation = _expectation(_Problem(spec=operator_case.spec, inputs=operator_case.inputs, precision=precision))
        yield OutputFinding(role="output", agreement=judge(expectation, by_role["output"]))
    yield from _caches(operator_case, by_role)
    if "qk" in by_role and feature.qk_mode is not None:
        expected = expect_qk(operator_case.spec, operator_case.inputs, mode=feature.qk_mode, precision=precision)
        yield OutputFinding(role="qk", agreement=judge_qk(expected, by_role["qk"]))


def visible_pairs(spec: AttentionSpec, inputs: AttentionInputs) -> NDArray[np.bool_]:
    """(batch_size, q_num_heads, q_seq_len, total_seq_len): True where the query may attend to the key."""
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
    """Key of the expectation cache: equal if spec, arithmetic and every array are equal."""

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
    """The expected output; cached, because a feature has the same cases at every opset."""
    return expect(problem.spec, problem.inputs, precision=problem.precision)


def _coarser_format(one: FloatFormat, other: FloatFormat) -> FloatFormat:
    return max(one, other, key=lambda format_: format_.unit_roundoff)


def _caches(operator_case: OperatorCase, by_role: Mapping[str, Array]) -> Iterator[OutputFinding]:
    """Judge the returned caches: past and new ones concatenated, equal bit by bit."""
    presents = present_of(operator_case.spec, operator_case.inputs)
    if "present" in by_role:  # both in one array, key first
        presents["present"] = np.stack(list(presents.values()))
    for role, expected in presents.items():
        if role in by_role:
            yield OutputFinding(role=role, agreement=judge_copy(role, by_role[role], expected))


def _judge_with_nan(operator_case: OperatorCase, actual: Array, precision: Precision) -> Agreement:
    """Require NaN where a query attends to one, permit NaN where it is hidden, and judge all other elements.

    The NaN is in the first column: a NaN value affects that column of the output only, a NaN key every column.
    """
    clean = _without_nan(operator_case.inputs)
    expectation = expect(operator_case.spec, clean, precision=precision)
    if actual.shape != expectation.shape:
        return judge(expectation, actual)
    oracle = attend(operator_case.spec, clean).output
    required, permitted = _nan_elements(operator_case)
    values = actual.astype(np.float64)
    missing = int(np.count_nonzero(required & ~np.isnan(values)))
    if missing:
        return Agreement(
            verdict=Verdict.WRONG,
            diagnosis=_missing_nan_text(missing, int(np.count_nonzero(required))),
            mismatched=missing,
            total=values.size,
        )
    patched = np.where((required | permitted) & np.isnan(values), oracle, values)
    return judge(expectation, patched.astype(actual.dtype) if patched.dtype != actual.dtype else patched)


def _missing_nan_text(missing: int, total: int) -> str:
    if total == 1:
        return "The one element whose query attends to a NaN is not NaN."
    return f"{missing} of {total} elements whose query attends to a NaN {'is' if missing == 1 else 'are'} not NaN."


def _nan_elements(operator_case: OperatorCase) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Elements of the output that must be NaN and those that may be; both have the shape of a BNSH output."""
    _, key, value = split_heads(operator_case.spec, operator_case.inputs)
    visible = visible_pairs(operator_case.spec, operator_case.inputs)
    group = operator_case.spec.heads_per_kv
    nan_value = np.repeat(np.isnan(value), group, axis=1)
    nan_key = np.repeat(np.logical_or.reduce(np.isnan(key), axis=-1), group, axis=1)
    seen_key = np.logical_or.reduce(visible & np.expand_dims(nan_key, 2), axis=-1, keepdims=True)
    any_key = np.logical_or.reduce(nan_key, axis=-1, keepdims=True)
    reaches = visible @ nan_value  # (B, H, S, v_head_dim): True if a visible key has NaN in this column
    present = np.logical_or.reduce(nan_value, axis=2, keepdims=True)
    required = reaches | seen_key
    permitted = np.broadcast_to(present | np.expand_dims(any_key, 2), reaches.shape)
    return required, permitted


def _without_nan(inputs: AttentionInputs) -> AttentionInputs:
    clean = {
        name: np.nan_to_num(array) if array.dtype.kind == "f" and name != "attn_mask" else array
        for name, array in inputs.named().items()
    }
    return AttentionInputs(**clean)
