"""Computes the expectation of an output: oracle, proven error bound, sigma and score-test directions.

Computed once and used for every runtime with the same inputs. Decides no verdict.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import HeadBlock, head_blocks, split_heads
from sdpa_onnx.core.attention.precision import Precision
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.core.attention.stages import Stages, cut_block, stages_of
from sdpa_onnx.core.attention.window_bounds import bounds_of
from sdpa_onnx.core.judge.block_bound import BlockBound, overflow_limit
from sdpa_onnx.core.judge.bounds import bound_stages
from sdpa_onnx.core.judge.directions import BlockDirections, SharedErrors, directions_of
from sdpa_onnx.core.judge.nan_places import NanPlaces, contains_nan, empty_rows, nan_places, replace_nan
from sdpa_onnx.core.judge.shared_errors import SharedErrorsBuilder
from sdpa_onnx.core.judge.sigma import BlockSigma, sigma_of

__all__ = ["ROWS_PER_HEAD", "Expectation", "expect", "has_empty_rows"]

# Each row is checked independently, so on large cases this many queries per head are enough (METHOD A.5).
ROWS_PER_HEAD = 64
# With at most this many (query, key) pairs over all heads every query is judged: about one second on one core.
_ALL_ROWS_PAIRS = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The reference that an output is compared with.

    Args:
        spec: The attention.
        precision: The declared precision of bounds and sigmas.
        shape: Shape of the output, in the spec's layout.
        rows: Queries that are judged; None = all.
        blocks: Position of each part: (batch, head, queries).
        bounds: Oracle and error bound of each part.
        sigmas: Sigma of each part.
        directions: Score-test directions of each part.
        shared: Computes the errors that rows have in common, at the first call.
        nans: Per part: where NaN must and may appear; empty if no input is NaN.
        rescaled: The same for the scale times a factor; None if the scale is 0.
        may_overflow: Whether an output outside the judged queries may be infinite or NaN, because a score may
            overflow the declared format or an input is NaN.
        empty: Computes (batch, head, query): where the graph defines NaN because no key is visible; None if nowhere.
    """

    spec: AttentionSpec
    precision: Precision
    shape: tuple[int, ...]
    rows: NDArray[np.int64] | None
    blocks: tuple[tuple[int, int, NDArray[np.int64]], ...]
    bounds: tuple[BlockBound, ...]
    sigmas: tuple[BlockSigma, ...]
    directions: tuple[BlockDirections, ...]
    shared: Callable[[], SharedErrors]
    rescaled: "Callable[[float], Expectation] | None" = None
    nans: tuple[NanPlaces, ...] = ()
    may_overflow: bool = False
    empty: Callable[[], NDArray[np.bool_]] | None = None


@np.errstate(over="ignore", divide="ignore", invalid="ignore")  # infinite inputs: results without a number are skipped
def expect(
    spec: AttentionSpec,
    inputs: AttentionInputs,
    *,
    precision: Precision,
    rows_per_head: int | None = None,
    seed: int = 0,
    nan_rows: bool = False,
    blocks_of: Callable[..., Iterator[HeadBlock]] = head_blocks,
) -> Expectation:
    """Compute oracle, proven error bound, sigma and directions.

    Args:
        spec: The attention.
        inputs: The arrays exactly as the runtimes receive them.
        precision: The declared precision.
        rows_per_head: Number of queries to judge per head, including the first and the last;
            None = all on small cases, `ROWS_PER_HEAD` on large ones.
        seed: Seed of the sampling of queries.
        nan_rows: Whether a row without a visible key is NaN, because the softmax of the graph has no guard.
        blocks_of: An alternative reading of the operator, see `core.faults.readings`.
    """
    nan_rows = nan_rows and has_empty_rows(spec, inputs)
    rows = _pick_rows(inputs, spec, rows_per_head, seed)
    blocks: list[tuple[int, int, NDArray[np.int64]]] = []
    parts: list[_Part] = []
    holds_nan = contains_nan(inputs)
    for block in blocks_of(spec, inputs, rows=rows):
        for small in cut_block(block):
            blocks.append((small.batch, small.head, small.rows))
            parts.append(_part(small, precision, holds_nan=holds_nan, nan_rows=nan_rows)[0])
    again = functools.partial(
        expect,
        inputs=inputs,
        precision=precision,
        rows_per_head=rows_per_head,
        seed=seed,
        nan_rows=nan_rows,
        blocks_of=blocks_of,
    )
    return Expectation(
        spec=spec,
        precision=precision,
        shape=_output_shape(spec, inputs),
        rows=rows,
        blocks=tuple(blocks),
        bounds=tuple(part.bound for part in parts),
        sigmas=tuple(part.sigma for part in parts),
        directions=tuple(part.directions for part in parts),
        shared=functools.cache(
            lambda: _shared_errors(
                blocks_of(spec, inputs, rows=rows), spec, precision, holds_nan=holds_nan, nan_rows=nan_rows
            )
        ),
        rescaled=(lambda factor: again(replace(spec, scale=factor * spec.scale_value))) if spec.scale_value else None,
        nans=tuple(part.nans for part in parts if part.nans is not None),
        may_overflow=rows is not None and (holds_nan or _may_overflow(spec, inputs, precision)),
        empty=functools.partial(_empty, spec, inputs) if nan_rows else None,
    )


def has_empty_rows(spec: AttentionSpec, inputs: AttentionInputs) -> bool:
    """Whether some query sees no key; where none does, a softmax with and one without a guard are the same."""
    if inputs.attn_mask is None and inputs.nonpad_kv_seqlen is None and not bounds_of(spec):
        return False
    return any(bool(empty_rows(block).any()) for block in head_blocks(spec, inputs))


def _empty(spec: AttentionSpec, inputs: AttentionInputs) -> NDArray[np.bool_]:
    """(batch, head, query), True for a query that sees no key."""
    query, _, _ = split_heads(spec, inputs)
    empty = np.zeros(query.shape[:3], bool)
    for block in head_blocks(spec, inputs):
        empty[block.batch, block.head, block.rows] = empty_rows(block)
    return empty


@np.errstate(over="ignore", divide="ignore", invalid="ignore")
def _shared_errors(
    blocks: Iterator[HeadBlock], spec: AttentionSpec, precision: Precision, *, holds_nan: bool, nan_rows: bool
) -> SharedErrors:
    """Compute shared errors in a second pass over the blocks; most outputs are correct and do not need it."""
    shared = SharedErrorsBuilder(precision=precision)
    for block in blocks:
        for small in cut_block(block):
            part, stages = _part(small, precision, holds_nan=holds_nan, nan_rows=nan_rows)
            shared.add((small.batch, small.head // spec.heads_per_kv), stages, part.sigma, part.directions)
    return shared.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    bound: BlockBound
    sigma: BlockSigma
    directions: BlockDirections
    nans: NanPlaces | None


def _part(block: HeadBlock, precision: Precision, *, holds_nan: bool, nan_rows: bool) -> tuple[_Part, Stages]:
    """Compute the expectation of one part of a block; where it must be NaN, the oracle is NaN and sigma 0."""
    sources = None
    if holds_nan or nan_rows:
        block, sources = replace_nan(block)
    stages = stages_of(block)
    bound = bound_stages(stages, precision)
    sigma = sigma_of(stages, bound, precision)
    nans = None if sources is None else nan_places(stages, sources, precision, nan_rows=nan_rows)
    if nans is not None:
        must = nans.must | nans.open[:, None]
        bound = replace(bound, output=np.where(must, np.nan, bound.output))
        sigma = replace(sigma, sigma=np.where(must | nans.may, 0.0, sigma.sigma))
    return _Part(bound=bound, sigma=sigma, directions=directions_of(stages, sigma, precision), nans=nans), stages


def _may_overflow(spec: AttentionSpec, inputs: AttentionInputs, precision: Precision) -> bool:
    """Whether any score may overflow the format, by Cauchy-Schwarz."""
    query, key, _ = split_heads(spec, inputs)
    longest = (float(np.sqrt((array * array).sum(-1)).max(initial=0.0)) for array in (query, key))
    return math.prod(longest) * max(1.0, abs(spec.scale_value)) > overflow_limit(precision)


def _pick_rows(
    inputs: AttentionInputs, spec: AttentionSpec, rows_per_head: int | None, seed: int
) -> NDArray[np.int64] | None:
    """Select the queries to judge; None = all."""
    axis = spec.layout.length_axis
    batch_size, q_seq_len = inputs.query.shape[0], inputs.query.shape[axis]
    keys = inputs.key.shape[axis] + (0 if inputs.past_key is None else inputs.past_key.shape[2])
    if rows_per_head is None:
        is_small = batch_size * spec.q_num_heads * q_seq_len * max(keys, spec.v_head_dim) <= _ALL_ROWS_PAIRS
        rows_per_head = q_seq_len if is_small else ROWS_PER_HEAD
    if rows_per_head >= q_seq_len:
        return None
    inner = np.random.default_rng(seed).choice(np.arange(1, q_seq_len - 1), max(0, rows_per_head - 2), replace=False)
    return np.sort(np.concatenate([[0, q_seq_len - 1], inner])).astype(np.int64)


def _output_shape(spec: AttentionSpec, inputs: AttentionInputs) -> tuple[int, ...]:
    query = inputs.query.shape
    if spec.layout is Layout.BNSH:
        return (*query[:3], spec.v_head_dim)
    return (*query[:2], spec.q_num_heads * spec.v_head_dim)
