"""What `inspect` reads, `verify` judges; what is not read has a reason."""

import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.records.records import AgreementRecord, Outcome
from sdpa_onnx.graph.model import SITES_KEY, OnnxModel, load_model
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.lifted_model import lift, with_lifted_sites
from sdpa_onnx.workflows.export.export_target import export_target
from sdpa_onnx.workflows.verify.inspect_file import inspect_model
from sdpa_onnx.workflows.verify.verify_file import verify_file


def _without_sites(spec: AttentionSpec) -> OnnxModel:
    """A file of ours whose metadata lists no attention, as for a module that calls no attention function."""
    proto = export_target(spec, opset=18, form="decomposed", dtype=Dtype.FLOAT32).to_proto()
    (entry,) = [one for one in proto.metadata_props if one.key == SITES_KEY]
    entry.value = "[]"
    return load_model(proto)


@pytest.mark.parametrize(
    "spec",
    [
        AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4),
        AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4, is_causal=True),
    ],
    ids=["plain", "causal"],
)
def test_attention_that_only_the_graph_shows_is_judged(spec: AttentionSpec) -> None:
    """One that is read is judged by its bound, one that is not has a reason; neither is passed over."""
    model = _without_sites(spec)
    read = [one for one in inspect_model(model, target="t") if one.outcome is Outcome.OK]
    assert all(found.reason for found in lift(model).found if found.attention is None)
    assert read
    assert len(with_lifted_sites(model).model.sites) == len(read)
    found = list(verify_file(model, ["ort-cpu"], CheckOptions(sizes={}, spreads=(1.0,)), target="t"))
    judged = [one for one in found if isinstance(one, AgreementRecord) and one.judged_rows > 0]
    assert judged
    assert {one.outcome for one in judged} == {Outcome.OK}
