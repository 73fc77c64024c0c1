"""Any axis that a runtime accepts is read: with any name, without one, and of size -1."""

import onnx
import pytest
from onnx import parser

from sdpa_onnx.core.records.records import AgreementRecord, ExportRecord, Outcome
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.verify.inspect_file import inspect_model
from sdpa_onnx.workflows.verify.verify_file import verify_file

_TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 2, L, 8] q, float[N, 2, L, 8] k, float[N, 2, L, 8] v) => (float[N, 2, L, 8] y)
<float scale = {0.35355338}>
{
    kt = Transpose <perm = [0, 1, 3, 2]> (k)
    s = MatMul (q, kt)
    scaled = Mul (s, scale)
    p = Softmax <axis = -1> (scaled)
    y = MatMul (p, v)
}
"""
_NAMES = ["p2o.DynamicDimension.0", "batch size", "1", "2*n", "a/b:c", "für", "class", "?", "", -1, None]


def named(name: str | int | None) -> onnx.ModelProto:
    """The model with another name, number or nothing for its first axis."""
    proto = parser.parse_model(_TEXT)
    for value in (*proto.graph.input, *proto.graph.output):
        dim = value.type.tensor_type.shape.dim[0]
        dim.Clear()
        if isinstance(name, int):
            dim.dim_value = name
        elif name is not None:
            dim.dim_param = name
    return proto


@pytest.mark.parametrize("name", _NAMES, ids=repr)
def test_any_axis_is_verified(name: str | int | None) -> None:
    """Every attention is judged, at several sizes of the axis."""
    model = load_model(named(name))
    (found,) = inspect_model(model, target="m.onnx")
    assert found.outcome is Outcome.OK
    assert len(found.dynamic_axes) == (4 if name in ("?", "", -1, None) else 2)
    records = list(verify_file(model, ["onnx-reference"], CheckOptions(sizes={}), target="m.onnx"))
    judged = [record for record in records if isinstance(record, AgreementRecord)]
    assert judged
    assert {record.outcome for record in judged} == {Outcome.OK}
    (axes,) = (record for record in records if isinstance(record, ExportRecord))
    assert (axes.outcome, axes.baked) == (Outcome.OK, ())
    assert axes.sizes_tried is not None
    assert axes.sizes_tried > 3


def test_axes_of_unknown_size_are_not_equal() -> None:
    """paddle2onnx calls every axis that it does not know "?"; two of them may differ."""
    proto = named("?")
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "?"
    model = load_model(proto)
    (found,) = inspect_model(model, target="m.onnx")
    assert found.dynamic_axes == ("q_axis0", "q_axis2", "k_axis0", "L", "v_axis0")
