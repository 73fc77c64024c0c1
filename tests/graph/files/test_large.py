"""The numbers of a model are counted wherever they are kept, without being read."""

import onnx_ir as ir
import pytest
from onnx import parser

from sdpa_onnx.graph.files.large import is_large, number_bytes
from sdpa_onnx.graph.model import load_model


def _unread() -> ir.Model:
    model = load_model(
        parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 18]>
            one (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Mul (x, w) }"""
        )
    ).ir
    value = model.graph.initializers["w"]
    value.const_value = ir.LazyTensor(_fail, dtype=ir.DataType.FLOAT16, shape=ir.Shape([250_000_000]))
    return model


def _fail() -> ir.Tensor:
    pytest.fail("The numbers were read.")


def test_bytes_are_counted_unread() -> None:
    """Two bytes for each float16."""
    assert number_bytes(_unread()) == 500_000_000


@pytest.mark.parametrize(("elements", "is_it"), [(250_000_000, False), (250_000_001, True)])
def test_large_is_above_500_mb(elements: int, *, is_it: bool) -> None:
    """The limit itself is not above."""
    model = _unread()
    value = model.graph.initializers["w"]
    value.const_value = ir.LazyTensor(_fail, dtype=ir.DataType.FLOAT16, shape=ir.Shape([elements]))
    assert is_large(model) is is_it
