"""Graphs that several tests use, exported once."""

import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.torch_export.exporter import export_module
from sdpa_onnx.workflows.export.export_target import export_target
from tests.workflows.user_modules import SelfAttention, hidden, seeded

SPEC = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8, v_head_dim=6, is_causal=True)


@pytest.fixture(scope="session")
def bare_model() -> OnnxModel:
    return export_target(SPEC, opset=23, form="attention", dtype=Dtype.FLOAT32)


@pytest.fixture(scope="session")
def decomposed_model() -> OnnxModel:
    return export_target(SPEC, opset=18, form="decomposed", dtype=Dtype.FLOAT32)


@pytest.fixture(scope="session")
def module_model() -> OnnxModel:
    return export_module(seeded(SelfAttention), (hidden(),), opset=23)


@pytest.fixture(scope="session")
def founding_model() -> OnnxModel:
    return export_target("encoder-self", opset=23, form="attention", dtype=Dtype.FLOAT32)
