"""The arm of torch.compile: what it needs, and how a compiler that fails is reported."""

import numpy as np
import pytest
import torch

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import LoadOptions, Supported, Unsupported, runtime_names
from sdpa_onnx.runtimes.torch_compiled import TORCH_COMPILE, CompiledTorch, module_runtime


@pytest.fixture
def bare_model() -> OnnxModel:
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4)
    return load_model(build_attention_model(spec, opset=23, dtype=Dtype.FLOAT32))


def test_a_compiler_is_needed(monkeypatch: pytest.MonkeyPatch, bare_model: OnnxModel) -> None:
    """Without one the arm is unsupported, with what to install; with one it supports what torch does."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert CompiledTorch().supports(bare_model) == Unsupported(
        "torch.compile needs a C++ compiler, and there is no 'no-such-compiler': install one, or name it in CXX"
    )
    monkeypatch.setenv("CXX", "sh")
    assert CompiledTorch().supports(bare_model) == Supported()


def test_it_is_no_registered_runtime() -> None:
    """`--runtime all` does not compile; only `bench` knows the name."""
    assert TORCH_COMPILE not in runtime_names()
    assert isinstance(module_runtime(TORCH_COMPILE), CompiledTorch)
    assert module_runtime("torch").name == "torch"


def test_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, bare_model: OnnxModel) -> None:
    """The first line of its error that says something is the reason."""

    def failing(_: object) -> object:
        def call(*_: object, **__: object) -> None:
            raise RuntimeError("backend='inductor' raised:\n\nCppCompileError: no header.\nSet TORCH_LOGS.")

        return call

    monkeypatch.setattr(torch, "compile", failing)
    monkeypatch.setenv("CXX", "sh")
    inputs = {name: np.zeros((1, 2, 3, 4), np.float32) for name in bare_model.input_names}
    with CompiledTorch().load(bare_model, LoadOptions(threads=1)) as session, pytest.raises(SessionError) as raised:
        session.bind(inputs)
    assert str(raised.value) == "torch.compile failed: CppCompileError: no header."
