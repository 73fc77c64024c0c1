"""Modules as a user may write them, right and wrong. The tests copy this file and pass it on the command line."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Right(nn.Module):
    """Self attention with its projections."""

    sample_inputs = (torch.zeros(2, 10, 16),)

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.into(x).view(x.shape[0], x.shape[1], 3, 2, 8).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(x.shape))
        return result


class Plain(nn.Module):
    """Attention only, with the user's own input names."""

    sample_inputs = (torch.zeros(2, 4, 5, 8), torch.zeros(2, 4, 6, 8), torch.zeros(2, 4, 6, 8))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v)


class Baked(Right):
    """Batch and length as constants."""

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.into(x).view(2, 10, 3, 2, 8).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(query, key, value)


class Raising(Right):
    """A forward that raises."""

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("heads do not fit\nsecond line")


class Unbuildable(nn.Module):
    """A constructor that raises."""

    def __init__(self) -> None:
        raise ValueError("no such width\nsecond line")


class Sampleless(nn.Module):
    """No sample inputs."""

    def forward(self, x: Tensor) -> Tensor:
        return x


not_a_module = 3


def _qkv() -> tuple[Tensor, ...]:
    return tuple(torch.ones(2, 2, size, 8) for size in (5, 6, 6))


class ScaledByLength(nn.Module):
    """The scale is one over the number of keys."""

    sample_inputs = _qkv()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, scale=1.0 / k.shape[-2])


class ScaledInSteps(nn.Module):
    """The scale has two values that depend on the number of keys."""

    sample_inputs = _qkv()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scale = 0.125 if k.shape[-2] < 10 else 0.0625
        return functional.scaled_dot_product_attention(q, k, v, scale=scale)
