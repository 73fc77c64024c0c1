"""The graph forms that an attention can be written in, and how each may be varied."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Form", "LowerOptions", "ScalePlacement", "Workaround"]


class Form(StrEnum):
    """How an attention stands in a graph.

    DECOMPOSED is the formula in standard operators; ATTENTION one standard `Attention`
    node; BLOCKED a `Loop` over blocks of queries that skips hidden keys; ORT_MHA and
    ORT_GQA are onnxruntime's MultiHeadAttention and GroupQueryAttention.
    """

    DECOMPOSED = "decomposed"
    ATTENTION = "attention"
    BLOCKED = "blocked"
    ORT_MHA = "ort-mha"
    ORT_GQA = "ort-gqa"


class ScalePlacement(StrEnum):
    """Where the decomposed form multiplies by the scale: the query, the scores, or its root on query and key."""

    QUERY = "query"
    SCORES = "scores"
    BOTH = "both"


class Workaround(StrEnum):
    """A way of writing a form so that a faulty or strict kernel gives what the operator's text says.

    Which of them a runtime needs is found by probing it, never looked up.

    EXPAND_MASK: the mask has all its queries and keys, no broadcast, no short axis.
    CAUSAL_AS_MASK: causality and windows stand in the mask, not in an attribute.
    SCALE_ON_QUERY: the scale is multiplied into the query; the node's own is 1.
    FINITE_MASK: a float mask is lifted above the lowest number of its type.
    EQUAL_BATCH: key and value are expanded to the query's batch.
    """

    EXPAND_MASK = "expand-mask"
    CAUSAL_AS_MASK = "causal-as-mask"
    SCALE_ON_QUERY = "scale-on-query"
    FINITE_MASK = "finite-mask"
    EQUAL_BATCH = "equal-batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerOptions:
    """What may be chosen within a form.

    Args:
        scale_placement: For DECOMPOSED, also inside BLOCKED.
        inner: What BLOCKED holds in its loop: ATTENTION or DECOMPOSED; None = DECOMPOSED, which is faster.
        workarounds: For ATTENTION, also inside BLOCKED; FINITE_MASK also for ORT_MHA and ORT_GQA.
    """

    scale_placement: ScalePlacement = ScalePlacement.QUERY
    inner: Form | None = None
    workarounds: frozenset[Workaround] = frozenset()
