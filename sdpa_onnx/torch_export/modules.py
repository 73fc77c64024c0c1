"""Attention as torch modules: a bare attention for any spec, and multi-head attention with projections.

They compute in the dtype of their inputs, and are not the oracle, which is in `core`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.errors import CaseError
from sdpa_onnx.torch_export.target_text import FOUNDING_USES

__all__ = ["FOUNDING_USES", "MultiHeadAttention", "ScaledDotProductAttention", "founding_use"]

# Sizes of the three uses. Source: Vaswani et al. 2017, section 3.2.2.
_HIDDEN_SIZE = 512
_Q_NUM_HEADS = 8
_WEIGHT_SEED = 0


class ScaledDotProductAttention(nn.Module):
    """Compute one attention of a spec with torch's own kernel.

    Uses `torch.nn.functional.scaled_dot_product_attention`; windows, a past,
    lengths and their combinations become one mask. Only a softcap needs the
    decomposed formula.

    Args:
        spec: What the module computes.

    Source: ONNX Attention, opset 25: masks, offset, windows, fully masked rows = 0.
    """

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__()
        self.spec = spec

    def forward(
        self,
        Q: Tensor,
        K: Tensor,
        V: Tensor,
        attn_mask: Tensor | None = None,
        past_key: Tensor | None = None,
        past_value: Tensor | None = None,
        nonpad_kv_seqlen: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Compute the attention.

        Args:
            Q: (batch_size, q_num_heads, q_seq_len, head_dim), or BSH if the spec's layout is BSH.
            K: (batch_size, kv_num_heads, kv_seq_len, head_dim), or BSH.
            V: (batch_size, kv_num_heads, kv_seq_len, v_head_dim), or BSH.
            attn_mask: Broadcastable to (batch_size, q_num_heads, q_seq_len, total_seq_len).
            past_key: (batch_size, kv_num_heads, past_seq_len, head_dim).
            past_value: (batch_size, kv_num_heads, past_seq_len, v_head_dim).
            nonpad_kv_seqlen: (batch_size,), int64.

        Returns:
            Y in the layout of Q; with a past also present_key and present_value, 4-D.
        """
        query = self._split(Q, self.spec.q_num_heads)
        key = self._split(K, self.spec.kv_num_heads)
        value = self._split(V, self.spec.kv_num_heads)
        offset: int | Tensor = 0
        if past_key is not None and past_value is not None:
            offset = past_key.shape[2]
            key, value = torch.cat((past_key, key), dim=2), torch.cat((past_value, value), dim=2)
        elif nonpad_kv_seqlen is not None:
            offset = nonpad_kv_seqlen.view(-1, 1, 1, 1) - query.shape[2]
        output = self._attend(query, key, value, attn_mask, offset, nonpad_kv_seqlen)
        output = self._join(output)
        return (output, key, value) if self.spec.has_past else output

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None,
        offset: int | Tensor,
        lengths: Tensor | None,
    ) -> Tensor:
        spec = self.spec
        # torch aligns is_causal to the upper left, which equals the spec only without an offset.
        plain = lengths is None and not spec.has_window and not spec.has_past
        kernel_causal = spec.is_causal and plain and attn_mask is None and not spec.softcap
        mask = attn_mask if attn_mask is None else _padded(attn_mask, key.shape[2])
        if not kernel_causal:
            mask = _combined(mask, self._visible(query, key, offset, lengths))
        if spec.softcap:
            return self._capped(query, key, value, mask)
        return functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=kernel_causal,
            scale=None if spec.scale == "1/sqrt(d_k)" else spec.scale_value,
            enable_gqa=spec.heads_per_kv > 1,
        )

    def _visible(self, query: Tensor, key: Tensor, offset: int | Tensor, lengths: Tensor | None) -> Tensor | None:
        """Keys that causality, windows and lengths leave visible to each query; True = may attend, None = all."""
        spec = self.spec
        positions = torch.arange(query.shape[2], device=query.device).unsqueeze(1) + offset
        keys = torch.arange(key.shape[2], device=query.device)
        parts = []
        if spec.is_causal:
            parts.append(keys <= positions)
        if spec.left_window >= 0:
            parts.append(keys >= positions - spec.left_window)
        if spec.right_window >= 0:
            parts.append(keys <= positions + spec.right_window)
        if lengths is not None:
            parts.append(keys < lengths.view(-1, 1, 1, 1))
        visible = None
        for part in parts:
            visible = part if visible is None else visible & part
        return visible

    def _capped(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """The decomposed formula: softcap on the scaled scores, mask, softmax, fully masked rows set to zero."""
        spec = self.spec
        key, value = (tensor.repeat_interleave(spec.heads_per_kv, dim=1) for tensor in (key, value))
        scores = (query * spec.scale_value) @ key.transpose(-1, -2)
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
        if mask is None:
            return torch.softmax(scores, dim=-1) @ value
        bias = mask
        if mask.dtype == torch.bool:
            bias = torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, float("-inf"))
        probs = torch.softmax(scores + bias, dim=-1)
        attended = (bias > float("-inf")).any(dim=-1, keepdim=True)
        return torch.where(attended, probs, torch.zeros_like(probs)) @ value

    def _split(self, tensor: Tensor, num_heads: int) -> Tensor:
        if self.spec.layout is Layout.BNSH:
            return tensor
        batch_size, seq_len, hidden_size = tensor.shape
        return tensor.view(batch_size, seq_len, num_heads, hidden_size // num_heads).transpose(1, 2)

    def _join(self, tensor: Tensor) -> Tensor:
        return tensor if self.spec.layout is Layout.BNSH else tensor.transpose(1, 2).flatten(2)


class MultiHeadAttention(nn.Module):
    """Multi-head attention with its four linear projections.

    Weights are Xavier uniform, so that inputs of unit variance give logits of
    standard deviation 1.

    Args:
        hidden_size: Width of the inputs and the output (d_model).
        q_num_heads: Number of query heads; divides hidden_size.
        kv_num_heads: Number of key and value heads; None means q_num_heads.
        is_causal: Query i sees key j iff j <= i.

    Raises:
        CaseError: If q_num_heads does not divide hidden_size, or kv_num_heads does not divide q_num_heads.

    Source: Vaswani et al. 2017, section 3.2.2.
    """

    def __init__(
        self,
        *,
        hidden_size: int = _HIDDEN_SIZE,
        q_num_heads: int = _Q_NUM_HEADS,
        kv_num_heads: int | None = None,
        is_causal: bool = False,
    ) -> None:
        super().__init__()
        if q_num_heads < 1 or hidden_size % q_num_heads:
            raise CaseError(f"hidden_size is {hidden_size}, which q_num_heads = {q_num_heads} does not divide.")
        self.spec = AttentionSpec(
            q_num_heads=q_num_heads,
            kv_num_heads=kv_num_heads or q_num_heads,
            head_dim=hidden_size // q_num_heads,
            is_causal=is_causal,
        )
        kv_width = self.spec.kv_num_heads * self.spec.head_dim
        self.query_projection = nn.Linear(hidden_size, hidden_size)
        self.key_projection = nn.Linear(hidden_size, kv_width)
        self.value_projection = nn.Linear(hidden_size, kv_width)
        self.output_projection = nn.Linear(hidden_size, hidden_size)
        for layer in (self.query_projection, self.key_projection, self.value_projection, self.output_projection):
            nn.init.xavier_uniform_(layer.weight)

    def forward(self, hidden: Tensor, memory: Tensor | None = None) -> Tensor:
        """Attend from `hidden` to itself, or to `memory` if it is present.

        Args:
            hidden: (batch_size, q_seq_len, hidden_size): source of the queries.
            memory: (batch_size, kv_seq_len, hidden_size): source of keys and values; None = hidden.

        Returns:
            (batch_size, q_seq_len, hidden_size).
        """
        source = hidden if memory is None else memory
        output = functional.scaled_dot_product_attention(
            self._heads(self.query_projection(hidden)),
            self._heads(self.key_projection(source)),
            self._heads(self.value_projection(source)),
            is_causal=self.spec.is_causal,
            enable_gqa=self.spec.heads_per_kv > 1,
        )
        result: Tensor = self.output_projection(output.transpose(1, 2).flatten(2))
        return result

    def _heads(self, tensor: Tensor) -> Tensor:
        batch_size, seq_len, hidden_size = tensor.shape
        heads = hidden_size // self.spec.head_dim
        return tensor.view(batch_size, seq_len, heads, self.spec.head_dim).transpose(1, 2)


def founding_use(name: str) -> tuple[MultiHeadAttention, tuple[Tensor, ...]]:
    """Build one of the three uses of attention in the Transformer, with fixed weights, and its sample inputs.

    Args:
        name: One of FOUNDING_USES.

    Returns:
        The module in eval mode, and its inputs: (2, 10, 512), for
        "encoder-decoder" also a memory of (2, 12, 512).

    Raises:
        CaseError: If there is no such use.
    """
    if name not in FOUNDING_USES:
        raise CaseError(f"There is no use '{name}'.", hint=f"Known: {', '.join(FOUNDING_USES)}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_WEIGHT_SEED)
        module = MultiHeadAttention(is_causal=name == "decoder-self").eval()
        hidden, memory = torch.randn(2, 10, _HIDDEN_SIZE), torch.randn(2, 12, _HIDDEN_SIZE)
    return module, (hidden, memory) if name == "encoder-decoder" else (hidden,)


def _padded(attn_mask: Tensor, total_seq_len: int) -> Tensor:
    """Pad a short mask with hidden keys; an exported graph supports full masks only."""
    if torch.compiler.is_exporting() or attn_mask.shape[-1] == total_seq_len:
        return attn_mask
    hidden = False if attn_mask.dtype == torch.bool else float("-inf")
    return functional.pad(attn_mask, (0, total_seq_len - attn_mask.shape[-1]), value=hidden)


def _combined(attn_mask: Tensor | None, visible: Tensor | None) -> Tensor | None:
    if attn_mask is None or visible is None:
        return visible if attn_mask is None else attn_mask
    if attn_mask.dtype == torch.bool:
        return attn_mask & visible
    return attn_mask.masked_fill(~visible, float("-inf"))
