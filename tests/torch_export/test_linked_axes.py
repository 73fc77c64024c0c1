"""Lengths that a module requires to be equal get one name in the graph."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sdpa_onnx.torch_export.bound_inputs import bind_inputs
from sdpa_onnx.torch_export.exporter import export_module
from sdpa_onnx.torch_export.linked_axes import linked_axes, named_sizes


class _Step(nn.Module):
    """One step with a cache and a mask aligned to the last key."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, past_k: Tensor, past_v: Tensor) -> Tensor:
        key, value = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        queries, keys = q.shape[2], key.shape[2]
        mask = torch.ones(queries, keys, dtype=torch.bool).tril(diagonal=keys - queries)
        return functional.scaled_dot_product_attention(q, key, value, attn_mask=mask)


class _StepWithoutMask(nn.Module):
    """One step with a cache, for which torch's CPU kernel does not check that keys and values are equally many."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, past_k: Tensor, past_v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, torch.cat([past_k, k], 2), torch.cat([past_v, v], 2))


class _Product(nn.Module):
    """Two inputs with independent lengths."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-1, -2)


def _tensors(*sizes: int) -> tuple[Tensor, ...]:
    return tuple(torch.randn(2, 2, size, 8) for size in sizes)


@pytest.mark.parametrize("step", [_Step, _StepWithoutMask])
def test_cache_is_exported_with_one_length_for_keys_and_values(step: type[nn.Module]) -> None:
    """New keys, cache and queries each have their own length, although the sample has equal lengths."""
    model = export_module(step(), _tensors(3, 3, 3, 7, 7))
    names = [str((value.shape or ())[2]) for value in model.ir.graph.inputs]
    assert names == ["q_seq_len", "k_seq_len", "k_seq_len", "past_k_seq_len", "past_k_seq_len"]


def test_free_axes_are_not_linked() -> None:
    """Equal sizes in a sample alone do not link axes."""
    model = export_module(_Product(), _tensors(3, 3))
    assert [str((value.shape or ())[2]) for value in model.ir.graph.inputs] == ["q_seq_len", "k_seq_len"]


def test_sample_stays_as_it_was() -> None:
    """The search changes neither the sample nor the module's training flag."""
    module, sample = _Step(), _tensors(3, 3, 3, 7, 7)
    before = [tensor.clone() for tensor in sample]
    dims = [("b", 2, name, 8) for name in ("q", "k", "v", "pk", "pv")]
    inputs = bind_inputs(module, sample)
    assert linked_axes(module, inputs, dims) == {"v": "k", "pv": "pk"}
    assert module.training
    assert all(torch.equal(old, new) for old, new in zip(before, sample, strict=True))
    assert named_sizes(inputs, dims) == {"b": 2, "q": 3, "k": 3, "v": 3, "pk": 7, "pv": 7}
