"""Parts of records: axes and settings that are baked into a graph although they should follow a size.

Does not find them: `workflows.verify.dynamic_axes` does.
"""

import msgspec

__all__ = ["BakedAxis", "BakedSetting"]


class BakedAxis(msgspec.Struct, frozen=True, kw_only=True):
    """An axis that should be dynamic and is fixed: its name, the evidence, and the node if known."""

    axis: str
    node: str = ""
    evidence: str = ""


class BakedSetting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of an attention that follows a size in the module, and is fixed in the graph.

    Args:
        setting: "scale", "is_causal", "attn_mask" or "calls".
        site: Which attention of the model.
        fixed: Its value in the graph.
        own: The module's own value where they differ.
        evidence: Both values, the sizes and the line, one clause.
    """

    setting: str
    site: str
    fixed: str
    own: str
    evidence: str
