"""What a search for attention gives: each one found, read or not, and the graph that its values belong to."""

from dataclasses import dataclass

import onnx_ir as ir

from sdpa_onnx.graph.graph_attention import GraphAttention

__all__ = ["EVERY_QUERY_SEES_A_KEY", "NAN_ROWS", "FoundAttention", "FoundAttentions"]

EVERY_QUERY_SEES_A_KEY = "every query sees a key"
# A warning of an attention whose source has no guard against rows that are hidden entirely.
NAN_ROWS = "A query that sees no key is NaN in the source and 0 in the result."


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAttention:
    """One attention of a graph.

    Args:
        dialect: How it is written, in words for the user.
        node: Name of the node that it was recognised by.
        attention: What it computes and where, or None if it could not be read.
        reason: Why it could not be read, naming the node.
        warnings: What the user should know of one that was read.
        assumes: What the reading takes for granted because the caller said so; "" = nothing.
    """

    dialect: str
    node: str
    attention: GraphAttention | None = None
    reason: str = ""
    warnings: tuple[str, ...] = ()
    assumes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAttentions:
    """All attentions of a graph, in graph order.

    Args:
        model: A copy of the searched model that computes the same. It may have nodes more, whose
            values are read by nothing yet: a mask in the operator's terms, or a packed query set apart.
        found: The attentions; their values belong to `model`.
    """

    model: ir.Model
    found: tuple[FoundAttention, ...]
