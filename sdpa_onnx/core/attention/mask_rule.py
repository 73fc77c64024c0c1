"""Says what a mask means whose last axis is 1: opset 23 broadcasts it over the keys, later opsets pad it with -inf.

The oracle pads every short mask; `full_mask` writes out a broadcast first.
"""

from dataclasses import replace
from enum import StrEnum

import numpy as np

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.spec import Layout

__all__ = ["MaskRule", "full_mask", "mask_rule_of"]

# The first opset whose text pads a mask.
_PADDING_OPSET = 24


class MaskRule(StrEnum):
    """What a mask means whose last axis is 1 where there are more keys.

    Source: ONNX Attention, attn_mask. Opset 23: "Shape must be broadcastable to 4D tensor", and its function body
        adds the mask as it is. Opset 24: "The last dimension can also be shorter than total_sequence_length and will
        be padded to total_sequence_length with negative infinity", and its function body pads 1 too.
    """

    BROADCAST = "broadcast"
    PADDED = "padded"


def mask_rule_of(opset: int) -> MaskRule:
    """The rule of the Attention operator of an opset."""
    return MaskRule.PADDED if opset >= _PADDING_OPSET else MaskRule.BROADCAST


def full_mask(inputs: AttentionInputs, rule: MaskRule, *, layout: Layout) -> AttentionInputs:
    """The same inputs with a mask that means under PADDED what the given one means under the rule.

    Args:
        inputs: The arrays as the runtime receives them.
        rule: The rule of the operator that receives them.
        layout: Axis order of the key.

    Example:
        >>> rows = np.zeros((1, 1, 3, 2), np.float32)
        >>> given = AttentionInputs(query=rows, key=rows, value=rows, attn_mask=np.ones((3, 1), np.float32))
        >>> full_mask(given, MaskRule.BROADCAST, layout=Layout.BNSH).attn_mask.shape
        (3, 3)
        >>> full_mask(given, MaskRule.PADDED, layout=Layout.BNSH).attn_mask.shape
        (3, 1)
    """
    mask = inputs.attn_mask
    past = 0 if inputs.past_key is None else inputs.past_key.shape[2]
    keys = past + inputs.key.shape[layout.length_axis]
    if rule is MaskRule.PADDED or mask is None or mask.ndim == 0 or mask.shape[-1] != 1 or keys == 1:
        return inputs
    return replace(inputs, attn_mask=np.ascontiguousarray(np.broadcast_to(mask, (*mask.shape[:-1], keys))))
