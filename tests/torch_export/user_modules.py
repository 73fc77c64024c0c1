"""User modules, valid and invalid, shared by the exporter's tests."""

import math
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attend(nn.Module):
    """One call of torch's function with fixed options."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        output: Tensor = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.options)
        return output


class PaddedSelfAttention(nn.Module):
    """torch's own multi-head module under a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        output: Tensor = self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        return output


class Encoder(nn.Module):
    """Two of torch's encoder layers under a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=padding)
        return x


class Decoder(nn.Module):
    """torch's decoder with a causal mask, which it may detect from its values."""

    def __init__(self, *, tgt_is_causal: bool | None) -> None:
        super().__init__()
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), 1)
        self.tgt_is_causal = tgt_is_causal

    def forward(self, target: Tensor, memory: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        output: Tensor = self.decoder(target, memory, tgt_mask=mask, tgt_is_causal=self.tgt_is_causal)
        return output


class CachedStep(nn.Module):
    """A decoding step that grows its cache."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, past_k: Tensor, past_v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, v = torch.cat((past_k, k), 2), torch.cat((past_v, v), 2)
        rows, columns = q.shape[2], k.shape[2]
        mask = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask), k, v


class ScaledByLength(nn.Module):
    """A scale that depends on the number of keys."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, scale=1.0 / k.shape[-2])


class ScaledByLogLength(nn.Module):
    """A scale that grows with the logarithm of the number of keys."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, scale=math.log(k.shape[-2]))


class ScaledByRoundedLog(nn.Module):
    """The same by an integer, which a trace cannot keep dynamic."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, scale=1.0 / (1 + int(math.log2(int(k.shape[-2])))))


class ConstantMask(nn.Module):
    """A mask that is a buffer, used unchanged."""

    visible: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("visible", torch.ones(1, 1, 1, 1, dtype=torch.bool))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=self.visible)


class FixedLength(nn.Module):
    """A length baked in by a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(-1) + torch.arange(10.0)


class Failing(nn.Module):
    """A forward that raises."""

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("heads do not fit")


class DecidingByValue(nn.Module):
    """A branch on the values of a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Untranslatable(nn.Module):
    """An operator without an ONNX form."""

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = torch.special.bessel_j0(x)
        return output


class ManyOutputs(nn.Module):
    """Nested outputs."""

    def forward(self, x: Tensor, gain: Tensor | None = None) -> tuple[Tensor, None, tuple[Tensor, Tensor]]:
        return x * 2, None, (x + 1, x if gain is None else x * gain)


def attentions_of(module: nn.Module, *inputs: Tensor) -> list[dict[str, Tensor]]:
    """Inputs and outputs of each attention, recorded in an eager run of torch."""
    calls: list[dict[str, Tensor]] = []
    original = functional.scaled_dot_product_attention

    def record(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Tensor:
        output = original(query, key, value, *rest, **options)
        calls.append({"query": query, "key": key, "value": value, "output": output})
        return output

    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), mock.patch.object(functional, "scaled_dot_product_attention", record):
            module(*inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
    return calls
