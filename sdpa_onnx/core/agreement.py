"""The judge: an output of attention against the float64 oracle and its proven bound.

Says ok or wrong, with the evidence. Fixed tolerances, relative error, ulp and
cosine are computed to be printed; they never decide.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.bounds import BlockBound, bound_block, overflow_limit
from sdpa_onnx.core.inputs import AttentionInputs
from sdpa_onnx.core.oracle import head_blocks, split_heads
from sdpa_onnx.core.precision import Precision
from sdpa_onnx.core.records import Verdict
from sdpa_onnx.core.spec import AttentionSpec, Layout

__all__ = ["ROWS_PER_HEAD", "Agreement", "Expectation", "expect", "judge"]

Array = NDArray[np.generic]
Float64 = NDArray[np.float64]

# Each row's verdict is independent, so on big cases this many queries a head are enough (METHOD A.5).
ROWS_PER_HEAD = 64
# Stands for an error where the bound is 0; JSON has no infinity.
_LARGEST_RATIO = 1e300
# Cases with at most this many (query, key) pairs over all heads are judged whole: about one second of one core.
_WHOLE_PAIRS = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What the judge found.

    Args:
        verdict: WRONG if an element lies outside its proven bound or is not finite without cause.
        diagnosis: The evidence in one sentence.
        max_abs_error: Largest |actual - oracle|.
        max_bound_ratio: Largest |actual - oracle| / bound; above 1 is a proof.
        worst: (batch, head, query, column) of the largest ratio, or None.
        max_relative_error: Largest |actual - oracle| / |oracle|.
        max_ulp_error: Largest |actual - oracle| in spacings of the output format at the oracle.
        cosine: Cosine between actual and oracle over all judged elements.
        mismatched: Finite elements outside their bound.
        not_finite: Elements that are NaN or infinite where the oracle is finite.
        total: Elements compared.
        judged: Elements among them that the oracle has a number and a bound for.
        judged_rows: Rows judged; total_rows: rows present.
        scale_error_proven: Smallest relative error of the scale that these
            inputs and bounds would prove, to first order.
        warnings: Doubts, each one sentence.
    """

    verdict: Verdict
    diagnosis: str
    max_abs_error: float = 0.0
    max_bound_ratio: float = 0.0
    worst: tuple[int, int, int, int] | None = None
    max_relative_error: float = 0.0
    max_ulp_error: float = 0.0
    cosine: float = 1.0
    mismatched: int = 0
    not_finite: int = 0
    total: int = 0
    judged: int = 0
    judged_rows: int = 0
    total_rows: int = 0
    scale_error_proven: float = math.inf
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class _Tally:
    """Running evidence over the blocks; private and short-lived."""

    max_abs_error: float = 0.0
    max_bound_ratio: float = 0.0
    worst: tuple[int, int, int, int] | None = None
    worst_text: str = ""
    max_relative_error: float = 0.0
    max_ulp_error: float = 0.0
    dot: float = 0.0
    actual_square: float = 0.0
    oracle_square: float = 0.0
    mismatched: int = 0
    not_finite: int = 0
    first_not_finite: tuple[int, int, int, int] | None = None
    unexplained: int = 0
    excused_rows: int = 0
    total: int = 0
    judged: int = 0
    judged_rows: int = 0
    scale_error_proven: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a right output must be: made once, used for every runtime that got these inputs.

    Args:
        spec: What is computed.
        precision: The declared arithmetic that the bounds hold for.
        shape: Of the output, in the spec's layout.
        rows: Queries that are judged; None = all.
        blocks: Where each bound belongs: (batch, head, queries).
        bounds: Oracle and bound of each block.
        may_overflow: Whether a score outside the judged queries may overflow the declared format.
    """

    spec: AttentionSpec
    precision: Precision
    shape: tuple[int, ...]
    rows: NDArray[np.int64] | None
    blocks: tuple[tuple[int, int, NDArray[np.int64]], ...]
    bounds: tuple[BlockBound, ...]
    may_overflow: bool = False


def expect(
    spec: AttentionSpec,
    inputs: AttentionInputs,
    *,
    precision: Precision,
    rows_per_head: int | None = None,
    seed: int = 0,
) -> Expectation:
    """Compute oracle and proven bound.

    Args:
        spec: What is computed.
        inputs: The arrays exactly as the runtimes receive them.
        precision: The declared arithmetic.
        rows_per_head: Queries judged of each head; None = all on small cases,
            `ROWS_PER_HEAD` on big ones. First and last query are always among them.
        seed: Which queries are sampled.
    """
    shape = _output_shape(spec, inputs)
    rows = _pick_rows(inputs, spec, rows_per_head, seed)
    blocks: list[tuple[int, int, NDArray[np.int64]]] = []
    bounds: list[BlockBound] = []
    for block in head_blocks(spec, inputs, rows=rows):
        blocks.append((block.batch, block.head, block.rows))
        bounds.append(bound_block(block, precision))
    return Expectation(
        spec=spec,
        precision=precision,
        shape=shape,
        rows=rows,
        blocks=tuple(blocks),
        bounds=tuple(bounds),
        may_overflow=rows is not None and _may_overflow(spec, inputs, precision),
    )


def judge(expectation: Expectation, actual: Array) -> Agreement:
    """Judge an output of attention.

    Args:
        expectation: Oracle and bound for the inputs that the runtime got.
        actual: The output, in the spec's layout.

    Source: METHOD A.3, A.7.
    """
    if actual.shape != expectation.shape:
        return Agreement(
            verdict=Verdict.WRONG,
            diagnosis=f"The output has shape {actual.shape}, expected {expectation.shape}.",
        )
    output = _heads_first(expectation.spec, actual)
    tally = _Tally()
    for (batch, head, rows), bound in zip(expectation.blocks, expectation.bounds, strict=True):
        _compare(tally, (batch, head, rows), bound, output[batch, head, rows], expectation.precision)
    if expectation.rows is not None:
        _look_beyond(tally, output, expectation)
    return _conclude(tally, total_rows=math.prod(output.shape[:3]))


def _look_beyond(tally: _Tally, output: Array, expectation: Expectation) -> None:
    """Find NaN and infinity in queries that were not sampled: they need no bound to be wrong."""
    unsampled = np.ones(output.shape[2], dtype=bool)
    unsampled[expectation.rows] = False
    bad = ~np.isfinite(output.astype(np.float32)) & unsampled[None, None, :, None]
    count = int(np.count_nonzero(bad))
    if not count:
        return
    if expectation.may_overflow:
        tally.unexplained += count
        return
    tally.not_finite += count
    if tally.first_not_finite is None:
        batch, head, query, column = np.unravel_index(int(bad.argmax()), bad.shape)
        tally.first_not_finite = (int(batch), int(head), int(query), int(column))


def _may_overflow(spec: AttentionSpec, inputs: AttentionInputs, precision: Precision) -> bool:
    """Whether any score can exceed the format, by the lengths of the vectors (Cauchy-Schwarz)."""
    query, key, _ = split_heads(spec, inputs)
    longest = (float(np.sqrt((array * array).sum(-1)).max(initial=0.0)) for array in (query, key))
    return math.prod(longest) * max(1.0, abs(spec.scale_value)) > overflow_limit(precision)


def _compare(
    tally: _Tally,
    place: tuple[int, int, NDArray[np.int64]],
    bound: BlockBound,
    actual: Array,
    precision: Precision,
) -> None:
    """Add one block's evidence."""
    values = actual.astype(np.float64)
    finite = np.isfinite(values) | ~np.isfinite(bound.output)
    too_large = np.abs(bound.output) > precision.output.largest * (1.0 - precision.output.unit_roundoff)
    excused = ((bound.overflows[:, None] | too_large) & ~finite) | ~np.isfinite(bound.bound)
    error = np.where(finite, np.abs(np.where(np.isfinite(values), values, 0.0) - bound.output), 0.0)
    error = np.where(np.isfinite(error), error, 0.0)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        ratio = np.where(finite & ~excused & (error > 0.0), np.minimum(error / bound.bound, _LARGEST_RATIO), 0.0)
    tally.judged_rows += values.shape[0]
    tally.total += values.size
    tally.judged += int(np.count_nonzero(np.isfinite(bound.output) & ~excused))
    tally.excused_rows += int(excused.any(1).sum())
    unexcused = ~finite & ~excused
    tally.not_finite += int(np.count_nonzero(unexcused))
    if tally.first_not_finite is None and unexcused.any():
        tally.first_not_finite = _place(place, int(unexcused.argmax()), unexcused.shape)
    tally.mismatched += int(np.count_nonzero(ratio > 1.0))
    _add_similarity(tally, values, bound.output, error, actual.dtype)
    slope = np.abs(bound.per_scale)
    if (slope > 0.0).any():
        with np.errstate(over="ignore"):
            provable = (bound.bound + error)[slope > 0.0] / slope[slope > 0.0]
        tally.scale_error_proven = min(tally.scale_error_proven, float(provable.min()))
    if ratio.size and float(ratio.max()) > tally.max_bound_ratio:
        row, column = np.unravel_index(int(ratio.argmax()), ratio.shape)
        tally.max_bound_ratio = float(ratio[row, column])
        tally.worst = _place(place, int(ratio.argmax()), ratio.shape)
        tally.worst_text = (
            f"got {values[row, column]:.6g}, expected {bound.output[row, column]:.6g} +- {bound.bound[row, column]:.2g}"
        )


def _place(
    block: tuple[int, int, NDArray[np.int64]], position: int, shape: tuple[int, ...]
) -> tuple[int, int, int, int]:
    """(batch, head, query, column) of an element of a block."""
    row, column = divmod(position, shape[1])
    return (block[0], block[1], int(block[2][row]), column)


def _add_similarity(
    tally: _Tally, values: Float64, oracle: Float64, error: Float64, dtype: np.dtype[np.generic]
) -> None:
    """The figures that other tools decide by; here they are only printed."""
    if not error.size:
        return
    with np.errstate(over="ignore", invalid="ignore"):  # of the squares of huge values; these figures only inform
        tally.max_abs_error = max(tally.max_abs_error, float(error.max()))
        nonzero = oracle != 0.0
        if nonzero.any():
            relative = error[nonzero] / np.abs(oracle[nonzero])
            tally.max_relative_error = max(tally.max_relative_error, float(relative.max()))
        tally.max_ulp_error = max(tally.max_ulp_error, float((error / _spacing(oracle, dtype)).max()))
        known = np.where(np.isfinite(values), values, 0.0)
        tally.dot += float((known * oracle).sum())
        tally.actual_square += float((known * known).sum())
        tally.oracle_square += float((oracle * oracle).sum())


def _conclude(tally: _Tally, *, total_rows: int) -> Agreement:
    product = math.sqrt(tally.actual_square * tally.oracle_square)
    not_finite = tally.not_finite
    wrong = tally.mismatched > 0 or not_finite > 0
    return Agreement(
        verdict=Verdict.WRONG if wrong else Verdict.OK,
        diagnosis=_diagnosis(tally, not_finite),
        max_abs_error=_finite(tally.max_abs_error),
        max_bound_ratio=tally.max_bound_ratio,
        worst=tally.worst,
        max_relative_error=_finite(tally.max_relative_error),
        max_ulp_error=_finite(tally.max_ulp_error),
        cosine=tally.dot / product if 0.0 < product < math.inf else 1.0,
        mismatched=tally.mismatched,
        not_finite=not_finite,
        total=tally.total,
        judged=tally.judged,
        judged_rows=tally.judged_rows,
        total_rows=total_rows,
        scale_error_proven=tally.scale_error_proven,
        warnings=_warnings(tally),
    )


def _finite(figure: float) -> float:
    return figure if math.isfinite(figure) else _LARGEST_RATIO


def _warnings(tally: _Tally) -> tuple[str, ...]:
    doubts = []
    if tally.excused_rows:
        doubts.append(
            f"{tally.excused_rows} rows overflow the declared format: what is not finite in them was not judged."
        )
    if tally.unexplained:
        doubts.append(
            f"{tally.unexplained} elements outside the judged rows are not finite; overflow is possible there."
        )
    return tuple(doubts)


def _diagnosis(tally: _Tally, not_finite: int) -> str:
    if not_finite:
        return (
            f"{not_finite} elements are NaN or infinite where the oracle is finite, "
            f"first at (batch, head, query, column) {tally.first_not_finite}."
        )
    if tally.mismatched:
        return (
            f"{tally.mismatched} of {tally.total} elements exceed the proven bound, "
            f"at worst {tally.max_bound_ratio:.3g} times at (batch, head, query, column) {tally.worst}: "
            f"{tally.worst_text}."
        )
    return f"All {tally.total} elements lie inside the proven bound, the worst at {tally.max_bound_ratio:.2g} of it."


def _pick_rows(
    inputs: AttentionInputs, spec: AttentionSpec, rows_per_head: int | None, seed: int
) -> NDArray[np.int64] | None:
    """Queries to judge: None = all."""
    axis = 2 if spec.layout is Layout.BNSH else 1
    batch_size, q_seq_len = inputs.query.shape[0], inputs.query.shape[axis]
    keys = inputs.key.shape[axis] + (0 if inputs.past_key is None else inputs.past_key.shape[2])
    if rows_per_head is None:
        whole = batch_size * spec.q_num_heads * q_seq_len * keys <= _WHOLE_PAIRS
        rows_per_head = q_seq_len if whole else ROWS_PER_HEAD
    if rows_per_head >= q_seq_len:
        return None
    inner = np.random.default_rng(seed).choice(np.arange(1, q_seq_len - 1), max(0, rows_per_head - 2), replace=False)
    return np.sort(np.concatenate([[0, q_seq_len - 1], inner])).astype(np.int64)


def _output_shape(spec: AttentionSpec, inputs: AttentionInputs) -> tuple[int, ...]:
    query = inputs.query.shape
    if spec.layout is Layout.BNSH:
        return (*query[:3], spec.v_head_dim)
    return (*query[:2], spec.q_num_heads * spec.v_head_dim)


def _heads_first(spec: AttentionSpec, output: Array) -> Array:
    if spec.layout is Layout.BNSH:
        return output
    batch_size, q_seq_len, _ = output.shape
    return output.reshape(batch_size, q_seq_len, spec.q_num_heads, spec.v_head_dim).transpose(0, 2, 1, 3)


def _spacing(oracle: Float64, dtype: np.dtype[np.generic]) -> Float64:
    """Distance between neighbouring floats of the output format at the oracle (one ulp)."""
    import ml_dtypes

    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    exponent = np.floor(np.log2(np.maximum(np.abs(oracle), float(info.smallest_normal))))
    spacing: Float64 = np.exp2(exponent) * float(info.eps)
    return spacing
