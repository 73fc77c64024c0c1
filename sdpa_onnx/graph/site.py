"""Locate an attention in a graph by the names of its input and output values. Holds no graph."""

from dataclasses import dataclass

from sdpa_onnx.core.attention.spec import AttentionSpec

__all__ = ["AttentionSite"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSite:
    """One attention of a model, by the names of its graph values.

    Written into the metadata of every exported model, so that a verification
    can read the inputs and the output of each attention, in any form.

    Args:
        name: Unique in the model: module path or node name.
        spec: What it computes from these values.
        query: Value name; 4-D BNSH, or 3-D if the spec's layout says so.
        key: The same.
        value: The same.
        output: The same.
        attn_mask: Value name, or None.
        past_key: Value name, or None.
        past_value: Value name, or None.
        nonpad_kv_seqlen: Value name, or None.
    """

    name: str
    spec: AttentionSpec
    query: str
    key: str
    value: str
    output: str
    attn_mask: str | None = None
    past_key: str | None = None
    past_value: str | None = None
    nonpad_kv_seqlen: str | None = None

    @property
    def inputs(self) -> dict[str, str]:
        """Value name by field name of `AttentionInputs`, without absent inputs."""
        fields = ("query", "key", "value", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
        names = {field: getattr(self, field) for field in fields}
        return {field: name for field, name in names.items() if name is not None}
