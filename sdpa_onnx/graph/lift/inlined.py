"""Inline the model functions that contain attention, so that it is read where it is called. Leaves other functions."""

from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from sdpa_onnx.graph.domains import CONTRIB_DOMAIN, is_standard

__all__ = ["CONTRIB_ATTENTION", "inline_attention"]

CONTRIB_ATTENTION = ("Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedMultiHeadAttention")
_STANDARD = ("Attention", "Softmax")

_Name = tuple[str, str, str]


def inline_attention(model: ir.Model) -> str:
    """Inline functions with an attention, in place, and those that call them.

    Returns:
        Why they stay functions, a clause; "" if none does.
    """
    functions = dict(model.functions)
    wanted: set[_Name] = set()
    for name in _callees_first(functions):
        body = list(functions[name].all_nodes())
        if any(_may_attend(node) or node.op_identifier() in wanted for node in body):
            wanted.add(name)
    if not wanted:
        return ""
    try:
        InlinePass(lambda function: function.identifier() in wanted)(model)
    except (ir.passes.PassError, ValueError) as error:
        text = " ".join(str(error.__cause__ or error).split()).rstrip(".")
        return f"which cannot be inlined: {text[:200]}"
    return ""


def _may_attend(node: ir.Node) -> bool:
    if node.domain == CONTRIB_DOMAIN:
        return node.op_type in CONTRIB_ATTENTION
    return is_standard(node) and node.op_type in _STANDARD


def _callees_first(functions: Mapping[_Name, ir.Function]) -> list[_Name]:
    """The functions, each after those that it calls; none calls itself."""
    found: dict[_Name, None] = {}
    stack = list(functions)
    while stack:
        name = stack[-1]
        calls = {node.op_identifier() for node in functions[name].all_nodes()} & functions.keys()
        waiting = [one for one in calls if one not in found]
        if waiting and name not in found:
            stack += waiting
            continue
        found[stack.pop()] = None
    return list(found)
