"""A function replaced for a block: back on every exit, in every order, as it was stored."""

import contextlib
import math

import pytest

from sdpa_onnx.torch_export.baked import record_baked_sizes
from sdpa_onnx.torch_export.replace_function import replaced
from sdpa_onnx.torch_export.scale_by_size import sizes_as_tensors


class _Base:
    @staticmethod
    def name() -> str:
        return "base"


class _Child(_Base):
    pass


def test_restored_after_nested_blocks() -> None:
    """The inner block gives the outer replacement back, the outer one the original."""
    original = math.sqrt
    with replaced(math, "sqrt", lambda _: 1.0):
        with replaced(math, "sqrt", lambda _: 2.0):
            assert math.sqrt(9.0) == 2.0
        assert math.sqrt(9.0) == 1.0
    assert math.sqrt is original


def test_restored_after_an_exception() -> None:
    """An exception passes, and the original is back."""
    original = math.sqrt
    with pytest.raises(ValueError, match="inside"), replaced(math, "sqrt", lambda _: 1.0):
        raise ValueError("inside")
    assert math.sqrt is original


def test_stored_form_is_kept() -> None:
    """A static method is one again afterwards; what a class inherits does not become its own."""
    stored = vars(_Base)["name"]
    with replaced(_Base, "name", lambda: "other"), replaced(_Child, "name", lambda: "child"):
        assert (_Base.name(), _Child.name()) == ("other", "child")
    assert vars(_Base)["name"] is stored
    assert "name" not in vars(_Child)
    assert _Child().name() == "base"


def test_no_trace_of_an_export_is_left() -> None:
    """What the exporter replaces in torch and in `math` is back, also when its block raises."""
    from torch.fx.experimental.sym_node import SymNode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    places = [(ShapeEnv, "_set_replacement"), (SymNode, "guard_float"), (math, "log"), (math, "sqrt")]
    before = [vars(owner)[name] for owner, name in places]
    with contextlib.suppress(KeyError), record_baked_sizes(), sizes_as_tensors():
        assert all(vars(owner)[name] is not old for (owner, name), old in zip(places, before, strict=True))
        raise KeyError
    assert [vars(owner)[name] for owner, name in places] == before
