"""The cache that an attention gives back is judged too."""

import numpy as np
import pytest

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.core.judge.attention_outputs import judge_attention_outputs
from sdpa_onnx.core.records.records import Verdict
from sdpa_onnx.torch_export.exporter import export_spec
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.verify.verify_model import verify

_SIZES = {"batch_size": 2, "q_seq_len": 3, "kv_seq_len": 3, "past_seq_len": 5}


@pytest.mark.parametrize("layout", list(Layout))
def test_cache_of_a_right_runtime_is_ok(layout: Layout) -> None:
    """Past and new keys in a row pass, in both layouts, and have records of their own."""
    spec = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8, has_past=True, layout=layout)
    records = list(verify(export_spec(spec), ["ort-cpu"], [CheckOptions(sizes=_SIZES, spreads=(1.0,))]))
    assert [(record.site, record.verdict) for record in records] == [
        ("sdpa", Verdict.OK),
        ("present_key", Verdict.OK),
        ("present_value", Verdict.OK),
    ]


@pytest.mark.parametrize("fault", ["order", "last", "rounded"])
def test_wrong_cache_is_called_wrong(fault: str) -> None:
    """New keys before the past, the last key lost and kept twice, or a key rounded: each is wrong."""
    rng = np.random.default_rng(0)
    past, new = (rng.standard_normal((1, 2, length, 4)).astype(np.float32) for length in (5, 3))
    inputs = AttentionInputs(query=new, key=new, value=new, past_key=past, past_value=past)
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4, has_past=True)
    right = np.concatenate([past, new], axis=2)
    wrong = {
        "order": np.concatenate([new, past], axis=2),
        "last": np.concatenate([right[:, :, :-1], right[:, :, -2:-1]], axis=2),
        "rounded": right.astype(np.float16).astype(np.float32),
    }[fault]
    outputs = {OutputRole.PRESENT_KEY: wrong, OutputRole.PRESENT_VALUE: right}
    found = judge_attention_outputs(spec, inputs, outputs, precision=find_precision("float32"))
    assert found[OutputRole.PRESENT_KEY].verdict is Verdict.WRONG
    different = {"order": 64, "last": 8, "rounded": 64}[fault]
    says = f"present_key is not the past followed by the new entries: {different} of 64 elements differ."
    assert found[OutputRole.PRESENT_KEY].diagnosis == says
    assert found[OutputRole.PRESENT_VALUE].verdict is Verdict.OK
