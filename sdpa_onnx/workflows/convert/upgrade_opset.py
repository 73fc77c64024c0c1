"""Raise the opset of a graph: up to 18 with onnx's version converter, above with onnxscript's.

Functions are inlined. Does not lower an opset.
"""

from collections.abc import Callable

import onnx_ir as ir

from sdpa_onnx.core.attention.inputs import ONNX_INPUT_NAMES
from sdpa_onnx.core.attention.mask_rule import mask_rule_of
from sdpa_onnx.core.attention.spec import Layout
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph import older_opset
from sdpa_onnx.graph.ir_version import lowest_ir_version
from sdpa_onnx.graph.lift.contrib.mask import size_of
from sdpa_onnx.graph.lower.graph_edits import GraphEdits
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.nodes import Nodes
from sdpa_onnx.graph.quiet import quiet_ir

__all__ = ["raise_opset", "stays_below"]

# The range of onnxscript's converter (onnxscript 0.6 and 0.7).
_MIDDLE, _HIGHEST = 18, 25
# Every form needs at least this opset: below it no form can be suggested.
_FORMS_OPSET = 13
_KEEP = "The forms decomposed, blocked with --inner decomposed, ort-mha and ort-gqa keep opset {}."
# Positions of inputs of ONNX Attention.
_MASK, _PAST_KEY = (list(ONNX_INPUT_NAMES).index(field) for field in ("attn_mask", "past_key"))


def raise_opset(model: ir.Model, opset: int) -> None:
    """Raise the default domain of a model to an opset, in place.

    Args:
        model: Its own opset must not be above the requested one.
        opset: 8 to 25.

    Raises:
        ModelError: If a node has no equivalent there, or the model is older than opset 7.
    """
    own = model.opset_imports.get("", 0)
    if own == opset:
        return
    what = f"The model cannot be converted from opset {own} to {opset}"
    hint = _KEEP.format(own) if own >= _FORMS_OPSET else "Export it again at opset 18 or newer."
    if not older_opset.LOWEST <= own <= opset <= _HIGHEST:
        raise ModelError(
            f"{what}: only opset {older_opset.LOWEST} to {_HIGHEST} can be raised.",
            hint=hint,
        )
    try:
        with quiet_ir():
            _raise(model, own, opset)
    except Exception as error:
        reason = " ".join(str(error.__cause__ or error).split()).rstrip(".") or type(error).__name__
        raise ModelError(f"{what}: {reason[:200]}.", hint=hint) from error
    if mask_rule_of(own) is not mask_rule_of(opset):
        _write_broadcast_masks(model)
    if model.opset_imports.get("") != opset or any((node.version or opset) != opset for node in _standard(model)):
        raise ModelError(f"{what}: a node has no equivalent there.", hint=hint)
    model.ir_version = max(model.ir_version or 0, lowest_ir_version(opset))


def stays_below(model: OnnxModel, opset: int | None) -> Callable[[int], str]:
    """A function that returns why a graph cannot be raised to an opset: a clause, "" if it can; each is tried once.

    Args:
        model: Stays unchanged.
        opset: The requested opset, which decides; None = any that the graph can be raised to.
    """
    known: dict[int, str] = {}

    def cannot_hold(needed: int) -> str:
        if opset is not None:
            return f"--opset is {opset}." if needed > opset else ""
        if needed not in known:
            known[needed] = _obstacle(model.ir, needed)
        return known[needed]

    return cannot_hold


def _obstacle(model: ir.Model, opset: int) -> str:
    own = model.opset_imports.get("", 0)
    if own >= opset:
        return ""
    try:
        raise_opset(model.clone(), opset)
    except ModelError as error:
        return f"the graph stays at {own}: {error.args[0]}"
    return ""


def _raise(model: ir.Model, own: int, opset: int) -> None:
    if own < _MIDDLE:
        older_opset.raise_older(model, min(_MIDDLE, opset))
    if opset > _MIDDLE:
        from onnxscript import version_converter

        version_converter.convert_version(model, opset)


def _write_broadcast_masks(model: ir.Model) -> None:
    """Expand masks whose last axis is 1, which opset 23 broadcasts over the keys and opset 24 pads."""
    edits = GraphEdits(model)
    for node in _standard(model):
        mask = node.inputs[_MASK] if node.op_type == "Attention" and len(node.inputs) > _MASK else None
        key, graph = node.inputs[1] if len(node.inputs) > 1 else None, node.graph
        if mask is None or not mask.shape or mask.shape[-1] != 1 or key is None or key.shape is None or graph is None:
            continue
        nodes = Nodes(edits.free_prefix(f"{node.name or node.outputs[0].name}/mask"))
        keys = size_of(nodes, key, Layout.BNSH.length_axis if len(key.shape) == 4 else Layout.BSH.length_axis)
        past = node.inputs[_PAST_KEY] if len(node.inputs) > _PAST_KEY else None
        if past is not None:
            keys = nodes("Add", keys, size_of(nodes, past, 2))
        ones = [nodes.integers(*[1] * (len(mask.shape) - 1))] if len(mask.shape) > 1 else []
        target = nodes("Concat", *ones, keys, axis=0)
        full = nodes("Expand", mask, target, shape=ir.Shape([*list(mask.shape)[:-1], None]))
        graph.insert_before(node, nodes.written)
        node.replace_input_with(_MASK, full)


def _standard(model: ir.Model) -> "list[ir.Node]":
    return [node for node in model.graph.all_nodes() if node.domain == ""]
