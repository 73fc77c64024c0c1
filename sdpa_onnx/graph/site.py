"""Where an attention sits in a graph: the values that enter and leave it."""

from dataclasses import dataclass

from sdpa_onnx.core.attention.spec import AttentionSpec

__all__ = ["AttentionSite"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSite:
    """One attention of a model, by the names of its graph values.

    Written into the metadata of every model that we export, so that a judge
    can tap exactly what entered and left each attention, in any form.

    Args:
        name: Unique in the model: module path or node name.
        spec: What it computes, on the tapped values.
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
        """Value name by field name of `AttentionInputs`, only what is present."""
        fields = ("query", "key", "value", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
        names = {field: getattr(self, field) for field in fields}
        return {field: name for field, name in names.items() if name is not None}
