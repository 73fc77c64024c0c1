"""Attention as people write it in torch: one entry per way, with arguments of any size."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

BATCH, HEADS, KV_HEADS, WIDTH = 2, 4, 2, 8
HIDDEN = HEADS * WIDTH


@dataclass(frozen=True, kw_only=True)
class Written:
    """One way of writing attention.

    Args:
        module: What computes it.
        arguments: Tensors for (q length, kv length).
        axes: Axes of each argument that vary.
        found: How many attentions must be found.
        only: The exporter that can write it, or "" for both.
        bakes: Whether TorchScript writes the traced lengths into the graph, as torch's multi-head attention makes it.
        expects: Fields of the spec.
    """

    module: nn.Module
    arguments: Callable[[int, int], tuple[Tensor, ...]]
    axes: tuple[tuple[int, ...], ...]
    found: int = 1
    only: str = ""
    bakes: bool = False
    expects: dict[str, object] = field(default_factory=dict)


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.function(query, key, value) if mask is None else self.function(query, key, value, mask)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def qkv(q_length: int, kv_length: int) -> tuple[Tensor, ...]:
    query = draw(BATCH, HEADS, q_length, WIDTH)
    return query, draw(BATCH, HEADS, kv_length, WIDTH, seed=1), draw(BATCH, HEADS, kv_length, WIDTH, seed=2)


def grouped(q_length: int, kv_length: int) -> tuple[Tensor, ...]:
    query = draw(BATCH, HEADS, q_length, WIDTH)
    return query, draw(BATCH, KV_HEADS, kv_length, WIDTH, seed=1), draw(BATCH, KV_HEADS, kv_length, WIDTH, seed=2)


def with_bool(q_length: int, kv_length: int) -> tuple[Tensor, ...]:
    mask = draw(BATCH, 1, q_length, kv_length, seed=3) > 0
    mask[..., 0] = True
    return *qkv(q_length, kv_length), mask


def with_float(q_length: int, kv_length: int) -> tuple[Tensor, ...]:
    return *qkv(q_length, kv_length), draw(BATCH, 1, q_length, kv_length, seed=3)


def bsnh(q_length: int, kv_length: int) -> tuple[Tensor, ...]:
    query, key, value = qkv(q_length, kv_length)
    return tuple(tensor.transpose(1, 2).contiguous() for tensor in (query, key, value))


def flat(q_length: int, kv_length: int) -> tuple[Tensor, ...]:
    return tuple(tensor.flatten(0, 1) for tensor in qkv(q_length, kv_length))


def halves(q_length: int, kv_length: int) -> tuple[Tensor, ...]:
    return tuple(tensor.half() for tensor in qkv(q_length, kv_length))


def tokens(q_length: int, kv_length: int) -> tuple[Tensor, ...]:
    return (draw(BATCH, q_length, HIDDEN),)


def two_streams(q_length: int, kv_length: int) -> tuple[Tensor, ...]:
    return draw(BATCH, q_length, HIDDEN), draw(BATCH, kv_length, HIDDEN, seed=1)


def soft(scores: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-1)


def scores_of(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.transpose(-1, -2)


def repeat_kv(tensor: Tensor, times: int) -> Tensor:
    """As transformers writes it."""
    batch, heads, length, width = tensor.shape
    return tensor[:, :, None].expand(batch, heads, times, length, width).reshape(batch, heads * times, length, width)


def sums_own_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return soft((scores_of(query, key) + mask) / math.sqrt(WIDTH)) @ value


def reshaped_scores(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """As BART and BLOOM were written: products of rank 3, the mask added in rank 4."""
    batch, heads, q_length, width = query.shape
    flat_query, flat_key, flat_value = (tensor.reshape(batch * heads, -1, width) for tensor in (query, key, value))
    scores = torch.bmm(flat_query * width**-0.5, flat_key.transpose(1, 2))
    scores = scores.view(batch, heads, q_length, -1) + mask
    weights = soft(scores.view(batch * heads, q_length, -1))
    return torch.bmm(weights, flat_value).view(batch, heads, q_length, width)


class Packed(nn.Module):
    """One projection for query, key and value."""

    def __init__(self, *, split: bool) -> None:
        super().__init__()
        self.projection, self.out, self.split = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN), split

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length, _ = tokens.shape
        packed = self.projection(tokens)
        if self.split:
            query, key, value = (part.view(batch, length, HEADS, WIDTH).transpose(1, 2) for part in packed.chunk(3, -1))
        else:
            query, key, value = packed.view(batch, length, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4).unbind(0)
        attended = soft(scores_of(query, key) * WIDTH**-0.5) @ value
        return self.out(attended.transpose(1, 2).reshape(batch, length, HIDDEN))


class TorchHeads(nn.Module):
    """torch's multi-head attention."""

    def __init__(self, *, weights: bool) -> None:
        super().__init__()
        self.heads, self.weights = nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True), weights

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.heads(query, key, key, need_weights=self.weights)


class Encoder(nn.Module):
    """A layer of torch's by its tensor alone: TorchScript's export passes the defaults of all others as tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, 16, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(tokens)


class Decoder(nn.Module):
    """The same of a decoder layer, self-attention and cross-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(HIDDEN, HEADS, 16, batch_first=True)

    def forward(self, tokens: Tensor, memory: Tensor) -> Tensor:
        return self.layer(tokens, memory)


class PaddedHeads(nn.Module):
    """Self-attention of torch's that hides padding and gives its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True)

    def forward(self, tokens: Tensor, is_padding: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.heads(tokens, tokens, tokens, key_padding_mask=is_padding)


class CausalBuffer(nn.Module):
    """A triangle of the largest length, cut to the length at hand, as GPT implementations keep it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("triangle", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length, _ = tokens.size()
        query = key = value = tokens.view(batch, length, HEADS, WIDTH).transpose(1, 2)
        hidden = self.triangle[:, :, :length, :length] == 0
        return soft((scores_of(query, key) * WIDTH**-0.5).masked_fill(hidden, -math.inf)) @ value


class WithWeights(nn.Module):
    """The weights are an output too."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        weights = soft(scores_of(query, key) / math.sqrt(WIDTH))
        return weights @ value, weights


LENGTHS = ((2,), (2,), (2,))
MASKED = (*LENGTHS, (2, 3))
FLOAT = {"mask": "float"}
BOOL = {"mask": "bool"}
INVERSE_SQRT = {"scale": "1/sqrt(d_k)"}
ROOT = WIDTH**-0.25


def simple(function: Callable[..., Tensor], **expects: object) -> Written:
    return Written(module=Calls(function), arguments=qkv, axes=LENGTHS, expects=expects or dict(INVERSE_SQRT))


def masked(function: Callable[..., Tensor], arguments: Callable[..., tuple[Tensor, ...]], **expects: object) -> Written:
    return Written(module=Calls(function), arguments=arguments, axes=MASKED, expects=expects)


WRITTEN = {
    "after, multiplied": simple(lambda q, k, v: soft(scores_of(q, k) * WIDTH**-0.5) @ v),
    "after, divided": simple(lambda q, k, v: soft(scores_of(q, k) / math.sqrt(WIDTH)) @ v),
    "on the query": simple(lambda q, k, v: soft(scores_of(q * WIDTH**-0.5, k)) @ v),
    "on the key": simple(lambda q, k, v: soft(scores_of(q, k / math.sqrt(WIDTH))) @ v),
    "on the transposed key": simple(lambda q, k, v: soft(q @ (k.transpose(-1, -2) * WIDTH**-0.5)) @ v),
    "on both": simple(lambda q, k, v: soft(scores_of(q * ROOT, k * ROOT)) @ v),
    "another": simple(lambda q, k, v: soft(scores_of(q, k) * 0.25) @ v, scale=0.25),
    "none": simple(lambda q, k, v: soft(scores_of(q, k)) @ v, scale="none"),
    "softcap": simple(
        lambda q, k, v: soft(2.0 * torch.tanh(scores_of(q, k) / math.sqrt(WIDTH) / 2.0)) @ v,
        scale="1/sqrt(d_k)",
        softcap=2.0,
    ),
    "dropout": simple(
        lambda q, k, v: functional.dropout(soft(scores_of(q, k) / math.sqrt(WIDTH)), 0.1, training=False) @ v
    ),
    "softmax in float32": Written(
        module=Calls(
            lambda q, k, v: torch.softmax(scores_of(q, k) * WIDTH**-0.5, -1, dtype=torch.float32).to(q.dtype) @ v
        ),
        arguments=halves,
        axes=LENGTHS,
        expects=dict(INVERSE_SQRT),
    ),
    "mask added": masked(lambda q, k, v, m: soft(scores_of(q, k) / math.sqrt(WIDTH) + m) @ v, with_float, mask="float"),
    "mask before the scale": masked(sums_own_mask, with_float, mask="float"),
    "masked_fill -inf": masked(
        lambda q, k, v, m: soft((scores_of(q, k) / math.sqrt(WIDTH)).masked_fill(~m, -math.inf)) @ v,
        with_bool,
        mask="bool",
    ),
    "where lowest": masked(
        lambda q, k, v, m: soft(torch.where(m, scores_of(q, k) / 2.0, torch.finfo(torch.float32).min)) @ v,
        with_bool,
        mask="float",
        scale=0.5,
    ),
    "masked_fill -1e9": masked(
        lambda q, k, v, m: soft(scores_of(q, k).masked_fill(m == 0, -1e9)) @ v, with_bool, mask="float"
    ),
    "two masks": masked(
        lambda q, k, v, m: soft((scores_of(q, k) + m).masked_fill(m > 1.5, -math.inf)) @ v, with_float, mask="float"
    ),
    "mask of keys": Written(
        module=Calls(lambda q, k, v, m: soft(scores_of(q, k) + (1.0 - m)[:, None, None, :] * -10000.0) @ v),
        arguments=lambda q, kv: (*qkv(q, kv), (draw(BATCH, kv, seed=3) > -1.0).float()),
        axes=(*LENGTHS, (1,)),
        expects=FLOAT,
    ),
    "one number per query": Written(
        module=Calls(lambda q, k, v, m: soft(scores_of(q, k) + m) @ v),
        arguments=lambda q, kv: (*qkv(q, kv), draw(BATCH, 1, q, 1, seed=3)),
        axes=(*LENGTHS, (2,)),
        expects=FLOAT,
    ),
    "repeated heads": Written(
        module=Calls(lambda q, k, v: soft(scores_of(q, repeat_kv(k, 2)) * WIDTH**-0.5) @ repeat_kv(v, 2)),
        arguments=grouped,
        axes=LENGTHS,
        expects={"kv_num_heads": KV_HEADS},
    ),
    "interleaved heads": Written(
        module=Calls(lambda q, k, v: soft(scores_of(q, k.repeat_interleave(2, 1))) @ v.repeat_interleave(2, 1)),
        arguments=grouped,
        axes=LENGTHS,
        expects={"kv_num_heads": KV_HEADS},
    ),
    "tiled heads": Written(
        module=Calls(lambda q, k, v: soft(scores_of(q, k.repeat(1, 2, 1, 1))) @ v.repeat(1, 2, 1, 1)),
        arguments=grouped,
        axes=LENGTHS,
        expects={"kv_num_heads": HEADS},
    ),
    "one head of keys": Written(
        module=Calls(lambda q, k, v: soft(scores_of(q, k)) @ v),
        arguments=lambda q, kv: (qkv(q, kv)[0], draw(BATCH, 1, kv, WIDTH), draw(BATCH, 1, kv, 5, seed=2)),
        axes=LENGTHS,
        expects={"kv_num_heads": 1, "v_head_dim": 5},
    ),
    "heads last": Written(
        module=Calls(
            lambda q, k, v: (soft(q.transpose(1, 2) @ k.permute(0, 2, 3, 1)) @ v.transpose(1, 2)).transpose(1, 2)
        ),
        arguments=bsnh,
        axes=((1,), (1,), (1,)),
        expects={"scale": "none"},
    ),
    "einsum": simple(
        lambda q, k, v: torch.einsum("bhij,bhjd->bhid", soft(torch.einsum("bhid,bhjd->bhij", q, k) * WIDTH**-0.5), v)
    ),
    "einsum, heads last": Written(
        module=Calls(
            lambda q, k, v: torch.einsum("bhij,bjhd->bihd", soft(torch.einsum("bihd,bjhd->bhij", q, k) / 2.0), v)
        ),
        arguments=bsnh,
        axes=((1,), (1,), (1,)),
        expects={"scale": 0.5, "layout": "bnsh"},
    ),
    "batch and heads in one axis": Written(
        module=Calls(lambda q, k, v: torch.bmm(soft(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(WIDTH)), v)),
        arguments=flat,
        axes=((1,), (1,), (1,)),
        expects={"layout": "bsh", "q_num_heads": 1},
    ),
    "scores reshaped for the mask": Written(
        module=Calls(reshaped_scores),
        arguments=with_float,
        axes=((0, 2), (0, 2), (0, 2), (0, 2, 3)),
        expects={"q_num_heads": HEADS, "layout": "bnsh", **FLOAT, **INVERSE_SQRT},
    ),
    "packed and chunked": Written(module=Packed(split=True), arguments=tokens, axes=((0, 1),), expects=INVERSE_SQRT),
    "packed and unbound": Written(module=Packed(split=False), arguments=tokens, axes=((0, 1),), expects=INVERSE_SQRT),
    "weights as an output": Written(module=WithWeights(), arguments=qkv, axes=LENGTHS, expects=INVERSE_SQRT),
    "sdpa": simple(functional.scaled_dot_product_attention),
    "sdpa causal": simple(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True)),
    "sdpa bool": masked(functional.scaled_dot_product_attention, with_bool),
    "sdpa float": masked(functional.scaled_dot_product_attention, with_float, mask="float"),
    "sdpa scaled": simple(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, scale=0.3), scale=0.3),
    "sdpa grouped": Written(
        module=Calls(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)),
        arguments=grouped,
        axes=LENGTHS,
        only="dynamo",
        expects={"kv_num_heads": KV_HEADS},
    ),
    "multi-head": Written(module=TorchHeads(weights=False), arguments=two_streams, axes=((1,), (1,)), bakes=True),
    "multi-head with weights": Written(
        module=TorchHeads(weights=True), arguments=two_streams, axes=((1,), (1,)), bakes=True
    ),
    "padded heads with weights": Written(
        module=PaddedHeads(),
        arguments=lambda q, _: (draw(BATCH, q, HIDDEN), torch.arange(q) >= torch.tensor([[q], [q - 2]])),
        axes=((1,), (1,)),
        bakes=True,
        expects={"q_num_heads": HEADS, **FLOAT},
    ),
    "causal buffer": Written(
        module=CausalBuffer(),
        arguments=tokens,
        axes=((0, 1),),
        expects={"is_causal": True, "mask": "none", **INVERSE_SQRT},
    ),
    "computed wider": Written(
        module=Calls(lambda q, k, v: soft(scores_of(q.float(), k.float()) * WIDTH**-0.5).to(v.dtype) @ v),
        arguments=halves,
        axes=LENGTHS,
        expects=dict(INVERSE_SQRT),
    ),
    "encoder layer": Written(
        module=Encoder(),
        arguments=tokens,
        axes=((1,),),
        bakes=True,
    ),
    "decoder layer": Written(
        module=Decoder(),
        arguments=two_streams,
        axes=((1,), (1,)),
        bakes=True,
        found=2,
    ),
}
