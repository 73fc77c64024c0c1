"""Defines the graph forms of an attention and the options of each form.

Enums and options only; `graph.lower` builds the forms.
"""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Form", "LowerOptions", "ScalePlacement", "Workaround"]


class Form(StrEnum):
    """The graph form of an attention.

    DECOMPOSED is the formula in standard operators; ATTENTION is one standard `Attention`
    node; BLOCKED is a `Loop` over blocks of queries that skips hidden keys; ORT_MHA and
    ORT_GQA are onnxruntime's MultiHeadAttention and GroupQueryAttention.
    """

    DECOMPOSED = "decomposed"
    ATTENTION = "attention"
    BLOCKED = "blocked"
    ORT_MHA = "ort-mha"
    ORT_GQA = "ort-gqa"


class ScalePlacement(StrEnum):
    """What the decomposed form multiplies by the scale: query, scores, or query and key by its square root."""

    QUERY = "query"
    SCORES = "scores"
    BOTH = "both"


class Workaround(StrEnum):
    """A variant of a form with which a faulty or strict kernel follows the operator's specification.

    Probing the runtime determines which of them it needs; there is no table of versions.

    EXPAND_MASK: the mask has all queries and keys, no broadcast and no short axis.
    CAUSAL_AS_MASK: causality and windows are part of the mask, not an attribute.
    SCALE_ON_QUERY: the query is multiplied by the scale; the node's scale is 1.
    FINITE_MASK: the values of a float mask are raised above the lowest number of its type.
    EQUAL_BATCH: key and value are expanded to the query's batch.
    """

    EXPAND_MASK = "expand-mask"
    CAUSAL_AS_MASK = "causal-as-mask"
    SCALE_ON_QUERY = "scale-on-query"
    FINITE_MASK = "finite-mask"
    EQUAL_BATCH = "equal-batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerOptions:
    """Options of a form.

    Args:
        scale_placement: For DECOMPOSED, also inside BLOCKED; None = the query, or the scores where the product is
            rounded to integers before the scale.
        inner: The form inside BLOCKED's loop: ATTENTION or DECOMPOSED; None = DECOMPOSED, which is faster.
        workarounds: For ATTENTION, also inside BLOCKED; FINITE_MASK also for ORT_MHA and ORT_GQA.
    """

    scale_placement: ScalePlacement | None = None
    inner: Form | None = None
    workarounds: frozenset[Workaround] = frozenset()
