"""Names the outputs of an attention, as all judges, faults and records call them."""

from enum import StrEnum

__all__ = ["OutputRole"]


class OutputRole(StrEnum):
    """What an output of an attention is; where a value is on its node decides it, never the name of the value.

    PRESENT is onnxruntime's packed cache, (2, batch_size, kv_num_heads, total_seq_len, head_dim): key first.

    Source: the names are those of the outputs of ONNX Attention, and of com.microsoft Attention for PRESENT.
    """

    OUTPUT = "Y"
    PRESENT_KEY = "present_key"
    PRESENT_VALUE = "present_value"
    PRESENT = "present"
    QK = "qk_matmul_output"
