"""Recognise onnxruntime's attention operators that cannot be read, each with the reason. Reads none of them."""

from collections.abc import Iterator

from sdpa_onnx.graph.domains import CONTRIB_DOMAIN
from sdpa_onnx.graph.lift.found import FoundAttention
from sdpa_onnx.graph.lift.graph_facts import GraphFacts

__all__ = ["read"]

_PADDING_REMOVED = "its samples are packed without padding, which the standard operator does not support"
_DECODES = "it decodes one token with a cache that it reorders and shares"
_QUANTISED = "its weights are quantised"
_SPARSE = "it attends to a selection of keys by rules that the standard operator does not have"

# Source: onnxruntime docs/ContribOperators.md.
_REASONS = {
    "DecoderAttention": "what it computes depends on flags in graph inputs",
    "DecoderMaskedMultiHeadAttention": _DECODES,
    "DecoderMaskedSelfAttention": _DECODES,
    "DynamicSparseAttention": _SPARSE,
    "LinearAttention": "it has no softmax",
    "LongformerAttention": _SPARSE,
    "PackedAttention": _PADDING_REMOVED,
    "PackedMultiHeadAttention": _PADDING_REMOVED,
    "PagedAttention": "its cache is stored in pages",
    "QAttention": _QUANTISED,
    "QOrderedAttention": _QUANTISED,
    "QOrderedLongformerAttention": _QUANTISED,
    "SparseAttention": _SPARSE,
    "SparsePagedAttention": _SPARSE,
}


def read(search: GraphFacts) -> Iterator[FoundAttention]:
    """Find every other attention operator of onnxruntime; none is read."""
    for node in search.nodes:
        if node.domain == CONTRIB_DOMAIN and node.op_type in _REASONS:
            name = search.name_of(node)
            reason = f"{node.op_type} '{name}': {_REASONS[node.op_type]}."
            yield FoundAttention(dialect=f"onnxruntime {node.op_type}", node=name, reason=reason)
