"""An attention that was found in a file, in words."""

from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.attention.unusual_scale import unusual_scale
from sdpa_onnx.core.records.records import AttentionRecord

__all__ = ["describe_attention"]


def describe_attention(record: AttentionRecord) -> str:
    """One attention in one line, without its name: dialect, heads, sizes, scale, mask."""
    spec = record.spec
    if spec is None:
        return f"{record.dialect}; cannot be read: {record.reason}"
    band = f" (hides as {record.mask_band.text}, and more)" if record.mask_band else ""
    words = [
        f"{spec.q_num_heads} heads"
        if spec.q_num_heads == spec.kv_num_heads
        else f"{spec.q_num_heads} query heads over {spec.kv_num_heads} key/value heads",
        f"d_k {spec.head_dim}" + (f", d_v {spec.v_head_dim}" if spec.v_head_dim != spec.head_dim else ""),
        (not record.scale_doubt and unusual_scale(spec)) or _scale(spec),
        "causal" if spec.is_causal else "",
        f"mask {spec.mask}{band}" if spec.mask != "none" else "no mask input",
        f"softcap {spec.softcap:g}" if spec.softcap else "",
        f"window {spec.left_window}, {spec.right_window}" if spec.has_window else "",
        "with past" if spec.has_past else "",
        record.quantised,
        spec.layout.value.upper(),
    ]
    return f"{record.dialect}; {'; '.join(word for word in words if word)}"


def _scale(spec: AttentionSpec) -> str:
    """The scale, with the usual rule where it prints as the same number."""
    number, usual = f"{spec.scale_value:.6g}", f"{spec.head_dim**-0.5:.6g}"
    return f"scale {number} = 1/sqrt(d_k)" if number == usual else f"scale {number}"
