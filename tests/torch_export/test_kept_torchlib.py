"""torch.onnx gets onnxscript's operators from the first export of a process; the graphs stay the same."""

import sys
from types import ModuleType

import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.torch_export.kept_torchlib import kept_torchlib
from sdpa_onnx.workflows.export.export_target import export_target

_NAME = "onnxscript._framework_apis.torch_0_0"


def _module(monkeypatch: pytest.MonkeyPatch, reads: list[str]) -> ModuleType:
    """A module like onnxscript's, which notes each time that it reads its operators."""
    module = ModuleType(_NAME)

    def get_torchlib_ops() -> list[str]:
        reads.append("read")
        return ["aten::add", "aten::mul"]

    vars(module)["get_torchlib_ops"] = get_torchlib_ops
    monkeypatch.setitem(sys.modules, _NAME, module)
    return module


def test_operators_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each export gets a list of its own, and outside an export the function is the original."""
    reads: list[str] = []
    module = _module(monkeypatch, reads)
    original = module.get_torchlib_ops
    for _ in range(3):
        with kept_torchlib():
            found = module.get_torchlib_ops()
        assert found == ["aten::add", "aten::mul"]
        found.clear()
    assert reads == ["read"]
    assert module.get_torchlib_ops is original


def test_function_is_restored_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export that fails leaves onnxscript as it was."""
    module = _module(monkeypatch, [])
    original = module.get_torchlib_ops
    with pytest.raises(ValueError, match="translation"), kept_torchlib():
        raise ValueError("translation")
    assert module.get_torchlib_ops is original


@pytest.mark.slow
def test_graphs_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export with operators that are read anew equals one with those that were kept, byte by byte."""
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=1, head_dim=8, is_causal=True)
    kept = [_graph(spec, opset) for opset in (18, 23, 18)]
    monkeypatch.setattr("sdpa_onnx.torch_export.kept_torchlib._MODULES", "no module has this name")
    assert [_graph(spec, opset) for opset in (18, 23, 18)] == kept


def _graph(spec: AttentionSpec, opset: int) -> bytes:
    return export_target(spec, opset=opset, form=None, dtype=Dtype.FLOAT32).to_bytes()
