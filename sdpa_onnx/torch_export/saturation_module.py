"""Export a bare attention with weights and logits as additional outputs and dynamic lengths.

Used to measure the softmax inside a runtime. Has one head and no mask.
"""

import torch
from torch import Tensor, nn

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.torch_export.exporter import LOWEST_OPSET, export_module

__all__ = ["AttentionWithWeights", "export_with_weights"]


class AttentionWithWeights(nn.Module):
    """Compute softmax(scale QK^T) V in single steps, and return weights and logits too.

    Args:
        scale: Factor on QK^T; a constant of the graph.

    Source: Vaswani et al. 2017, equation 1.
    """

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the attention.

        Args:
            query: (batch_size, num_heads, q_seq_len, head_dim).
            key: (batch_size, num_heads, kv_seq_len, head_dim).
            value: (batch_size, num_heads, kv_seq_len, v_head_dim).

        Returns:
            Output like the query with v_head_dim; weights and scaled logits,
            both (batch_size, num_heads, q_seq_len, kv_seq_len).
        """
        logits = (query @ key.transpose(-1, -2)) * self.scale
        weights = torch.softmax(logits, dim=-1)
        return weights @ value, weights, logits


def export_with_weights(spec: AttentionSpec, *, dtype: Dtype = Dtype.FLOAT32) -> OnnxModel:
    """Export it at the lowest opset; outputs are output_0 (output), output_1 (weights) and output_2 (logits).

    Args:
        spec: Only head_dim, v_head_dim and scale are used; the graph has one head.
        dtype: Element type of inputs and outputs.
    """
    element = getattr(torch, dtype.value)
    # All lengths differ, so that the trace does not merge two of them.
    shapes = {"query": (2, 1, 3, spec.head_dim), "key": (2, 1, 5, spec.head_dim), "value": (2, 1, 5, spec.v_head_dim)}
    sample = {name: torch.zeros(shape, dtype=element) for name, shape in shapes.items()}
    axes = dict.fromkeys(shapes, (0, 2))
    return export_module(AttentionWithWeights(spec.scale_value), sample, opset=LOWEST_OPSET, dynamic_axes=axes)
