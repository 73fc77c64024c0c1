"""Converting a file of many attentions: the work for each does not grow with the file."""

import sys
from types import FrameType

import onnx
import pytest
from onnx import helper

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.workflows.convert.convert_model import convert_model
from tests.graph.models import model_of

# Nodes between two attentions.
_BETWEEN = 20
# Four times the attentions need four times the calls; a part that looks through the whole file each time, up to 16.
_MOST = 5.0


def _chain(attentions: int) -> onnx.ModelProto:
    nodes, value = [], "Q"
    for number in range(attentions):
        nodes.append(helper.make_node("Attention", [value, "K", "V"], [f"a{number}"], name=f"attention{number}"))
        value = f"a{number}"
        for step in range(_BETWEEN):
            nodes.append(helper.make_node("Neg", [value], [f"n{number}.{step}"], name=f"neg{number}.{step}"))
            value = f"n{number}.{step}"
    size: list[int | str | None] = ["batch_size", 2, "seq_len", 8]
    return model_of(nodes, dict.fromkeys("QKV", size), {value: size}, opset=23)


def _calls(attentions: int) -> int:
    """Calls of Python functions while a file is converted."""
    model = load_model(_chain(attentions))
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(counted)
    try:
        done = convert_model(model, Form.DECOMPOSED)
    finally:
        sys.setprofile(None)
    assert len(done.converted) == attentions
    return count


@pytest.mark.slow
def test_linear() -> None:
    """Four times as many attentions in a file of four times the size."""
    assert _calls(80) / _calls(20) < _MOST
