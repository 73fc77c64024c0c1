"""Sizes that a user requests mean the same for every command: as many keys as queries, unless they are named."""

import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.workflows.check.requested_sizes import timed_sizes, with_key_length
from sdpa_onnx.workflows.verify.axis_links import complete_sizes


def _model(*, has_past: bool = False) -> OnnxModel:
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4, has_past=has_past)
    return load_model(build_attention_model(spec, opset=23, dtype=Dtype.FLOAT32))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (1, 512, 512)),
        ({"q_seq_len": 64}, (1, 64, 64)),
        ({"kv_seq_len": 64}, (1, 512, 64)),
        ({"q_seq_len": 1, "kv_seq_len": 9}, (1, 1, 9)),
        ({"batch_size": 3, "q_seq_len": 7}, (3, 7, 7)),
    ],
)
def test_timed_sizes(given: dict[str, int], expected: tuple[int, ...]) -> None:
    """The key length follows the query length, and nothing else follows anything."""
    assert timed_sizes(_model(), given) == dict(zip(("batch_size", "q_seq_len", "kv_seq_len"), expected, strict=True))


def test_a_cache_has_its_own_length() -> None:
    """New keys are as many as queries; cached ones have the usual length."""
    found = timed_sizes(_model(has_past=True), {"q_seq_len": 2})
    assert found == {"batch_size": 1, "q_seq_len": 2, "kv_seq_len": 2, "past_seq_len": 512}


def test_a_proof_reads_them_alike() -> None:
    """`verify --size q_seq_len=64` has 64 keys; without a request no two lengths are alike."""
    facts = _model().facts
    found = complete_sizes(facts, {}, {"q_seq_len": 64})
    assert (found["q_seq_len"], found["kv_seq_len"]) == (64, 64)
    chosen = complete_sizes(facts, {}, {})
    assert chosen["q_seq_len"] != chosen["kv_seq_len"]


def test_other_names_are_independent() -> None:
    """Without an axis for the keys nothing is added."""
    facts = load_model(
        build_attention_model(AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=4), opset=23, dtype=Dtype.FLOAT32)
    ).facts
    assert with_key_length(facts, {"batch_size": 2}) == {"batch_size": 2}
    with pytest.raises(PlanError, match="The model has no axis 'x_seq_len'"):
        timed_sizes(_model(), {"x_seq_len": 3})
