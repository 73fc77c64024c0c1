"""The IR version of an opset that the installed onnx does not know."""

import onnx

from sdpa_onnx.graph.ir_version import lowest_ir_version


def test_known_and_unknown_opsets() -> None:
    """A file may declare any opset: one that is newer than onnx has its newest IR version."""
    newest = onnx.defs.onnx_opset_version()
    assert lowest_ir_version(17) == 8
    assert lowest_ir_version(newest) <= onnx.IR_VERSION
    assert lowest_ir_version(newest + 1) == lowest_ir_version(2**31 - 1) == onnx.IR_VERSION
