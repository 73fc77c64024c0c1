"""Our torch modules compared with the oracle, and the three uses of the Transformer paper."""

import pytest
import torch

from sdpa_onnx.core.attention.inputs import draw_inputs
from sdpa_onnx.errors import CaseError
from sdpa_onnx.torch_export.modules import (
    FOUNDING_USES,
    MultiHeadAttention,
    ScaledDotProductAttention,
    founding_use,
)
from tests.torch_export.specs import SIZES, SPECS, case_of, error_of

# Float32 on sums of at most 16 terms of order 1: 6e-7 at most (measured); a wrong mask or scale gives 1e-2 and more.
_LIMIT = 5e-6


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_bare_attention_agrees_with_the_oracle(name: str, size: tuple[int, int, int, int]) -> None:
    """Every spec agrees with the oracle, including fully masked rows and short lengths."""
    spec = SPECS[name]
    inputs = draw_inputs(case_of(spec, size), spread=2.0, seed=3)
    output = ScaledDotProductAttention(spec)(**{k: torch.from_numpy(v) for k, v in inputs.onnx_feeds().items()})
    actual = output[0] if spec.has_past else output
    assert error_of(spec, inputs, actual.numpy()) < _LIMIT


@pytest.mark.parametrize("planted", ["causal", "window", "softcap", "scale-number", "bool", "one-kv-head"])
def test_the_oracle_tells_features_apart(planted: str) -> None:
    """The limit detects a module that lacks its feature."""
    spec = SPECS[planted]
    inputs = draw_inputs(case_of(spec, (2, 6, 6, 0)), spread=2.0, seed=3)
    feeds = {name: torch.from_numpy(array) for name, array in inputs.onnx_feeds().items()}
    feeds.pop("attn_mask", None)
    forgetful = SPECS["plain"]
    if planted == "one-kv-head":
        feeds |= {name: feeds[name].roll(1, dims=3) for name in ("K",)}
        forgetful = spec
    actual = ScaledDotProductAttention(forgetful)(**feeds)
    assert error_of(spec, inputs, actual.numpy()) > 100 * _LIMIT


def test_short_mask_hides_the_rest() -> None:
    """A mask shorter than the keys hides the other keys, as in ONNX."""
    spec = SPECS["bool"]
    inputs = draw_inputs(case_of(spec, (2, 3, 5, 0)))
    feeds = {name: torch.from_numpy(array) for name, array in inputs.onnx_feeds().items()}
    full = feeds["attn_mask"].clone()
    full[..., 3:] = False
    module = ScaledDotProductAttention(spec)
    short = module(**{**feeds, "attn_mask": feeds["attn_mask"][..., :3]})
    assert torch.equal(short, module(**{**feeds, "attn_mask": full}))


def test_past_is_returned_with_the_new_keys() -> None:
    """With a past, the module also returns the present cache, 4-D in either layout."""
    spec = SPECS["bsh-past"]
    inputs = draw_inputs(case_of(spec, (2, 3, 5, 4)))
    _, key, value = ScaledDotProductAttention(spec)(
        **{name: torch.from_numpy(array) for name, array in inputs.onnx_feeds().items()}
    )
    assert key.shape == (2, 2, 9, 8)
    assert value.shape == (2, 2, 9, 6)
    assert torch.equal(key[:, :, :4], torch.from_numpy(inputs.past_key))


@pytest.mark.parametrize("name", FOUNDING_USES)
def test_founding_uses_have_the_papers_figures(name: str) -> None:
    """d_model 512 and 8 heads of 64; only decoder self-attention is causal; weights are reproducible."""
    module, sample = founding_use(name)
    again, _ = founding_use(name)
    assert (module.spec.q_num_heads, module.spec.kv_num_heads, module.spec.head_dim) == (8, 8, 64)
    assert module.spec.is_causal == (name == "decoder-self")
    assert len(sample) == (2 if name == "encoder-decoder" else 1)
    assert torch.equal(module.query_projection.weight, again.query_projection.weight)
    assert module(*sample).shape == (2, 10, 512)
    assert not module.training


def test_founding_use_leaves_the_random_state() -> None:
    """Fixed weights do not change the caller's random state."""
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    founding_use("encoder-self")
    assert torch.equal(torch.rand(1), expected)


def test_unknown_use() -> None:
    """The error for an unknown use lists the known ones."""
    with pytest.raises(CaseError) as caught:
        founding_use("encoder")
    assert str(caught.value) == "There is no use 'encoder'. Known: encoder-self, decoder-self, encoder-decoder."


def test_heads_that_do_not_divide() -> None:
    """A hidden size that the heads do not divide is refused."""
    with pytest.raises(CaseError) as caught:
        MultiHeadAttention(hidden_size=10, q_num_heads=4)
    assert str(caught.value) == "hidden_size is 10, which q_num_heads = 4 does not divide."
