"""The public Python API: export, convert, verify, time and tabulate attention.

Each function imports its dependencies when it is called, so `import sdpa_onnx` stays fast. The command line uses the
same workflows, but not this module. `tests/api/test_options.py` lists the parameter of each option of a command.
"""

from typing import TYPE_CHECKING

from sdpa_onnx.api.checks import conformance, saturation, verify
from sdpa_onnx.api.comparing import compare
from sdpa_onnx.api.models import convert, export, find_attention, inspect, load
from sdpa_onnx.api.record_list import RecordList
from sdpa_onnx.api.runs import SkippedKind, run
from sdpa_onnx.api.tables import TableLibrary, to_csv, to_table
from sdpa_onnx.api.timings import bench

if TYPE_CHECKING:
    from sdpa_onnx.graph.model import ModelSource as ModelSource

__all__ = [
    "RecordList",
    "SkippedKind",
    "TableLibrary",
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
