"""Describe one attention of a graph in canonical form: its spec and its input and output values.

Neither finds the attention (`graph.lift`) nor writes it (`graph.lower`).
"""

from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from sdpa_onnx.core.attention.mask_rule import MaskRule
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.score_quantisers import ScoreQuantisers
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.attention.window_bounds import WindowBounds, bounds_of
from sdpa_onnx.graph.site import AttentionSite

__all__ = ["GraphAttention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphAttention:
    """The canonical form in memory: one `Attention` operator of opset 25, as graph values instead of a node.

    Every dialect is read into it, and every form is written from it. The
    values belong to the graph in which the attention was found. A form
    replaces `output`.

    Args:
        name: Unique in the model.
        spec: What it computes. With layout BNSH the values are 4-D, with BSH 3-D.
        dtype: Element type of query, key, value and output.
        query: (batch, q heads, q length, head_dim), or 3-D.
        key: (batch, kv heads, kv length, head_dim), or 3-D.
        value: (batch, kv heads, kv length, v_head_dim), or 3-D.
        output: (batch, q heads, q length, v_head_dim), or 3-D.
        attn_mask: Boolean (True = may attend) or float (added), broadcast to
            (batch, q heads, q length, total length). If the last axis is
            shorter, the keys beyond it are hidden; an axis of 1 is read by `mask_rule`.
        past_key: (batch, kv heads, past length, head_dim), or None.
        past_value: (batch, kv heads, past length, v_head_dim), or None.
        nonpad_kv_seqlen: (batch,) int64: number of keys of each sample that are not padding.
        present_key: Past and new keys as an output; None if nothing reads them.
        present_value: Past and new values as an output; None if nothing reads them.
        scores: The operator's fourth output, or None. A form that cannot compute it refuses the attention.
        scores_mode: The stage of the scores: the operator's attribute `qk_matmul_output_mode`.
        mask_rule: What a mask means whose last axis is 1.
        mask_band: Proved of a float mask: it hides the keys outside this band by the lowest numbers or -inf, so that
            they count only for a query that sees no key within it. A form may skip them; the spec does not hide them.
        quantisers: How its graph rounds scores and weights to integers; only the decomposed form does too.
        is_bound_by_mask: The graph applies causality and windows of the spec only through the mask, which has them.
        cache_lengths, cache_magnitudes, cache_terms: What the operator defines of its present outputs, see `CacheRule`.

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
    mask_rule: MaskRule = MaskRule.PADDED
    mask_band: WindowBounds = field(default_factory=WindowBounds)
    quantisers: ScoreQuantisers = field(default_factory=ScoreQuantisers)
    is_bound_by_mask: bool = False
    cache_lengths: ir.Value | None = None
    cache_magnitudes: ir.Value | None = None
    cache_terms: int = 0

    @property
    def skipped_bounds(self) -> WindowBounds:
        """The keys outside them have no weight, except, outside `mask_band`, for a query that sees no key."""
        return bounds_of(self.spec) & self.mask_band

    @property
    def site(self) -> AttentionSite:
        """The names of its values, by which a verification reads them as extra outputs."""
        inputs = ("attn_mask", "past_key", "past_value", "nonpad_kv_seqlen", "cache_lengths", "cache_magnitudes")
        optional = (*inputs, "present_key", "present_value", "scores")
        named: dict[str, Any] = {field: value.name for field in optional if (value := getattr(self, field)) is not None}
        return AttentionSite(
            name=self.name,
            spec=self.spec,
            query=self.query.name or "",
            key=self.key.name or "",
            value=self.value.name or "",
            output=self.output.name or "",
            scores_mode=QkOutputMode(self.scores_mode),
            mask_rule=self.mask_rule,
            mask_band=self.mask_band or None,
            quantisers=self.quantisers or None,
            is_bound_by_mask=self.is_bound_by_mask,
            cache_terms=self.cache_terms,
            **named,
        )
