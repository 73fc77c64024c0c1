"""Recognise guards against fully masked rows: evaluate a condition on test rows of scores, or of the added mask.

Evaluates only the nodes between the scores, mask or weights and the condition. Does not look at how the condition is
used.
"""

from collections.abc import Collection, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.graph.domains import is_standard
from sdpa_onnx.graph.element_types import DTYPES
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


def detects_empty_rows(
    search: GraphFacts, softmax: ir.Node, condition: ir.Value, *, wanted: bool, added: ir.Value | None = None
) -> bool:
    """Whether a condition equals `wanted` exactly for the rows whose scores are all -inf.

    Args:
        search: The graph.
        softmax: The softmax over the last axis.
        condition: The condition, computed from the softmax's input or output, or from the mask alone.
        wanted: Its required value for a fully masked row.
        added: The only mask, if it is added to finite scores and nothing changes them afterwards.
    """
    starts = [value for value in (added, softmax.inputs[0]) if value is not None]
    return any(_detects(search, softmax, start, condition, wanted=wanted) for start in starts)


def _detects(search: GraphFacts, softmax: ir.Node, start: ir.Value, condition: ir.Value, *, wanted: bool) -> bool:
    """The same for a condition that is computed from one value; from the weights too if that is the scores."""
    dims = search.dims_of(start)
    if dims is None or len(dims) < 2 or start.dtype not in DTYPES or start.dtype is None:
        return False
    is_scores = start is softmax.inputs[0]
    order = _nodes_behind(search, {start, softmax.outputs[0]} if is_scores else {start}, condition)
    if order is None:
        return False
    evaluators = NodeEvaluators(search.model.opset_imports)
    for keys in _KEYS:
        rows, is_empty = _rows(keys, start.dtype)
        outer = tuple(size or _OTHERS for size in dims[:-2])
        fed = np.broadcast_to(rows, (*outer, *rows.shape)).copy()
        known = {start: fed}
        try:
            if is_scores:
                known[softmax.outputs[0]] = evaluators.evaluate(softmax, 0, [fed])
            found = _evaluated(search, evaluators, known, order)[condition]
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


def _nodes_behind(search: GraphFacts, ends: Collection[ir.Value], condition: ir.Value) -> list[ir.Node] | None:
    """Nodes from some values to a condition, in order; None if it depends on anything else."""
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
    search: GraphFacts, evaluators: NodeEvaluators, known: dict[ir.Value, Array], order: Sequence[ir.Node]
) -> dict[ir.Value, Array]:
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
