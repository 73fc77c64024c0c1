"""Recognise guards against fully masked rows: evaluate a condition on test rows of scores.

Evaluates only the nodes between the scores or weights and the condition. Does not look at how the condition is used.
"""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.graph.domains import is_standard
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.size_trial import NodeEvaluators
from sdpa_onnx.graph.lift.spans import MISFIT
from sdpa_onnx.graph.nodes_apart import has_subgraph

__all__ = ["detects_empty_rows"]

Array = NDArray[Any]

# One key, few and many: rejects a condition that compares the number of hidden keys with a constant.
_KEYS = (1, 3, 8, 70)
# Size of dynamic axes before the axes of queries and keys.
_OTHERS = 2
# Longest chain from the scores to the condition of a guard: compare, not, cast, reduce, compare, not.
_STEPS = 12


def detects_empty_rows(search: GraphFacts, softmax: ir.Node, condition: ir.Value, *, wanted: bool) -> bool:
    """Whether a condition equals `wanted` exactly for the rows whose scores are all -inf.

    Args:
        search: The graph.
        softmax: The softmax over the last axis.
        condition: The condition, computed from the softmax's input or output.
        wanted: Its required value for a fully masked row.
    """
    scores = softmax.inputs[0]
    dims = search.dims_of(scores)
    if scores is None or dims is None or len(dims) < 2 or scores.dtype is None:
        return False
    order = _nodes_behind(search, softmax, condition)
    if order is None:
        return False
    evaluators = NodeEvaluators(search.model.opset_imports)
    for keys in _KEYS:
        rows, is_empty = _rows(keys, scores.dtype)
        outer = tuple(size or _OTHERS for size in dims[:-2])
        fed = np.broadcast_to(rows, (*outer, *rows.shape)).copy()
        try:
            found = _evaluated(search, evaluators, softmax, order, fed)[condition]
            is_true = np.broadcast_to(found.astype(np.bool_), fed.shape)
        except (*MISFIT, KeyError):
            return False
        if bool((is_true != (is_empty[:, None] == wanted)).any()):
            return False
    return True


def _rows(keys: int, dtype: ir.DataType) -> tuple[Array, NDArray[np.bool_]]:
    """Test scores (rows, keys), finite of any magnitude or partly hidden, and which rows are fully masked."""
    kind = dtype.numpy()
    limits = ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]  # it has no types
    numbers = (0.0, 1.5, -1e3, -3e4, float(limits.min), float(limits.max))
    rows = [np.full(keys, number) for number in numbers]
    rows.append(np.linspace(-3, 3, keys))
    for seen in {0, keys // 2, keys - 1}:
        for number in (2.5, float(limits.min)):
            rows.append(np.where(np.arange(keys) == seen, number, -np.inf))
            rows.append(np.where(np.arange(keys) == seen, -np.inf, number))
    rows.append(np.full(keys, -np.inf))
    scores = np.stack(rows)
    return scores.astype(kind), np.asarray(np.isneginf(scores).all(axis=-1))


def _nodes_behind(search: GraphFacts, softmax: ir.Node, condition: ir.Value) -> list[ir.Node] | None:
    """Nodes from the scores or weights to a condition, in order; None if it depends on anything else."""
    ends = {softmax.inputs[0], softmax.outputs[0]}
    found: dict[ir.Node, None] = {}
    reached = [condition]
    for _ in range(_STEPS):
        longer: list[ir.Value] = []
        for value in reached:
            if value in ends or search.constant_of(value) is not None:
                continue
            node = value.producer()
            if node is None or not is_standard(node) or has_subgraph(node):
                return None
            found.pop(node, None)
            found[node] = None
            longer += [one for one in node.inputs if one is not None]
        if not longer:
            return list(reversed(found))
        reached = longer
    return None


def _evaluated(
    search: GraphFacts, evaluators: NodeEvaluators, softmax: ir.Node, order: Sequence[ir.Node], scores: Array
) -> dict[ir.Value, Array]:
    known: dict[ir.Value, Array] = {}
    if softmax.inputs[0] is not None:
        known[softmax.inputs[0]] = scores
    known[softmax.outputs[0]] = evaluators.evaluate(softmax, 0, [scores])
    for node in order:
        arrays = [None if value is None else _array(search, known, value) for value in node.inputs]
        for position, value in enumerate(node.outputs):
            known[value] = evaluators.evaluate(node, position, arrays)
    return known


def _array(search: GraphFacts, known: dict[ir.Value, Array], value: ir.Value) -> Array:
    constant = search.constant_of(value) if value not in known else known[value]
    if constant is None:
        raise KeyError(value.name)
    return constant
