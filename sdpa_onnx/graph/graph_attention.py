"""One attention of a graph, whatever its form: what it computes, and the values that enter and leave it."""

from dataclasses import dataclass

import onnx_ir as ir

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.graph.site import AttentionSite

__all__ = ["GraphAttention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphAttention:
    """The canonical form in memory: one `Attention` operator of opset 25, as values of a graph instead of a node.

    Every form is written from it, and every dialect read into it. The values
    are those of the graph that it was found in; `output` is what the graph
    reads today and what a form replaces.

    Args:
        name: Unique in the model.
        spec: What it computes. Layout BNSH: values are 4-D; BSH: 3-D.
        dtype: Element type of query, key, value and output.
        query: (batch, q heads, q length, head_dim), or 3-D.
        key: (batch, kv heads, kv length, head_dim), or 3-D.
        value: (batch, kv heads, kv length, v_head_dim), or 3-D.
        output: (batch, q heads, q length, v_head_dim), or 3-D.
        attn_mask: Boolean (True = may attend) or float (added), broadcast to
            (batch, q heads, q length, total length); a short last axis hides the rest.
        past_key: (batch, kv heads, past length, head_dim), or None.
        past_value: The same of width v_head_dim.
        nonpad_kv_seqlen: (batch,) int64: keys of each sample that are no padding.
        present_key: Past and new keys as an output, or None if nothing reads them.
        present_value: The same.
        scores: The operator's fourth output, or None; a form that cannot give it refuses.
        scores_mode: Which scores: `qk_matmul_output_mode` of the operator.

    Source: ONNX Attention, opset 25.
    """

    name: str
    spec: AttentionSpec
    dtype: Dtype
    query: ir.Value
    key: ir.Value
    value: ir.Value
    output: ir.Value
    attn_mask: ir.Value | None = None
    past_key: ir.Value | None = None
    past_value: ir.Value | None = None
    nonpad_kv_seqlen: ir.Value | None = None
    present_key: ir.Value | None = None
    present_value: ir.Value | None = None
    scores: ir.Value | None = None
    scores_mode: int = 0

    @property
    def site(self) -> AttentionSite:
        """Where a judge taps it: the names of its values."""
        optional = ("attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
        named = {field: value.name for field in optional if (value := getattr(self, field)) is not None}
        return AttentionSite(
            name=self.name,
            spec=self.spec,
            query=self.query.name or "",
            key=self.key.name or "",
            value=self.value.name or "",
            output=self.output.name or "",
            **named,
        )
