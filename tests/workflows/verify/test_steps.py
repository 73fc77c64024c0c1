"""`verify` reports the step that it is at, of as many as there are on this runtime."""

import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.verify.verify_file import VerifyExtras, verify_file

_SPEC = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8)


@pytest.mark.parametrize("runtimes", [["ort-cpu"], ["ort-cpu", "onnx-reference"]], ids=len)
def test_steps_are_counted(runtimes: list[str]) -> None:
    """Every step once, in order, and every size; of several runtimes, which one it is, and no share of the work."""
    seen, shares = list[str](), list[float]()
    model = load_model(build_attention_model(_SPEC, opset=23, dtype=Dtype.FLOAT32))
    check = CheckOptions(sizes={"batch_size": 1, "q_seq_len": 4, "kv_seq_len": 4}, spreads=(1.0,))
    list(
        verify_file(
            model, runtimes, check, target="m", extras=VerifyExtras(on_step=seen.append, on_share=shares.append)
        )
    )
    steps = ["other sizes", "outputs", "each attention alone", "runs after runs"]
    places = [""] if len(runtimes) == 1 else [", 1 of 2 runtimes", ", 2 of 2 runtimes"]
    sizes = [step for step in seen if step.endswith(" of 8")]
    assert len(sizes) == 8 * len(runtimes)
    assert [step for step in seen if step not in sizes] == [
        f"{name}{place}: step {number} of 4, {step}"
        for name, place in zip(runtimes, places, strict=True)
        for number, step in enumerate(steps, start=1)
    ]
    assert shares == sorted(shares)
    assert len(shares) == (4 + 8 if len(runtimes) == 1 else 0)
