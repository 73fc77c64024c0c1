"""Catalog of attention layers of known architectures by name: specs, usual sizes and sources.

Bare attention only: no projections, no rotary embedding, no weights. Exports nothing and runs nothing.
"""

import difflib
from dataclasses import dataclass

from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, MaskKind, ScaleRule
from sdpa_onnx.errors import PlanError

__all__ = ["CATALOG", "CatalogEntry", "entry_names", "find_entry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """One attention layer of a public model.

    Args:
        name: `model/layer`, both parts safe as file names; this is the TARGET.
        title: Display name.
        spec: What the layer computes.
        batch_size, q_seq_len, kv_seq_len, past_seq_len: Usual sizes; kv_seq_len
            counts new keys only.
        source: Source of the figures: a section of a paper, a published configuration.
        notes: What the spec leaves out, or counts differently from the source.

    Raises:
        CaseError: If the usual sizes are invalid for the spec.
    """

    name: str
    title: str
    spec: AttentionSpec
    batch_size: int = 1
    q_seq_len: int
    kv_seq_len: int
    past_seq_len: int = 0
    source: str
    notes: str = ""

    def __post_init__(self) -> None:
        self.case()

    def case(self, dtype: Dtype = Dtype.FLOAT32) -> AttentionCase:
        """The layer at its usual sizes."""
        return AttentionCase(
            spec=self.spec,
            batch_size=self.batch_size,
            q_seq_len=self.q_seq_len,
            kv_seq_len=self.kv_seq_len,
            past_seq_len=self.past_seq_len,
            dtype=dtype,
        )

    @property
    def is_self_attention(self) -> bool:
        """Whether queries and new keys have the same positions, so that their lengths are always equal."""
        return self.q_seq_len == self.kv_seq_len


def entry_names() -> tuple[str, ...]:
    """Names of every entry, in the order of the table."""
    return tuple(entry.name for entry in CATALOG)


def find_entry(name: str) -> CatalogEntry:
    """Find an entry by name.

    Raises:
        PlanError: If there is none; suggests the nearest name.

    Example:
        >>> find_entry("gemma-2-27b/global").spec.softcap
        50.0
    """
    for entry in CATALOG:
        if entry.name == name:
            return entry
    known = entry_names()
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(known)}."
    raise PlanError(f"There is no catalog entry '{name}'.", hint=hint)


# The Transformer's base model: d_model = 512, h = 8, d_k = d_v = d_model / h = 64.
_TRANSFORMER_BASE = AttentionSpec(q_num_heads=8, kv_num_heads=8, head_dim=64)
_TRANSFORMER_PAPER = "Vaswani et al. 2017 (arXiv 1706.03762)"

# hidden_size 768 over 12 heads: BERT base, GPT-2, ViT-B, T5 base.
_BASE_768 = AttentionSpec(q_num_heads=12, kv_num_heads=12, head_dim=64)
_CAUSAL_768 = AttentionSpec(q_num_heads=12, kv_num_heads=12, head_dim=64, is_causal=True)

_LLAMA_3_8B = AttentionSpec(q_num_heads=32, kv_num_heads=8, head_dim=128, is_causal=True)
_LLAMA_3_8B_CACHED = AttentionSpec(q_num_heads=32, kv_num_heads=8, head_dim=128, is_causal=True, has_past=True)
_LLAMA_3_SOURCE = (
    "Llama Team 2024 (arXiv 2407.21783), table 3: 32 heads, 8 key/value heads, model dimension 4096; "
    "meta-llama/Meta-Llama-3-8B config.json"
)

# A sliding window of W tokens includes the query's own: keys i - W < j <= i (transformers `sliding_window_overlay`,
# gemma_pytorch `triu(-W + 1)`). ONNX counts the keys before the query, so left_window_size = W - 1.
_WINDOW_TOKENS = 4096
_LEFT_WINDOW = _WINDOW_TOKENS - 1
_WINDOW_NOTE = (
    "A window of 4096 tokens includes the query's own (transformers: kv > q - 4096), so ONNX's left window, which "
    "counts the keys before it, is 4095. It hides nothing below 4097 keys."
)

_MISTRAL_7B_SOURCE = (
    "Jiang et al. 2023 (arXiv 2310.06825), table 1: n_heads 32, n_kv_heads 8, head_dim 128, window_size 4096, "
    "context_len 8192; mistralai/Mistral-7B-v0.1 config.json"
)
_MISTRAL_NOTE = (
    _WINDOW_NOTE + " Section 2 of the paper and its first reference code (triu(-W)) show one key more than its "
    "figure 1 and the later code."
)

# Gemma 2 caps every attention score at +-50 by tanh, before the mask.
_GEMMA_2_SOFTCAP = 50.0
_GEMMA_2_PAPER = "Gemma Team 2024 (arXiv 2408.00118), section 2 and table 1"
# query_pre_attn_scalar is hidden_size / heads = 4608 / 32 = 144, not head_dim = 128: the scale is 1/12.
_GEMMA_2_27B_SCALE = 1.0 / 12.0
_GEMMA_2_27B_SOURCE = (
    f"{_GEMMA_2_PAPER}: 32 heads, 16 key/value heads, head size 128; google/gemma-2-27b config.json: "
    "query_pre_attn_scalar 144, attn_logit_softcapping 50, sliding_window 4096"
)
_GEMMA_2_27B_NOTE = "The scale is 1/sqrt(144) = 1/12, 6 % below 1/sqrt(head_dim)."

_WHISPER_PAPER = "Radford et al. 2022 (arXiv 2212.04356), table 1"
# 30 seconds of sound are 3000 frames, halved by the encoder's second convolution.
_WHISPER_FRAMES = 1500

# Multi-head latent attention with its latent expanded to heads: 128 without and 64 with rotary position.
_MLA_HEAD_DIM = 128 + 64
_MLA_NOTE = (
    "The form used in training and prefill: the compressed latent is expanded to keys and values of every head, and "
    "the rotary part (64) is concatenated to the other (128). The scale is the paper's 1/sqrt(128 + 64); beyond the "
    "4096 tokens of pre-training the released code multiplies it by YaRN's mscale^2."
)

CATALOG: tuple[CatalogEntry, ...] = (
    CatalogEntry(
        name="transformer-base/encoder-self",
        title="Transformer base, encoder self-attention",
        spec=_TRANSFORMER_BASE,
        q_seq_len=512,
        kv_seq_len=512,
        source=f"{_TRANSFORMER_PAPER}, sections 3.2.2 and 3.2.3",
    ),
    CatalogEntry(
        name="transformer-base/decoder-self",
        title="Transformer base, decoder self-attention",
        spec=AttentionSpec(q_num_heads=8, kv_num_heads=8, head_dim=64, is_causal=True),
        q_seq_len=512,
        kv_seq_len=512,
        source=f"{_TRANSFORMER_PAPER}, sections 3.2.2 and 3.2.3",
    ),
    CatalogEntry(
        name="transformer-base/encoder-decoder",
        title="Transformer base, encoder-decoder attention",
        spec=_TRANSFORMER_BASE,
        q_seq_len=256,
        kv_seq_len=512,
        source=f"{_TRANSFORMER_PAPER}, sections 3.2.2 and 3.2.3",
    ),
    CatalogEntry(
        name="bert-base/self",
        title="BERT base, self-attention",
        spec=_BASE_768,
        q_seq_len=512,
        kv_seq_len=512,
        source="Devlin et al. 2018 (arXiv 1810.04805), section 3: H = 768, A = 12",
    ),
    CatalogEntry(
        name="bert-base/self-padded",
        title="BERT base, self-attention over padded sequences",
        spec=AttentionSpec(q_num_heads=12, kv_num_heads=12, head_dim=64, mask=MaskKind.LENGTHS),
        batch_size=4,
        q_seq_len=384,
        kv_seq_len=384,
        source="Devlin et al. 2018 (arXiv 1810.04805), section 3: H = 768, A = 12; 384 tokens: google-research/bert, "
        "run_squad.py",
        notes="Padding is a count of valid keys per sample (nonpad_kv_seqlen), not a mask.",
    ),
    CatalogEntry(
        name="gpt2/self",
        title="GPT-2 (124M), self-attention",
        spec=_CAUSAL_768,
        q_seq_len=1024,
        kv_seq_len=1024,
        source="Radford et al. 2019, section 2.3; openai-community/gpt2 config.json: n_embd 768, n_head 12, n_ctx 1024",
    ),
    CatalogEntry(
        name="llama-3-8b/self",
        title="Llama 3 8B, prefill",
        spec=_LLAMA_3_8B,
        q_seq_len=2048,
        kv_seq_len=2048,
        source=_LLAMA_3_SOURCE,
    ),
    CatalogEntry(
        name="llama-3-8b/decode",
        title="Llama 3 8B, one token with a cache",
        spec=_LLAMA_3_8B_CACHED,
        q_seq_len=1,
        kv_seq_len=1,
        past_seq_len=1024,
        source=_LLAMA_3_SOURCE,
    ),
    CatalogEntry(
        name="llama-3-8b/decode-chunk",
        title="Llama 3 8B, a chunk of tokens with a cache",
        spec=_LLAMA_3_8B_CACHED,
        q_seq_len=16,
        kv_seq_len=16,
        past_seq_len=1024,
        source=_LLAMA_3_SOURCE,
        notes="The spec of one token; several new ones, as in chunked prefill and speculative decoding.",
    ),
    CatalogEntry(
        name="mistral-7b/self",
        title="Mistral 7B, prefill",
        spec=AttentionSpec(q_num_heads=32, kv_num_heads=8, head_dim=128, is_causal=True, left_window=_LEFT_WINDOW),
        q_seq_len=8192,
        kv_seq_len=8192,
        source=_MISTRAL_7B_SOURCE,
        notes=_MISTRAL_NOTE,
    ),
    CatalogEntry(
        name="mistral-7b/decode",
        title="Mistral 7B, one token with a cache longer than the window",
        spec=AttentionSpec(
            q_num_heads=32, kv_num_heads=8, head_dim=128, is_causal=True, left_window=_LEFT_WINDOW, has_past=True
        ),
        q_seq_len=1,
        kv_seq_len=1,
        past_seq_len=6144,
        source=_MISTRAL_7B_SOURCE,
        notes=_MISTRAL_NOTE + " The paper's rolling buffer drops what the window hides; a plain cache keeps it.",
    ),
    CatalogEntry(
        name="gemma-2-9b/local",
        title="Gemma 2 9B, layers with a sliding window",
        spec=AttentionSpec(
            q_num_heads=16,
            kv_num_heads=8,
            head_dim=256,
            is_causal=True,
            left_window=_LEFT_WINDOW,
            softcap=_GEMMA_2_SOFTCAP,
        ),
        q_seq_len=8192,
        kv_seq_len=8192,
        source=f"{_GEMMA_2_PAPER}: 16 heads, 8 key/value heads, head size 256; google/gemma-2-9b config.json: "
        "query_pre_attn_scalar 256, attn_logit_softcapping 50, sliding_window 4096",
        notes=f"query_pre_attn_scalar equals head_dim (first published as 224, then corrected). {_WINDOW_NOTE}",
    ),
    CatalogEntry(
        name="gemma-2-27b/local",
        title="Gemma 2 27B, layers with a sliding window",
        spec=AttentionSpec(
            q_num_heads=32,
            kv_num_heads=16,
            head_dim=128,
            is_causal=True,
            left_window=_LEFT_WINDOW,
            softcap=_GEMMA_2_SOFTCAP,
            scale=_GEMMA_2_27B_SCALE,
        ),
        q_seq_len=8192,
        kv_seq_len=8192,
        source=_GEMMA_2_27B_SOURCE,
        notes=f"{_GEMMA_2_27B_NOTE} {_WINDOW_NOTE}",
    ),
    CatalogEntry(
        name="gemma-2-27b/global",
        title="Gemma 2 27B, layers without a window",
        spec=AttentionSpec(
            q_num_heads=32,
            kv_num_heads=16,
            head_dim=128,
            is_causal=True,
            softcap=_GEMMA_2_SOFTCAP,
            scale=_GEMMA_2_27B_SCALE,
        ),
        q_seq_len=8192,
        kv_seq_len=8192,
        source=_GEMMA_2_27B_SOURCE,
        notes=_GEMMA_2_27B_NOTE,
    ),
    CatalogEntry(
        name="vit-b-16/self",
        title="ViT-B/16, self-attention",
        spec=_BASE_768,
        batch_size=8,
        q_seq_len=197,
        kv_seq_len=197,
        source="Dosovitskiy et al. 2020 (arXiv 2010.11929), table 1: D = 768, 12 heads; section 3.1",
        notes="197 tokens: (224/16)^2 = 196 patches and the class token.",
    ),
    CatalogEntry(
        name="whisper-base/cross",
        title="Whisper base, decoder over the encoder's frames",
        spec=_TRANSFORMER_BASE,
        q_seq_len=448,
        kv_seq_len=_WHISPER_FRAMES,
        source=f"{_WHISPER_PAPER}: width 512, 8 heads; openai/whisper-base config.json: max_source_positions 1500, "
        "max_target_positions 448",
    ),
    CatalogEntry(
        name="whisper-large-v3/cross",
        title="Whisper large-v3, one token of a beam of five over the encoder's frames",
        spec=AttentionSpec(q_num_heads=20, kv_num_heads=20, head_dim=64),
        batch_size=5,
        q_seq_len=1,
        kv_seq_len=_WHISPER_FRAMES,
        source=f"{_WHISPER_PAPER}: width 1280, 20 heads; openai/whisper-large-v3 config.json; beam size 5: section 4.5",
    ),
    CatalogEntry(
        name="t5-base/encoder-self",
        title="T5 base, encoder self-attention",
        spec=AttentionSpec(q_num_heads=12, kv_num_heads=12, head_dim=64, mask=MaskKind.FLOAT, scale=ScaleRule.NONE),
        q_seq_len=512,
        kv_seq_len=512,
        source="Raffel et al. 2019 (arXiv 1910.10683), sections 2.1 and 3.1.2; google-t5/t5-base config.json: "
        "d_kv 64, num_heads 12, relative_attention_num_buckets 32",
        notes="No scale: T5 folds 1/sqrt(d_kv) into the initial weights. The relative position bias comes in as a "
        "float mask; T5 has one per head, our mask input has one for all heads.",
    ),
    CatalogEntry(
        name="falcon-7b/self",
        title="Falcon 7B, prefill, multi-query",
        spec=AttentionSpec(q_num_heads=71, kv_num_heads=1, head_dim=64, is_causal=True),
        q_seq_len=2048,
        kv_seq_len=2048,
        source="Almazrouei et al. 2023 (arXiv 2311.16867); tiiuae/falcon-7b config.json: hidden_size 4544, "
        "num_attention_heads 71, multi_query true",
        notes="71 heads of 64 share one key/value head.",
    ),
    CatalogEntry(
        name="deepseek-v2-lite/mla-expanded",
        title="DeepSeek-V2-Lite, latent attention expanded to heads",
        spec=AttentionSpec(q_num_heads=16, kv_num_heads=16, head_dim=_MLA_HEAD_DIM, v_head_dim=128, is_causal=True),
        q_seq_len=4096,
        kv_seq_len=4096,
        source="DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1 and appendix B; deepseek-ai/DeepSeek-V2-Lite "
        "config.json: 16 heads, qk_nope_head_dim 128, qk_rope_head_dim 64, v_head_dim 128",
        notes=_MLA_NOTE,
    ),
    CatalogEntry(
        name="deepseek-v3/mla-expanded",
        title="DeepSeek-V3, latent attention expanded to heads",
        spec=AttentionSpec(q_num_heads=128, kv_num_heads=128, head_dim=_MLA_HEAD_DIM, v_head_dim=128, is_causal=True),
        q_seq_len=4096,
        kv_seq_len=4096,
        source="DeepSeek-AI 2024 (arXiv 2412.19437), sections 2.1.1 and 4.2: n_h = 128, d_h = 128, d_h^R = 64; "
        "deepseek-ai/DeepSeek-V3 config.json",
        notes=_MLA_NOTE,
    ),
)
