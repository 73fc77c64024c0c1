"""Estimates rounding errors that rows have in common, which the score tests must not treat as independent.

A key or value that is rounded inside a product has the same error for every query that uses it, in all heads that
share it; nearly equal queries have nearly the same errors throughout. Decides no verdict.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.precision import Precision
from sdpa_onnx.core.attention.stages import Stages
from sdpa_onnx.core.judge.directions import BlockDirections, Direction, SharedErrors, clipped
from sdpa_onnx.core.judge.sigma import ROUNDING_VARIANCE, BlockSigma

__all__ = ["SharedErrorsBuilder"]

Float64 = NDArray[np.float64]
Labels = NDArray[np.int64]
Group = tuple[int, int]

# Rows closer to each other than this, in steps of their format, have the same rounding errors.
_ALIKE_STEPS = 2.0
# Finer formats count as this one, because rows that close to each other share most of their rounding errors too.
_FINEST_UNIT = 2.0**-20
# Nearly equal rows are most likely neighbours in a random projection; this many neighbours are compared.
_NEIGHBOURS = 8


@dataclass(slots=True)
class SharedErrorsBuilder:
    """Accumulates shared errors block by block; short-lived.

    Blocks of one batch and key/value head must follow each other.

    Args:
        precision: The declared precision.
    """

    precision: Precision
    _group: Group = (-1, -1)
    _on_keys: Float64 | None = None
    _on_values: Float64 | None = None
    _squares: Float64 = field(default_factory=lambda: np.zeros(len(Direction)))
    _weights: Float64 = field(default_factory=lambda: np.zeros(len(Direction)))
    _rows: list[tuple[Float64, Float64]] = field(default_factory=list)
    _clusters: list[Labels] = field(default_factory=list)
    _next_label: int = 0

    def add(self, group: Group, stages: Stages, sigma: BlockSigma, directions: BlockDirections) -> None:
        """Add a block.

        Args:
            group: Indices of batch and key/value head.
            stages: The block.
            sigma: Its sigma.
            directions: Its score-test directions.
        """
        keys = stages.block.key.shape
        if group != self._group or (self._on_keys is not None and self._on_keys.shape[1:] != keys):
            self._close()
            self._group = group
        self._rows.append((stages.block.query, stages.output))
        with np.errstate(all="ignore"):
            weights = np.stack([clipped(information) for information in directions.information])
            self._weights += weights.sum(1)
            share = weights / np.where(directions.information > 0.0, directions.information, 1.0)
            inverse = np.where(sigma.sigma > 0.0, 1.0 / sigma.sigma, 0.0)
            pulls = directions.pushes * inverse * share[..., None]
            on_keys, on_values = _pushed_by_keys(stages, pulls), _pushed_by_values(stages, pulls, self.precision)
        self._on_keys = on_keys if self._on_keys is None else self._on_keys + on_keys
        if on_values is not None:
            self._on_values = on_values if self._on_values is None else self._on_values + on_values

    def finish(self) -> SharedErrors:
        """Close the last group and return the sums."""
        self._close()
        total = np.where(self._weights > 0.0, self._weights, 1.0)
        with np.errstate(all="ignore"):
            variances = self._squares / (total * total)
        return SharedErrors(variances=variances, clusters=tuple(self._clusters))

    def _close(self) -> None:
        operand = 0.0 if self.precision.operand is None else self.precision.operand.unit_roundoff**2
        with np.errstate(all="ignore"):
            if self._on_keys is not None:
                unit = ROUNDING_VARIANCE * (self.precision.prescaled.unit_roundoff**2 + operand)
                self._squares += unit * np.square(self._on_keys).sum((1, 2))
            if self._on_values is not None:
                self._squares += ROUNDING_VARIANCE * operand * np.square(self._on_values).sum((1, 2))
        self._on_keys = self._on_values = None
        if self._rows:
            self._add_clusters()
        self._rows = []

    def _add_clusters(self) -> None:
        queries, outputs = (np.concatenate(arrays) for arrays in zip(*self._rows, strict=True))
        operand = 0.0 if self.precision.operand is None else self.precision.operand.unit_roundoff
        coarsest = max(operand, self.precision.prescaled.unit_roundoff, _FINEST_UNIT)
        with np.errstate(all="ignore"):
            size = np.sqrt(np.square(queries).mean(1, keepdims=True))
            size = np.where(size > 0.0, size, 1.0)
            # Compare direction and length; the length counts as much as the whole direction.
            length = np.log(size) * math.sqrt(1.0 + queries.shape[1])
            query_steps = np.concatenate([queries / size, length], axis=1) / (4.0 * coarsest)
            size = np.sqrt(np.square(outputs).mean(0, keepdims=True))
            coarsest = max(operand, self.precision.output.unit_roundoff, _FINEST_UNIT)
            output_steps = outputs / (2.0 * coarsest * np.where(size > 0.0, size, 1.0))
        labels = _joined(queries.shape[0], [*_alike(query_steps), *_alike(output_steps)])
        labels += self._next_label
        self._next_label += queries.shape[0]
        start = 0
        for query, _ in self._rows:
            self._clusters.append(labels[start : start + query.shape[0]])
            start += query.shape[0]


def _pushed_by_keys(stages: Stages, pulls: Float64) -> Float64:
    """Compute the change of each summed estimate per relative error of an entry of key: (directions, keys, head_dim).

    An error d of a score changes the row's output by w (v - o) d.
    """
    block = stages.block
    value = np.where(stages.seen[:, None], block.value, 0.0)
    key = np.where(stages.seen[:, None], block.key, 0.0)
    weights = stages.weights if stages.slope is None else stages.weights * stages.slope
    pushed = np.empty((pulls.shape[0], *key.shape))
    for index, pull in enumerate(pulls):
        on_scores = pull @ value.T
        on_scores -= np.vecdot(pull, stages.output)[:, None]
        on_scores *= weights
        pushed[index] = block.scale * key * (on_scores.T @ block.query)
    return pushed


def _pushed_by_values(stages: Stages, pulls: Float64, precision: Precision) -> Float64 | None:
    """Compute the same for an entry of value: (directions, keys, v_head_dim); None if values are not rounded."""
    if precision.operand is None:
        return None
    value = np.where(stages.seen[:, None], stages.block.value, 0.0)
    return np.stack([value * (stages.weights.T @ pull) for pull in pulls])


def _alike(rows: Float64) -> Iterable[tuple[int, int]]:
    """Yield pairs of nearly equal rows, given in units of a step; enough pairs to join all of them."""
    count, width = rows.shape
    if count < 2 or not width or not np.isfinite(rows).all():
        return
    order = np.argsort(rows @ np.random.default_rng(0).standard_normal(width), kind="stable")
    ordered = rows[order]
    for lag in range(1, min(_NEIGHBOURS, count - 1) + 1):
        distance = np.square(ordered[lag:] - ordered[:-lag]).mean(1)
        for place in np.flatnonzero(distance <= _ALIKE_STEPS**2):
            yield int(order[place]), int(order[place + lag])


def _joined(count: int, pairs: Iterable[tuple[int, int]]) -> Labels:
    """Return the cluster index of each row; rows joined by a chain of pairs have the same index."""
    above = list(range(count))

    def top(row: int) -> int:
        while above[row] != row:
            above[row] = above[above[row]]
            row = above[row]
        return row

    for first, second in pairs:
        above[top(second)] = top(first)
    return np.array([top(row) for row in range(count)], dtype=np.int64)
