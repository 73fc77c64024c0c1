"""The output values of a form, before it replaces an attention. Writes nothing."""

from dataclasses import dataclass

import onnx_ir as ir

__all__ = ["FormOutputs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormOutputs:
    """The values that replace an attention's outputs.

    Args:
        output: In the shape and layout of the attention's output.
        present_key: None if nothing reads it.
        present_value: None if nothing reads it.
        scores: The operator's fourth output; None if nothing reads it.
    """

    output: ir.Value
    present_key: ir.Value | None = None
    present_value: ir.Value | None = None
    scores: ir.Value | None = None
