"""What a file states and what its nodes compute: contradictions are named, and what cannot be known is none."""

from dataclasses import replace

import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Layout, MaskKind
from sdpa_onnx.core.attention.spec_contradictions import spec_contradictions

_SPEC = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8, is_causal=True, left_window=6, softcap=3.0)
_PLAIN = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8)


@pytest.mark.parametrize(
    ("stated", "changed", "text"),
    [
        (_SPEC, {"scale": 0.36}, "scale 0.353553 in the metadata, 0.36 in the nodes"),
        (_SPEC, {"softcap": 0.0}, "softcap 3 in the metadata, 0 in the nodes"),
        (_SPEC, {"left_window": -1}, "left window 6 in the metadata, -1 in the nodes"),
        (_SPEC, {"left_window": 5}, "left window 6 in the metadata, 5 in the nodes"),
        (_SPEC, {"is_causal": False}, "causal yes in the metadata, no in the nodes"),
        (_PLAIN, {"is_causal": True}, "causal no in the metadata, yes in the nodes"),
        (_PLAIN, {"right_window": 2}, "right window -1 in the metadata, 2 in the nodes"),
        (_PLAIN, {"mask": MaskKind.BOOL}, "mask none in the metadata, bool in the nodes"),
        (_PLAIN, {"kv_num_heads": 1}, "kv_num_heads 2 in the metadata, 1 in the nodes"),
        (_PLAIN, {"v_head_dim": 4}, "v_head_dim 8 in the metadata, 4 in the nodes"),
    ],
)
def test_a_contradiction_is_named(stated: AttentionSpec, changed: dict[str, object], text: str) -> None:
    """One sentence part, with both values."""
    assert spec_contradictions(stated, replace(stated, **changed)) == (text,)


@pytest.mark.parametrize(
    ("stated", "read"),
    [
        (_SPEC, _SPEC),
        (_SPEC, replace(_SPEC, left_window=-1, mask=MaskKind.FLOAT)),
        (_SPEC, replace(_SPEC, is_causal=False, right_window=0)),
        (_PLAIN, replace(_PLAIN, kv_num_heads=4, layout=Layout.BSH)),
        (replace(_PLAIN, mask=MaskKind.BOOL), replace(_PLAIN, is_causal=True)),
        (replace(_PLAIN, mask=MaskKind.LENGTHS), replace(_PLAIN, mask=MaskKind.FLOAT)),
        (_PLAIN, replace(_PLAIN, scale=0.3535534)),
    ],
    ids=[
        "same",
        "window as a mask",
        "causal as a window",
        "repeated keys",
        "mask read",
        "lengths as a mask",
        "float32",
    ],
)
def test_what_a_reading_cannot_know_is_no_contradiction(stated: AttentionSpec, read: AttentionSpec) -> None:
    """The nodes write the same in other words."""
    assert spec_contradictions(stated, read) == ()
