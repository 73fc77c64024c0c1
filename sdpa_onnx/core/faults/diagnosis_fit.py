"""Measures how well an output fits a reading, on selected queries (among them the worst), in units of its bound.

Names no cause; see `diagnosis`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import HeadBlock, head_blocks
from sdpa_onnx.core.attention.precision import Precision
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.core.attention.stages import stages_of
from sdpa_onnx.core.judge.bounds import bound_block
from sdpa_onnx.core.judge.nan_places import contains_nan, nan_places, replace_nan

__all__ = ["Blocks", "ExplainedOutput", "ReadingValues", "outputs_of", "select_queries"]

Array = NDArray[np.generic]
Float64 = NDArray[np.float64]
Rows = NDArray[np.int64]
Blocks = Callable[..., Iterator[HeadBlock]]

# (query, key) pairs over all heads that one reading is compared on; takes some milliseconds.
_TRIED_PAIRS = 2**17
# (query, key) pairs among which the worst queries are searched: as many as the judge checks.
_SEARCHED_PAIRS = 2**22
_FEWEST_ROWS, _MOST_ROWS = 3, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingValues:
    """Outputs and bounds of one reading on the selected queries: (batch, heads, rows, v_head_dim)."""

    output: Float64
    bound: Float64


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedOutput:
    """An output that needs an explanation.

    Args:
        spec: The attention that should have been computed.
        inputs: The arrays, with 0 for every NaN.
        rows: (rows,), queries that readings are compared on.
        actual: (batch, heads, rows, v_head_dim), the actual output of these queries, float64.
        weight: Same shape, the unit of errors: the bound of the correct output.
        excused: Same shape, True where the declared precision may overflow, a NaN of the inputs must reach or
            did reach the output, or the oracle is not finite.
    """

    spec: AttentionSpec
    inputs: AttentionInputs
    rows: Rows
    actual: Float64
    weight: Float64
    excused: NDArray[np.bool_]

    def outputs(self, blocks: Blocks) -> Float64:
        """Compute a reading's output of the queries: (batch, heads, rows, v_head_dim)."""
        return outputs_of(blocks(self.spec, self.inputs, rows=self.rows), self.rows, self.actual.shape)

    def truth(self, blocks: Blocks, precision: Precision) -> ReadingValues:
        """Compute a reading's output and its error bound for a precision."""
        output, bound = np.zeros(self.actual.shape), np.zeros(self.actual.shape)
        with np.errstate(all="ignore"):
            for block in blocks(self.spec, self.inputs, rows=self.rows):
                bounded = bound_block(block, precision)
                places = np.searchsorted(self.rows, block.rows)
                output[block.batch, block.head, places] = bounded.output
                bound[block.batch, block.head, places] = bounded.bound
        return ReadingValues(output=output, bound=bound)

    def residual(self, output: Float64) -> float:
        """Root mean square difference in units of the bound; infinite if only one of the two is finite somewhere."""
        known = ~self.excused
        if np.any((np.isfinite(self.actual) != np.isfinite(output)) & known):
            return math.inf
        with np.errstate(all="ignore"):
            share = np.where(known & np.isfinite(output), (self.actual - output) / self.weight, 0.0)
            return float(np.sqrt(np.mean(np.square(share)))) if share.size else 0.0

    def share_of_bound(self, truth: ReadingValues) -> float:
        """Root mean square of the remaining error, in units of the reading's own bound."""
        with np.errstate(all="ignore"):
            share = (self.actual - truth.output) / truth.bound
        return float(np.sqrt(np.mean(np.square(np.where(np.isfinite(share) & ~self.excused, share, 0.0)))))

    def agrees(self, truth: ReadingValues) -> bool:
        """Whether the output is inside the reading's own bound, and NaN exactly where the reading is."""
        finite = np.isfinite(truth.output)
        if np.any((np.isfinite(self.actual) != finite) & ~self.excused):
            return False
        with np.errstate(all="ignore"):
            outside = np.abs(self.actual - truth.output) > truth.bound
        return not bool(np.any(outside & finite & np.isfinite(truth.bound) & ~self.excused))


def select_queries(
    spec: AttentionSpec, inputs: AttentionInputs, actual: Array, precision: Precision
) -> ExplainedOutput | None:
    """Select the queries to compare readings on; None if the shape is wrong or the output is empty."""
    with np.errstate(invalid="ignore"):  # unwritten memory may contain signalling NaN
        output = _heads_first(spec, actual)
    if output is None or not output.size:
        return None
    queries = output.shape[2]
    keys = next(head_blocks(spec, inputs, rows=np.zeros(1, dtype=np.int64))).key.shape[0]
    pairs = output.shape[0] * output.shape[1] * max(1, keys, output.shape[3])
    searched = np.arange(queries)
    if pairs * queries > _SEARCHED_PAIRS:
        searched = np.unique(np.linspace(0, queries - 1, _MOST_ROWS).astype(np.int64))
    shape = (*output.shape[:2], searched.size, output.shape[3])
    right = outputs_of(head_blocks(spec, inputs, rows=searched), searched, shape)
    rows = _worst(searched, output[:, :, searched], right, max(_FEWEST_ROWS, _TRIED_PAIRS // pairs))
    return _subject(spec, inputs, rows, output[:, :, rows], precision)


def _subject(
    spec: AttentionSpec, inputs: AttentionInputs, rows: Rows, actual: Float64, precision: Precision
) -> ExplainedOutput:
    weight, excused = np.ones(actual.shape), np.zeros(actual.shape, dtype=bool)
    if contains_nan(inputs):
        excused = _nan_shows(spec, inputs, rows, actual, precision)
        inputs = _without_nan(inputs)
    with np.errstate(all="ignore"):
        for block in head_blocks(spec, inputs, rows=rows):
            bounded = bound_block(block, precision)
            place = (block.batch, block.head, np.searchsorted(rows, block.rows))
            weight[place] = np.where(bounded.bound > 0.0, bounded.bound, np.finfo(np.float64).tiny)
            overflow = np.broadcast_to(bounded.overflows[:, None], bounded.bound.shape)
            excused[place] |= overflow | ~np.isfinite(bounded.output)
    return ExplainedOutput(spec=spec, inputs=inputs, rows=rows, actual=actual, weight=weight, excused=excused)


def _nan_shows(
    spec: AttentionSpec, inputs: AttentionInputs, rows: Rows, actual: Float64, precision: Precision
) -> NDArray[np.bool_]:
    """Find elements where a NaN in the inputs must reach the output, and where it may and does."""
    shows = np.zeros(actual.shape, dtype=bool)
    for block in head_blocks(spec, inputs, rows=rows):
        clean, sources = replace_nan(block)
        found = nan_places(stages_of(clean), sources, precision)
        place = (block.batch, block.head, np.searchsorted(rows, block.rows))
        shows[place] = found.must | (found.may & np.isnan(actual[place]))
    return shows


def _without_nan(inputs: AttentionInputs) -> AttentionInputs:
    clean = {
        name: array if array.dtype.kind in "bui" else np.where(np.isnan(array), array.dtype.type(0), array)
        for name, array in inputs.named().items()
    }
    return AttentionInputs(**clean, quantisers=inputs.quantisers)


def _worst(searched: Rows, actual: Float64, right: Float64, most: int) -> Rows:
    """Select first, last and worst queries, and evenly spaced ones if there is room."""
    if searched.size <= most:
        return searched
    with np.errstate(all="ignore"):
        error = np.abs(actual - right)
    error = np.where(np.isfinite(error), error, np.where(np.isfinite(right), np.inf, 0.0))
    # The worst query of each head comes first, so that a fault of a single head is found too.
    per_head = error.max(-1).reshape(-1, searched.size)
    order = np.argsort(-per_head, axis=1, kind="stable").T.reshape(-1)
    spaced = np.linspace(0, searched.size - 1, max(2, most // 2)).astype(np.int64)
    ranked = dict.fromkeys([0, searched.size - 1, int(order[0]), *spaced.tolist(), *order.tolist()])
    return np.sort(searched[np.array(list(ranked)[:most])])


def outputs_of(blocks: Iterator[HeadBlock], rows: Rows, shape: tuple[int, ...]) -> Float64:
    """Compute the output of blocks of the given queries, in float64: (batch, heads, rows, v_head_dim)."""
    output = np.zeros(shape)
    with np.errstate(all="ignore"):
        for block in blocks:
            weights = block.weights(block.logits(block.capped(block.scores())))
            output[block.batch, block.head, np.searchsorted(rows, block.rows)] = weights @ block.value
    return output


def _heads_first(spec: AttentionSpec, actual: Array) -> Float64 | None:
    """Convert to (batch, heads, queries, v_head_dim) in float64; None if the shape is wrong."""
    values = actual.astype(np.float64)
    if spec.layout is Layout.BNSH:
        fits = values.ndim == 4 and (values.shape[1], values.shape[3]) == (spec.q_num_heads, spec.v_head_dim)
        return values if fits else None
    if values.ndim != 3 or values.shape[2] != spec.q_num_heads * spec.v_head_dim:
        return None
    return values.reshape(*values.shape[:2], spec.q_num_heads, spec.v_head_dim).transpose(0, 2, 1, 3)
