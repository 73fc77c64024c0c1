"""Sizes at which an attention has no element prove nothing, and are not chosen."""

from onnx import parser

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.workflows.convert.convert_file import prove_converted
from sdpa_onnx.workflows.convert.convert_model import convert_model

_TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 2, L, 8] x) => (float[N, 2, M, 8] y)
<int64[1] zero = {0}, int64[1] two = {2}, int64[1] most = {100000}, float scale = {0.5}>
{
    q = Slice (x, two, most, two)
    kt = Transpose <perm = [0, 1, 3, 2]> (q)
    s = MatMul (q, kt)
    scaled = Mul (s, scale)
    p = Softmax <axis = -1> (scaled)
    y = MatMul (p, q)
}
"""


def test_a_length_that_leaves_no_key_is_not_chosen() -> None:
    """The first two rows are cut off: at lengths 1 and 2 there is no attention."""
    done = convert_model(load_model(parser.parse_model(_TEXT)), Form.ATTENTION)
    proof = prove_converted(done, target="short.onnx")
    assert proof.is_right, [record.reason for record in proof.records if record.reason]
    assert min(sizes["L"] for sizes in proof.sizes) > 2
