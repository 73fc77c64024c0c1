"""Files of opset 7 to 12 are converted: the graph is raised as far as the form needs, and computes the same."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.workflows.convert.convert_file import prove_converted
from sdpa_onnx.workflows.convert.convert_model import convert_model

_TEXT = """
<ir_version: 4, opset_import: ["" : %d]>
g (float[N, L, 12] x) => (float[N, L, 12] y)
<float[12, 12] w, int64[4] split = {0, 0, 3, 4}, int64[3] joined = {0, 0, 12}, float scale = {0.5}>
{
    a = MatMul (x, w)
    %s
    rq = Reshape (b, split)
    rk = Reshape (a, split)
    q = Transpose <perm = [0, 2, 1, 3]> (rq)
    k = Transpose <perm = [0, 2, 3, 1]> (rk)
    v = Transpose <perm = [0, 2, 1, 3]> (rk)
    s = MatMul (q, k)
    d = Mul (s, scale)
    p = Softmax <axis = 3> (d)
    o = MatMul (p, v)
    t = Transpose <perm = [0, 2, 1, 3]> (o)
    j = Reshape (t, joined)
    %s
}
"""
# Opset, nodes before and after: operators of which inputs and attributes were changed since.
_FILES = {
    "clip": (7, "b = Clip <min = -1.0, max = 1.0> (a)", "y = Identity (j)"),
    "slice": (9, "c = Slice <axes = [2], starts = [0], ends = [12]> (a)  b = Dropout (c)", "y = Neg (j)"),
    "mean": (10, "m = ReduceMean <axes = [-1]> (a)  b = Sub (a, m)", "z = ReduceSum <axes = [1]> (j)  y = Add (j, z)"),
    "softmax": (11, "b = Softmax <axis = 1> (a)", "y = Softmax <axis = 2> (j)"),
    "squeeze": (12, "u = Unsqueeze <axes = [0]> (a)  b = Squeeze <axes = [0]> (u)", "y = Relu (j)"),
}


def old_file(name: str) -> onnx.ModelProto:
    """A model of that opset, with weights."""
    proto = parser.parse_model(_TEXT % _FILES[name])
    weights = np.random.default_rng(7).standard_normal((12, 12)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return proto


@pytest.mark.parametrize(
    ("name", "form"),
    [*((name, Form.ATTENTION) for name in _FILES), ("clip", Form.ORT_MHA), ("softmax", Form.BLOCKED)],
)
def test_an_old_file_is_converted(name: str, form: Form) -> None:
    """The result has the opset that the form needs, is proved, and gives the outputs of the file itself."""
    source = old_file(name)
    done = convert_model(load_model(source), form)
    assert done.converted, done.refused
    assert done.model.opset == (23 if form is Form.ATTENTION else 13)
    proof = prove_converted(done, target=name)
    assert proof.is_right, [record.reason for record in proof.records if record.reason]
    sessions = [
        ort.InferenceSession(data, providers=["CPUExecutionProvider"])
        for data in (source.SerializeToString(), done.model.to_bytes())
    ]
    for batch, length in ((1, 1), (2, 7), (3, 40)):
        x = np.random.default_rng(length).standard_normal((batch, length, 12)).astype(np.float32)
        (before,), (after,) = (session.run(None, {"x": x}) for session in sessions)
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)
