"""torch modules for the tests of the workflows; they do not use sdpa_onnx."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class SelfAttention(nn.Module):
    """A minimal self-attention with projections."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.into = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.into(x).view(x.shape[0], x.shape[1], 3, 2, 8).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(x.shape))
        return result


class ScaledByLength(nn.Module):
    """The scale is one over the number of keys."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, scale=1.0 / k.shape[-2])


class ScaledByLogLength(nn.Module):
    """The scale grows with the logarithm of the number of keys."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, scale=math.log(k.shape[-2]) / 8)


class Scaled(nn.Module):
    """A constant scale."""

    def __init__(self, scale: float = 0.3) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, scale=self.scale)


class ScaledByHand(nn.Module):
    """Handwritten attention with scale one over the number of keys."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2) * (1 / k.shape[2])).softmax(-1) @ v


class ScaledByCount(nn.Module):
    """The same, with a scale that exists only as a tensor."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2) / torch.ones(k.shape[2]).sum()).softmax(-1) @ v


class CausalWhenLong(nn.Module):
    """Causal for more than five queries, like models that get a prompt first and single tokens later."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=bool(q.shape[-2] > 5))


class MaskedWhenLong(nn.Module):
    """A window of four keys for more than twenty keys, else no mask."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        near = torch.arange(k.shape[-2]) < 4
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=near[None] if k.shape[-2] > 20 else None)


class WithoutAttention(nn.Module):
    """One linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x)
        return result


class Reciprocal(nn.Module):
    """Infinite where the input is zero."""

    def forward(self, x: Tensor) -> Tensor:
        return 1.0 / x


def seeded(kind: type[nn.Module], seed: int = 0) -> nn.Module:
    """A module with fixed weights, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind().eval()


def hidden() -> Tensor:
    """A sample of (batch 2, length 10, width 16)."""
    return torch.randn(2, 10, 16, generator=torch.Generator().manual_seed(0))


def qkv() -> tuple[Tensor, Tensor, Tensor]:
    """Query of length 5, key and value of length 6."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 2, size, 8, generator=generator) for size in (5, 6, 6))
    return query, key, value
