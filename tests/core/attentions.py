"""Cases that together can have every fault and every probe, as data."""

from dataclasses import replace
from typing import Any

from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, MaskKind


def case(sizes: str = "2x5x9", past: int = 0, **spec: Any) -> AttentionCase:
    """A case of 4 query heads over 2: sizes are "samples x queries x new keys"."""
    batch_size, q_seq_len, kv_seq_len = (int(size) for size in sizes.split("x"))
    return AttentionCase(
        spec=AttentionSpec(**{"q_num_heads": 4, "kv_num_heads": 2, "head_dim": 8, **spec}),
        batch_size=batch_size,
        q_seq_len=q_seq_len,
        kv_seq_len=kv_seq_len,
        past_seq_len=past,
    )


CASES: dict[str, AttentionCase] = {
    "plain": case(),
    "causal": case("2x7x9", is_causal=True),
    "past-one-query": case("2x1x4", 5, is_causal=True, has_past=True),
    "past-chunk": case("2x4x4", 5, is_causal=True, has_past=True, v_head_dim=3),
    "bool": case(mask="bool"),
    "bool-causal": case("2x7x7", mask="bool", is_causal=True),
    "bool-heads": replace(case(mask="bool"), mask_shape=(2, 4, 5, 9)),
    "float": case(mask="float"),
    "float-heads": replace(case(mask="float"), mask_shape=(1, 4, 5, 9)),
    "causal-slopes": replace(case("2x7x7", mask="float", is_causal=True), mask_shape=(4, 1, 7)),
    "float-causal-past": case("2x5x5", 4, mask="float", has_past=True, is_causal=True),
    "lengths": case(mask="lengths"),
    "lengths-causal": case("2x4x9", mask="lengths", is_causal=True),
    "lengths-heads": replace(case(mask="lengths"), mask_shape=(2, 4, 5, 9), extra_mask=MaskKind.FLOAT),
    "window": case("2x8x8", left_window=2, right_window=1),
    "window-causal": case("2x8x8", left_window=2, is_causal=True),
    "softcap-bool": case(softcap=30.0, mask="bool"),
    "softcap-causal": case("2x8x8", softcap=5.0, is_causal=True),
    "softcap-float": case(softcap=2.0, mask="float"),
    "wide-value": case(head_dim=5, v_head_dim=16),
    "bsh-causal": case("2x6x6", layout="bsh", is_causal=True),
    "bsh-past-float": case("2x5x9", 3, layout="bsh", q_num_heads=6, has_past=True, mask="float", v_head_dim=3),
    "scale-two": case(scale=2.0, mask="bool"),
    "scale-negative": case(scale=-0.3),
    "scale-none": case(scale="none"),
    "mqa": case(kv_num_heads=1),
}

# The sizes that are legal and break things: no query, no key, no sample, one of each, a prime above a tile of 64.
ODD_SIZES: dict[str, AttentionCase] = {
    "one-of-each": case("1x1x1", is_causal=True),
    "one-key-mask": case("1x3x1", mask="bool"),
    "no-queries": case("2x0x4", mask="float"),
    "no-keys": case("2x3x0", mask="lengths"),
    "no-samples": case("0x3x4", mask="bool"),
    "empty-past": case("2x3x4", 0, has_past=True, is_causal=True),
    "no-new-keys": case("1x2x0", 3, has_past=True, mask="float"),
    "one-wide": case("2x3x4", head_dim=1, v_head_dim=1, softcap=3.0, is_causal=True),
    "causal-short-lengths": case("2x6x4", mask="lengths", is_causal=True),
    "no-scale": case(scale=0.0, mask="bool"),
    "prime": case("1x67x67", head_dim=64, is_causal=True),
    "window-beyond-keys": case("1x6x3", left_window=0),
}
