"""What `inspect` finds where no figures are read."""

import onnx
import pytest
from onnx import TensorProto, helper

from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.workflows.verify.inspect_file import inspect_model
from tests.graph.models import model_of

_SIZE = ["batch_size", 2, "q_seq_len", 8]
_ATTEND = helper.make_node("Attention", ["x", "x", "x"], ["inner"], name="attend")


def _in_a_subgraph() -> onnx.ModelProto:
    result = helper.make_tensor_value_info("inner", TensorProto.FLOAT, _SIZE)
    body = helper.make_graph([_ATTEND], "body", [], [result])
    choice = helper.make_node("If", ["yes"], ["y"], name="choice", then_branch=body, else_branch=body)
    model = model_of([choice], {"x": _SIZE}, {"y": _SIZE})
    model.graph.input.append(helper.make_tensor_value_info("yes", TensorProto.BOOL, []))
    return model


def _in_a_function(*, called: bool = True) -> onnx.ModelProto:
    caller = helper.make_node("Attend" if called else "Other", ["x"], ["y"], domain="mine")
    model = model_of([caller], {"x": _SIZE}, {"y": _SIZE})
    model.opset_import.append(helper.make_opsetid("mine", 1))
    model.functions.append(
        helper.make_function("mine", "Attend", ["x"], ["inner"], [_ATTEND], [helper.make_opsetid("", 23)])
    )
    return model


def test_attention_in_a_branch_is_read() -> None:
    """It is named by its place; both branches have one of that name in the file."""
    records = inspect_model(load_model(_in_a_subgraph()), target="nested.onnx")
    assert [(record.node, record.outcome, record.reason) for record in records] == [
        ("choice/else_branch/attend", Outcome.OK, ""),
        ("choice/then_branch/attend_1", Outcome.OK, ""),
    ]


def test_attention_in_a_function_is_read() -> None:
    """Where the function is called."""
    (record,) = inspect_model(load_model(_in_a_function()), target="nested.onnx")
    assert (record.node, record.outcome, record.reason) == ("attend", Outcome.OK, "")


def test_function_that_nothing_calls_is_no_attention() -> None:
    """A function left over in the file computes nothing."""
    with pytest.raises(ModelError) as caught:
        inspect_model(load_model(_in_a_function(called=False)), target="left.onnx")
    assert str(caught.value).startswith("left.onnx has no attention in it.")
