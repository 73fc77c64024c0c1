"""Export attention from PyTorch to ONNX, verify it against a float64 oracle, time it, and report the results.

Imports nothing heavy: torch, onnx and onnxruntime are imported when they are needed.
"""

from sdpa_onnx.api import (
    RecordList,
    bench,
    compare,
    conformance,
    convert,
    export,
    find_attention,
    inspect,
    load,
    run,
    saturation,
    to_csv,
    to_table,
    verify,
)
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, Layout, MaskKind, ScaleRule
from sdpa_onnx.version import __version__

__all__ = [
    "AttentionCase",
    "AttentionSpec",
    "Dtype",
    "Layout",
    "MaskKind",
    "RecordList",
    "ScaleRule",
    "__version__",
    "bench",
    "compare",
    "conformance",
    "convert",
    "export",
    "find_attention",
    "inspect",
    "load",
    "run",
    "saturation",
    "to_csv",
    "to_table",
    "verify",
]
