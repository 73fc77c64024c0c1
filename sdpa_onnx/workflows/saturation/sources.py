"""Compute the weights of a saturation measurement, and judge them.

With an exported graph on a runtime, or with the same formula in NumPy for very
wide heads. Does not compute the measures: `core.saturation.measures` does.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs, numpy_dtype
from sdpa_onnx.core.attention.oracle import softmax
from sdpa_onnx.core.attention.precision import Precision, find_precision
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, ScaleRule
from sdpa_onnx.core.judge.agreement import expect, judge
from sdpa_onnx.core.judge.block_bound import gamma
from sdpa_onnx.runtimes.base import LoadOptions, Session, Unsupported, get_runtime
from sdpa_onnx.torch_export.saturation_module import export_with_weights
from sdpa_onnx.workflows.saturation.draws import V_HEAD_DIM, QueryBlock

__all__ = ["AttentionValues", "WeightSource", "judge_block", "open_source", "spec_of"]

Array = NDArray[np.generic]

# No model has wider heads; above it the weights come from NumPy.
_WIDEST_ON_RUNTIME = 1024
_BY_NUMPY = f"Above d_k = {_WIDEST_ON_RUNTIME} the weights come from NumPy, not from an exported graph on a runtime."
# Queries and weights of each cell that are judged against the oracle one by one; the sum is checked for all rows.
_JUDGED_ROWS, _JUDGED_KEYS = 32, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionValues:
    """Values of a source for a block: output, weights and scaled logits, in the graph's dtype."""

    output: Array
    weights: Array
    logits: Array


class WeightSource(Protocol):
    """Computes attention weights."""

    spec: AttentionSpec
    runtime: str
    warnings: tuple[str, ...]
    opset: int

    def attend(self, block: QueryBlock) -> AttentionValues: ...

    def precision(self) -> Precision: ...


@dataclass(slots=True, kw_only=True)
class _Graph:
    """The exported graph on a runtime."""

    spec: AttentionSpec
    runtime: str
    dtype: np.dtype[np.generic]
    session: Session
    opset: int
    warnings: tuple[str, ...] = ()

    def attend(self, block: QueryBlock) -> AttentionValues:
        feeds = {"query": block.query, "key": block.key, "value": block.value}
        outputs = self.session.run({name: array.astype(self.dtype)[None, None] for name, array in feeds.items()})
        output, weights, logits = (outputs[f"output_{position}"][0, 0] for position in range(3))
        return AttentionValues(output=output, weights=weights, logits=logits)

    def precision(self) -> Precision:
        return find_precision(self.session.ran().precision)


@dataclass(slots=True, kw_only=True)
class _Numpy:
    """The same formula in NumPy, without a runtime."""

    spec: AttentionSpec
    dtype: Dtype
    runtime: str = ""
    warnings: tuple[str, ...] = (_BY_NUMPY,)
    opset: int = 0

    def attend(self, block: QueryBlock) -> AttentionValues:
        element = numpy_dtype(self.dtype)
        logits = ((block.query @ block.key.T) * np.float32(self.spec.scale_value)).astype(element)
        weights = softmax(logits.astype(np.float64)).astype(element)
        output = (weights.astype(np.float32) @ block.value).astype(element)
        return AttentionValues(output=output, weights=weights, logits=logits)

    def precision(self) -> Precision:
        return find_precision(self.dtype)


def spec_of(head_dim: int, rule: ScaleRule) -> AttentionSpec:
    """One head of that width under a scale rule."""
    return AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=head_dim, v_head_dim=V_HEAD_DIM, scale=rule)


def open_source(
    spec: AttentionSpec, *, dtype: Dtype, runtime: str, threads: int, stack: ExitStack
) -> WeightSource | Unsupported:
    """Export and load the graph of a spec; the stack closes it.

    Returns:
        The source, or why the runtime does not support the graph.

    Raises:
        RuntimeNotFoundError, RuntimeUnavailableError, SessionError, ExportError.
    """
    if spec.head_dim > _WIDEST_ON_RUNTIME:
        return _Numpy(spec=spec, dtype=dtype)
    found = get_runtime(runtime)
    model = export_with_weights(spec, dtype=dtype)
    support = found.supports(model)
    if isinstance(support, Unsupported):
        return support
    session = stack.enter_context(found.load(model, LoadOptions(threads=threads)))
    return _Graph(spec=spec, runtime=runtime, dtype=numpy_dtype(dtype), session=session, opset=model.opset)


def judge_block(
    source: WeightSource, block: QueryBlock, attended: AttentionValues
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Judge output and weights of some rows against the oracle and its bound, and the sum of all rows.

    A weight is the output of the same attention on a value that is 1 at its key
    and 0 elsewhere, so the proven bound of the output applies to it too.

    Returns:
        Faults and warnings, each one sentence.
    """
    precision, keys = source.precision(), block.key.shape[0]
    rows = slice(0, _JUDGED_ROWS)
    # The keys with the largest weights, and the first ones.
    columns = np.unique(np.concatenate([attended.weights[rows].argmax(1), np.arange(keys)[:_JUDGED_KEYS]]))
    one_hot = np.zeros((keys, columns.size), dtype=np.float32)
    one_hot[columns, np.arange(columns.size)] = 1.0
    value = np.concatenate([block.value, one_hot], axis=1)
    spec = replace(source.spec, v_head_dim=value.shape[1])
    inputs = AttentionInputs(query=block.query[None, None, rows], key=block.key[None, None], value=value[None, None])
    actual = np.concatenate([attended.output[rows], attended.weights[rows][:, columns]], axis=1)
    agreement = judge(expect(spec, inputs, precision=precision), actual[None, None])
    faults = () if agreement.verdict.is_right else (f"Output and weights: {agreement.diagnosis}",)
    return faults + _sum_faults(attended.weights, precision), agreement.warnings


def _sum_faults(weights: Array, precision: Precision) -> tuple[str, ...]:
    """A fault if the weights of a row do not sum to 1; the limit covers row sum, division and storing.

    Source: METHOD A.3, the roundings after the logits.
    """
    keys = weights.shape[1]
    stored = precision.weights.unit_roundoff + keys * precision.weights.tiny
    allowed = float(gamma(keys, precision.output_sum.unit_roundoff)) + 4.0 * precision.softmax.unit_roundoff + stored
    sums = weights.astype(np.float64).sum(1)
    error = np.abs(sums[np.isfinite(sums)] - 1.0).max(initial=0.0)
    if error <= allowed:
        return ()
    return (f"The weights of a row sum to 1 only within {error:.2g}; {allowed:.2g} is allowed.",)
