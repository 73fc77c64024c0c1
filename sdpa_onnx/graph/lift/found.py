"""Result types of the search for attention: each attention found, and the graph that its values belong to.

Finds nothing itself.
"""

from dataclasses import dataclass

import onnx_ir as ir

from sdpa_onnx.graph.graph_attention import GraphAttention

__all__ = ["EVERY_QUERY_SEES_A_KEY", "GIVE_IT", "IS_UNKNOWN", "NAN_ROWS", "FoundAttention", "FoundAttentions"]

# Part of the reason of an attention that can be read where a size, or the contents of an input, are given.
GIVE_IT = "give it: verify"
# Part of the reason of an attention that can be read where the types of its values are known.
IS_UNKNOWN = "is unknown"
EVERY_QUERY_SEES_A_KEY = "every query sees a key"
# Warning for an attention whose source does not guard against fully masked rows.
NAN_ROWS = "A query that sees no key is NaN in the source and 0 in the result."


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAttention:
    """One attention of a graph.

    Args:
        dialect: How it is written in the graph, as shown to the user.
        node: Name of the node by which it was recognised.
        attention: The canonical attention, or None if it cannot be read.
        reason: Why it cannot be read; names the node.
        warnings: Warnings for the user about an attention that was read.
        assumes: Assumption about the inputs that the caller allowed and the reading depends on; "" = none.
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
        model: An equivalent copy of the searched model. It may have additional nodes whose outputs
            nothing reads yet, such as a mask in the operator's form or the split of a packed query.
        found: The attentions; their values belong to `model`.
    """

    model: ir.Model
    found: tuple[FoundAttention, ...]
