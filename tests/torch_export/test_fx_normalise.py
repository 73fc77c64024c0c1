"""Each rewrite of an attention: calls that torch.onnx or a runtime refuses export and compute the same."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sdpa_onnx.core.attention.spec import AttentionSpec, MaskKind, ScaleRule
from sdpa_onnx.torch_export.exporter import export_module
from tests.torch_export.exported import LIMIT, Comparison, max_abs_error, run
from tests.torch_export.user_modules import Attend, ConstantMask, ScaledByLength


def _q(*shape: int) -> Tensor:
    return torch.randn(*shape)


def _visible(*shape: int) -> Tensor:
    """A boolean mask whose last query, if there is one, is fully masked."""
    mask = torch.rand(*shape) < 0.7
    mask[..., 0] = True
    if shape[-2] > 1:
        mask[..., -1, :] = False
    return mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    name: str
    draw: Callable[[int, int, int], tuple[Tensor, ...]]
    module: Callable[[], nn.Module] = Attend
    spec: dict[str, Any] = field(default_factory=dict)


_REWRITES = [
    Rewrite(name="rank-2", draw=lambda _, q, k: (_q(q, 8), _q(k, 8), _q(k, 8)), spec={"q_num_heads": 1}),
    Rewrite(name="rank-3", draw=lambda b, q, k: (_q(b, q, 8), _q(b, k, 8), _q(b, k, 8)), spec={"q_num_heads": 1}),
    Rewrite(
        name="rank-3-mask",
        draw=lambda b, q, k: (_q(b, q, 8), _q(b, k, 8), _q(b, k, 8), _visible(b, q, k)),
        spec={"q_num_heads": 1, "mask": MaskKind.BOOL},
    ),
    Rewrite(
        name="rank-5",
        draw=lambda b, q, k: (_q(b, 3, 4, q, 8), _q(b, 3, 4, k, 8), _q(b, 3, 4, k, 6)),
        module=lambda: Attend(is_causal=True),
        spec={"v_head_dim": 6, "is_causal": True},
    ),
    Rewrite(
        name="rank-5-mask",
        draw=lambda b, q, k: (_q(b, 3, 4, q, 8), _q(b, 3, 4, k, 8), _q(b, 3, 4, k, 8), _q(b, 1, 1, q, k)),
        spec={"mask": MaskKind.FLOAT},
    ),
    Rewrite(
        name="gqa-flag-with-equal-heads",
        draw=lambda b, q, k: (_q(b, 4, q, 8), _q(b, 4, k, 8), _q(b, 4, k, 8)),
        module=lambda: Attend(enable_gqa=True),
    ),
    Rewrite(
        name="gqa",
        draw=lambda b, q, k: (_q(b, 4, q, 8), _q(b, 2, k, 8), _q(b, 2, k, 8)),
        module=lambda: Attend(enable_gqa=True),
        spec={"kv_num_heads": 2},
    ),
    Rewrite(
        name="one-kv-head-broadcast",
        draw=lambda b, q, k: (_q(b, 4, q, 8), _q(b, 1, k, 8), _q(b, 1, k, 8)),
        spec={"kv_num_heads": 1},
    ),
    Rewrite(name="batch-broadcast", draw=lambda b, q, k: (_q(b, 4, q, 8), _q(1, 4, k, 8), _q(1, 4, k, 8))),
    Rewrite(
        name="bool-mask-with-causal",
        draw=lambda b, q, k: (_q(b, 4, q, 8), _q(b, 4, k, 8), _q(b, 4, k, 8), _visible(b, 1, q, k)),
        module=lambda: Attend(is_causal=True),
        spec={"mask": MaskKind.BOOL},
    ),
    Rewrite(
        name="float-mask-with-causal",
        draw=lambda b, q, k: (_q(b, 4, q, 8), _q(b, 4, k, 8), _q(b, 4, k, 8), _q(q, k)),
        module=lambda: Attend(is_causal=True),
        spec={"mask": MaskKind.FLOAT},
    ),
    Rewrite(
        name="mask-broadcast-over-queries",
        draw=lambda b, q, k: (_q(b, 4, q, 8), _q(b, 4, k, 8), _q(b, 4, k, 8), _visible(b, 1, 1, k)),
        spec={"mask": MaskKind.BOOL},
    ),
    Rewrite(
        name="mask-broadcast-over-keys",
        draw=lambda b, q, k: (_q(b, 4, q, 8), _q(b, 4, k, 8), _q(b, 4, k, 8), _q(b, 1, q, 1)),
        spec={"mask": MaskKind.FLOAT},
    ),
    Rewrite(
        name="hidden-row",
        draw=lambda b, q, k: (_q(b, 4, q, 8), _q(b, 4, k, 8), _q(b, 4, k, 8), _visible(b, 1, q, k)),
        spec={"mask": MaskKind.BOOL},
    ),
    Rewrite(
        name="hidden-row-by-minus-infinity",
        draw=lambda b, q, k: (
            *(_q(b, 4, q, 8), _q(b, 4, k, 8), _q(b, 4, k, 8)),
            torch.zeros(b, 1, q, k).masked_fill(~_visible(b, 1, q, k), float("-inf")),
        ),
        spec={"mask": MaskKind.FLOAT},
    ),
    Rewrite(
        name="scale-by-length",
        draw=lambda b, q, k: (_q(b, 4, q, 8), _q(b, 4, k, 8), _q(b, 4, k, 8)),
        module=ScaledByLength,
        spec={"scale": 1.0},
    ),
    Rewrite(
        name="constant-mask",
        draw=lambda b, q, k: (_q(b, 4, q, 8), _q(b, 4, k, 8), _q(b, 4, k, 8)),
        module=ConstantMask,
        spec={"mask": MaskKind.BOOL},
    ),
]


# By default, below opset 23 only the cases that differ there run; above, one of each kind.
_QUICK_AT_18 = {"gqa", "hidden-row", "hidden-row-by-minus-infinity"}
_SLOW_AT_23 = {"rank-2", "rank-3", "rank-3-mask", "rank-5", "gqa", "hidden-row-by-minus-infinity"}
_SLOW_AT_23 |= {"float-mask-with-causal", "batch-broadcast"}


def _is_quick(name: str, opset: int) -> bool:
    return name in _QUICK_AT_18 if opset < 23 else name not in _SLOW_AT_23


_PAIRS = [
    pytest.param(
        *(rewrite, opset),
        id=f"{rewrite.name}-{opset}",
        marks=() if _is_quick(rewrite.name, opset) else pytest.mark.slow,
    )
    for rewrite in _REWRITES
    for opset in (18, 23)
]


@pytest.mark.slow
@pytest.mark.parametrize(("rewrite", "opset"), _PAIRS)
def test_rewritten_attention_computes_the_same(rewrite: Rewrite, opset: int) -> None:
    """At other sizes the model agrees with float64 torch and has its spec, and all values can be read."""
    torch.manual_seed(0)
    module = rewrite.module()
    model = export_module(module, rewrite.draw(2, 5, 6), opset=opset)
    comparison = Comparison(model, module)
    for size in ((3, 4, 9), (2, 7, 3)):
        assert comparison.max_abs_error(rewrite.draw(*size)) < LIMIT, size
    (site,) = model.sites
    figures = {"q_num_heads": 4, "head_dim": 8, **rewrite.spec}
    assert site.spec == AttentionSpec(**{"kv_num_heads": figures["q_num_heads"], **figures})
    assert site.name == "sdpa"
    inputs = rewrite.draw(3, 4, 9)
    fed = {name: tensor.numpy() for name, tensor in zip(model.input_names, inputs, strict=True)}
    values = {**fed, **run(model.tapped(), inputs)}
    assert values[site.query].ndim == values[site.output].ndim == 4
    assert set(site.inputs.values()) <= set(values)


def test_number_as_scale_stays_a_number() -> None:
    """A numeric scale argument becomes the spec's scale."""
    sample = tuple(torch.randn(2, 4, size, 8) for size in (3, 5, 5))
    assert export_module(Attend(scale=0.3, dropout_p=0.5), sample).sites[0].spec.scale == 0.3


def test_dropout_is_left_out() -> None:
    """Dropout that forward passes even in eval mode is not exported; the graph has one Attention node."""
    sample = tuple(torch.randn(2, 4, size, 8) for size in (3, 5, 5))
    model = export_module(Attend(dropout_p=0.5), sample)
    assert model.node_counts() == {"Attention": 1}
    assert model.sites[0].spec.scale is ScaleRule.INVERSE_SQRT
    assert max_abs_error(model, Attend(), sample) < LIMIT


@pytest.mark.slow
def test_half_precision_mask() -> None:
    """A float16 mask of finfo.min, as in transformers, gives the causal result at both opsets."""
    sample = tuple(torch.randn(2, 4, size, 8).half() for size in (5, 5, 5))
    later = torch.ones(5, 5).triu(1).bool()
    mask = torch.zeros(5, 5, dtype=torch.float16).masked_fill(later, torch.finfo(torch.float16).min)
    for opset in (18, 23):
        model = export_module(Attend(), (*sample, mask), opset=opset)
        # float16 has 11 bits; the outputs are means of unit-variance values.
        assert max_abs_error(model, Attend(), (*sample, mask)) < 4e-3
