"""A scale made of a length follows it in the exported graph."""

import math
from math import log

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sdpa_onnx.errors import ExportError
from sdpa_onnx.runtimes.base import LoadOptions, get_runtime
from sdpa_onnx.torch_export.exporter import export_module
from sdpa_onnx.torch_export.scale_by_size import sizes_as_tensors


class _Scaled(nn.Module):
    """A scale by one of several rules of the number of keys."""

    def __init__(self, rule: str) -> None:
        super().__init__()
        self.rule = rule

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys = k.shape[-2]
        scale = {
            "inverse": lambda: 1.0 / keys,
            "power": lambda: keys**-0.5,
            "sqrt": lambda: 1.0 / math.sqrt(keys),
            "log": lambda: math.log(keys) / 8,
            "log of a base": lambda: math.log(keys, 512) / 8,
            "log2": lambda: math.log2(keys) / math.sqrt(q.shape[-1]),
            "constant": lambda: 0.3,
        }[self.rule]()
        return functional.scaled_dot_product_attention(q, k, v, scale=scale)


class _LogByItsOwnName(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, scale=log(k.shape[-2]))


def _qkv(keys: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(keys)
    return tuple(torch.randn(2, 2, size, 8, generator=generator).to(dtype) for size in (5, keys, keys))


_QUICK = [("inverse", 18), ("log", 23), ("constant", 23)]
_SLOW = [(rule, opset) for rule in ("power", "sqrt", "log", "log of a base", "log2") for opset in (18, 23)]


@pytest.mark.parametrize(
    ("rule", "opset"), [*_QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in _SLOW if each not in _QUICK)]
)
def test_right_at_other_lengths(rule: str, opset: int) -> None:
    """Traced at 6 keys and run at 19 and 97, the graph agrees with the module up to float32 rounding."""
    module = _Scaled(rule).eval()
    model = export_module(module, _qkv(6), opset=opset)
    with get_runtime("ort-cpu").load(model, LoadOptions()) as session:
        for keys in (19, 97):
            inputs = _qkv(keys)
            feeds = {name: tensor.numpy() for name, tensor in zip(model.input_names, inputs, strict=True)}
            (actual,) = session.run(feeds).values()
            np.testing.assert_allclose(actual, module(*inputs).numpy(), rtol=0, atol=2e-6)
    assert (model.sites[0].spec.scale == 1.0) == (rule != "constant")


@pytest.mark.slow
def test_half_precision_does_not_round_the_scale() -> None:
    """In float16 the query is multiplied in float32: 1/1000 itself is off by 2e-4 in float16."""
    model = export_module(_Scaled("inverse").eval(), _qkv(6, torch.float16), opset=23)
    with get_runtime("ort-cpu").load(model.tapped(), LoadOptions()) as session:
        query, key, value = _qkv(1000, torch.float16)
        feeds = {name: tensor.numpy() for name, tensor in zip(model.input_names, (query, key, value), strict=True)}
        scaled = session.run(feeds)[model.sites[0].query]
    np.testing.assert_array_equal(scaled, (query.float() / 1000).half().numpy())


def test_function_under_a_name_of_its_own() -> None:
    """`from math import log` cannot be traced and is refused with its axis, not baked in."""
    with pytest.raises(ExportError) as caught:
        export_module(_LogByItsOwnName().eval(), _qkv(6))
    assert str(caught.value).startswith("The export cannot keep its axes dynamic: axis 2 of 'k' is fixed to 6 by ")


def test_numbers_stay_numbers() -> None:
    """Only dynamic sizes become tensors, and math is restored afterwards."""
    before = math.sqrt
    with sizes_as_tensors() as used:
        assert math.sqrt(16) == 4.0
        assert math.log(9, 3) == 2.0
    assert used == []
    assert math.sqrt is before
