"""What a form gives back to the graph that it is put into."""

from dataclasses import dataclass

import onnx_ir as ir

__all__ = ["FormOutputs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormOutputs:
    """The values that take the place of an attention's outputs.

    Args:
        output: In the shape and layout of the attention's output.
        present_key: None if nothing reads it.
        present_value: The same.
        scores: The same, the operator's fourth output.
    """

    output: ir.Value
    present_key: ir.Value | None = None
    present_value: ir.Value | None = None
    scores: ir.Value | None = None
