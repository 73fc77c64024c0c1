"""Judge the outputs of a runtime for one conformance case: attention output, caches and scores.

Names the arithmetic that the operator permits, and hands the outputs to `core.judge.attention_outputs`. Does not run
the case.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.masks import attn_bias
from sdpa_onnx.core.attention.oracle import QkOutputMode, split_heads
from sdpa_onnx.core.attention.precision import FloatFormat, Precision, find_precision
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.judge.agreement import Agreement, Expectation, expect
from sdpa_onnx.core.judge.attention_outputs import judge_attention_outputs
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.workflows.conformance.feature import Feature, Operator
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
        role: Which output (`OutputRole`), or the name of a check of the session.
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
    judged = judge_attention_outputs(
        operator_case.spec,
        operator_case.inputs,
        {role: outputs[name] for role, name in operator_case.roles.items()},
        precision=precision,
        qk_modes=(feature.qk_mode or QkOutputMode.SCORES,),
        mask_rule=operator_case.mask_rule,
        expectation_of=lambda reading: _expectation(
            _Problem(spec=operator_case.spec, inputs=reading.inputs, precision=precision)
        ),
    )
    for role, agreement in judged.items():
        yield OutputFinding(role=role, agreement=agreement)


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
