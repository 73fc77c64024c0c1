"""Small architectures of transformers with random weights, and how many attentions each has by its construction.

Only data: `file_table` exports and measures them. Every model has two layers, 32 numbers wide, with four heads, unless
its row says otherwise. The count of attentions is that of its configuration: layers times attentions of a layer.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["SMALL", "FirstOutput", "SmallArchitecture"]

# Standard deviation of an output of a matrix for inputs of 1.
_GAIN = 1.5
_TEXT: Mapping[str, tuple[int | str, ...]] = {"input_ids": ("batch", "length"), "attention_mask": ("batch", "length")}
_SEQUENCES = _TEXT | {"decoder_input_ids": ("batch", "target")}
_IMAGE: Mapping[str, tuple[int | str, ...]] = {"pixel_values": ("batch", 3, 32, 32)}

_SIZES: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 64,
    "pad_token_id": 0,
}
_WIDE = _SIZES | {"initializer_range": 0.3}
# Grouped: two heads of keys for four of queries.
_GROUPED = _WIDE | {"num_key_value_heads": 2}
_HEADS = _GROUPED | {"head_dim": 8}
_PICTURE = {key: value for key, value in _WIDE.items() if key not in ("vocab_size", "pad_token_id")} | {
    "image_size": 32,
    "patch_size": 8,
}
_PAIR: Mapping[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": 64,
    "init_std": 0.3,
    "pad_token_id": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallArchitecture:
    """One model and how it is fed.

    Args:
        model: Its class in transformers; the class of its configuration is `config`.
        kind: What its attention has, in one phrase.
        settings: Of the configuration.
        attentions: In it, counted by hand.
        inputs: Axes of each input: a number is a size, a word a dynamic axis.
        attention: How transformers computes it: "sdpa", or "eager" for models that have nothing else.
    """

    model: str
    config: str
    kind: str
    settings: Mapping[str, Any]
    attentions: int = 2
    inputs: Mapping[str, tuple[int | str, ...]] = field(default_factory=lambda: _TEXT)
    attention: str = "sdpa"

    def build(self, attention: str) -> "FirstOutput":
        """Make the model with random weights."""
        import transformers

        config = getattr(transformers, self.config)(**self.settings)
        config._attn_implementation = attention  # noqa: SLF001  # the argument of the same name is not taken by all
        config.use_cache = False
        model = getattr(transformers, self.model)(config)
        if "num_local_experts" in self.settings:
            model.set_experts_implementation("batched_mm")  # the others loop over a number that is not traced
        _widen(model)
        return FirstOutput(model, tuple(self.inputs))


class FirstOutput(torch.nn.Module):
    """A model that takes tensors by position and returns its first output."""

    def __init__(self, model: torch.nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        outputs = self.model(**dict(zip(self.names, inputs, strict=True)))
        first: torch.Tensor = outputs[0]
        return first


@torch.no_grad()
def _widen(model: torch.nn.Module) -> None:
    """Draw every matrix so wide that attention has a large part in the output.

    As published, weights are so small that the output is the same to the bit whatever kernel computes attention.
    """
    for parameter in model.parameters():
        if parameter.ndim > 1:
            inputs = parameter[0].numel()
            parameter.normal_(std=_GAIN / math.sqrt(inputs))


def _small(name: str, kind: str, settings: Mapping[str, Any], **more: Any) -> SmallArchitecture:
    return SmallArchitecture(model=f"{name}Model", config=f"{name}Config", kind=kind, settings=settings, **more)


SMALL: Mapping[str, SmallArchitecture] = {
    "bert": _small("Bert", "encoder", _WIDE),
    "distilbert": _small(
        "DistilBert",
        "encoder",
        {"dim": 32, "hidden_dim": 48, "n_heads": 4, "n_layers": 2, "vocab_size": 64, "initializer_range": 0.3},
    ),
    "albert": _small("Albert", "encoder, one layer's weights used twice", _WIDE | {"embedding_size": 16}),
    "mpnet": _small("MPNet", "bias by distance", _WIDE, attention="eager"),
    "deberta": _small(
        "DebertaV2",
        "disentangled attention",
        _WIDE | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
        attention="eager",
    ),
    "modernbert": _small(
        "ModernBert",
        "encoder with sliding windows",
        _SIZES | {"local_attention": 8, "global_attn_every_n_layers": 2, "initializer_range": 0.3},
    ),
    "gpt2": _small(
        "GPT2", "decoder", {"n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 64, "initializer_range": 0.3}
    ),
    "gpt-neo": _small(
        "GPTNeo",
        "decoder, no scale, a sliding window",
        {
            "hidden_size": 32,
            "num_heads": 4,
            "num_layers": 2,
            "vocab_size": 64,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
            "initializer_range": 0.3,
        },
        attention="eager",
    ),
    "gpt-j": _small(
        "GPTJ",
        "decoder, rotary",
        {"n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 64, "rotary_dim": 4, "initializer_range": 0.3},
        attention="eager",
    ),
    "gpt-neox": _small("GPTNeoX", "decoder, part of a head rotary", _WIDE),
    "opt": _small(
        "OPT",
        "decoder",
        {
            "hidden_size": 32,
            "ffn_dim": 48,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "vocab_size": 64,
            "word_embed_proj_dim": 32,
            "init_std": 0.3,
        },
    ),
    "bloom": _small(
        "Bloom",
        "decoder, ALiBi",
        {"hidden_size": 32, "n_head": 4, "n_layer": 2, "vocab_size": 64, "initializer_range": 0.3},
        attention="eager",
    ),
    "mpt": _small(
        "Mpt",
        "decoder, ALiBi",
        {"d_model": 32, "n_heads": 4, "n_layers": 2, "vocab_size": 64, "initializer_range": 0.3},
        attention="eager",
    ),
    "falcon": _small("Falcon", "decoder, one head of keys", {**_WIDE, "multi_query": True, "alibi": False}),
    "falcon-alibi": _small("Falcon", "decoder, ALiBi", {**_WIDE, "alibi": True, "multi_query": False}),
    "llama": _small("Llama", "decoder, grouped heads", _HEADS),
    "mistral": _small("Mistral", "decoder, grouped heads, sliding window", _HEADS | {"sliding_window": 8}),
    "qwen2": _small("Qwen2", "decoder, grouped heads", _GROUPED),
    "qwen3": _small("Qwen3", "decoder, grouped heads, normalised heads", _HEADS),
    "phi": _small("Phi", "decoder", _WIDE),
    "phi3": _small("Phi3", "decoder, packed heads", _GROUPED),
    "gemma": _small("Gemma", "decoder, grouped heads", _HEADS),
    "gemma2": _small(
        "Gemma2", "softcap, grouped heads, sliding window", _HEADS | {"sliding_window": 8}, attention="eager"
    ),
    "gemma3": SmallArchitecture(
        model="Gemma3TextModel",
        config="Gemma3TextConfig",
        kind="grouped heads, sliding window",
        settings=_HEADS | {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gpt-oss": _small(
        "GptOss",
        "sinks, grouped heads, sliding window",
        _HEADS | {"sliding_window": 8, "num_local_experts": 2, "num_experts_per_tok": 1},
        attention="eager",
    ),
    "olmo2": _small("Olmo2", "decoder, grouped heads", _GROUPED),
    "stablelm": _small("StableLm", "decoder, part of a head rotary", _GROUPED),
    "starcoder2": _small("Starcoder2", "decoder, grouped heads, sliding window", _GROUPED | {"sliding_window": 8}),
    "cohere": _small("Cohere", "decoder, grouped heads", _GROUPED),
    "t5": _small(
        "T5",
        "encoder and decoder, bias by distance, no scale",
        {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_heads": 4, "num_layers": 2, "vocab_size": 64},
        attentions=6,
        inputs=_SEQUENCES,
        attention="eager",
    ),
    "bart": _small("Bart", "encoder and decoder", _PAIR, attentions=6, inputs=_SEQUENCES),
    "whisper": _small(
        "Whisper",
        "speech; encoder and decoder",
        _PAIR | {"num_mel_bins": 8, "max_source_positions": 30, "decoder_start_token_id": 1, "eos_token_id": 2},
        attentions=6,
        inputs={"input_features": ("batch", 8, 60), "decoder_input_ids": ("batch", "target")},
    ),
    "wav2vec2": _small(
        "Wav2Vec2",
        "speech",
        _WIDE
        | {
            "conv_dim": (16, 16),
            "conv_kernel": (4, 4),
            "conv_stride": (2, 2),
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
        },
        inputs={"input_values": ("batch", 160)},
    ),
    "vit": _small("ViT", "image", _PICTURE, inputs=_IMAGE),
    "dinov2": _small("Dinov2", "image", _PICTURE | {"mlp_ratio": 2}, inputs=_IMAGE),
    "beit": _small(
        "Beit", "image, bias by place", _PICTURE | {"use_relative_position_bias": True}, inputs=_IMAGE, attention="sdpa"
    ),
    "swin": _small(
        "Swin",
        "image in windows, shifted, bias by place",
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        attentions=4,
        inputs=_IMAGE,
        attention="eager",
    ),
    "segformer": _small(
        "Segformer",
        "image, fewer keys than queries",
        {
            "depths": [1, 1],
            "num_encoder_blocks": 2,
            "sr_ratios": [2, 1],
            "hidden_sizes": [16, 32],
            "num_attention_heads": [1, 2],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
            "initializer_range": 0.3,
        },
        inputs=_IMAGE,
        attention="eager",
    ),
    "clip": _small(
        "CLIP",
        "text and image",
        {
            "text_config": _WIDE | {"max_position_embeddings": 77, "eos_token_id": 63},
            "vision_config": _PICTURE,
            "projection_dim": 16,
        },
        attentions=4,
        inputs={"input_ids": ("batch", "length"), **_IMAGE},
    ),
}
