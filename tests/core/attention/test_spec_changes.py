"""Differences between two attentions are described by field name."""

from dataclasses import replace

import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Layout, ScaleRule
from sdpa_onnx.core.attention.spec_changes import spec_changes

_SPEC = AttentionSpec(q_num_heads=4, kv_num_heads=4, head_dim=32)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"scale": 0.18}, "The scale was 0.1768 and is 0.18."),
        ({"scale": 0.17678}, "The scale was 0.176776695 and is 0.17678."),
        ({"is_causal": True}, "The attention was not causal and is."),
        ({"softcap": 30.0}, "The softcap was 0 and is 30."),
        ({"kv_num_heads": 2}, "The kv_num_heads was 4 and is 2."),
    ],
)
def test_a_changed_field_is_named(changes: dict[str, object], sentence: str) -> None:
    """Both values are printed with as many digits as distinguish them."""
    assert spec_changes([_SPEC], [replace(_SPEC, **changes)]) == [sentence]  # type: ignore[arg-type]


def test_what_computes_the_same_is_no_change() -> None:
    """A rule and its number, rounded to float32 or not, and another order of axes."""
    rounded = replace(_SPEC, scale=0.17677669, layout=Layout.BSH)
    assert spec_changes([_SPEC, _SPEC], [rounded, replace(_SPEC, scale=ScaleRule.INVERSE_SQRT)]) == []


def test_of_several_attentions() -> None:
    """How many changed; nothing where it is unknown which is which."""
    wrong = replace(_SPEC, scale=0.5)
    assert spec_changes([_SPEC] * 3, [wrong, _SPEC, wrong]) == ["The scale of 2 of 3 attentions was 0.1768 and is 0.5."]
    assert spec_changes([_SPEC], [wrong, wrong]) == []
    causal = replace(_SPEC, is_causal=True)
    assert spec_changes([causal], [_SPEC]) == ["The attention was causal and no longer is."]
    assert spec_changes([causal, _SPEC], [_SPEC] * 2) == ["1 of 2 attentions was causal and no longer is."]
