"""Each node case of ONNX that fails on onnxruntime has a row of the table that fails for the same cause."""

import numpy as np
import pytest

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.core.judge.agreement import expect, judge
from sdpa_onnx.core.records.records import Conformity, Verdict
from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.runtimes.base import LoadOptions, Unsupported, get_runtime
from sdpa_onnx.workflows.conformance.row import run_row
from sdpa_onnx.workflows.conformance.table import FeatureRow, find_feature
from tests.core.attention.test_node_cases import ATOL, BFLOAT16_RTOL, RTOL, node_cases

# Failing case of onnx 1.23.2 on onnxruntime 1.32.0 -> the row that is not right either.
EXPLAINED = {
    "3d_causal_bf16": ("layout-3d", 23, Dtype.BFLOAT16),
    "4d_attn_mask_causal_bf16": ("causal-mask-float", 23, Dtype.BFLOAT16),
    "4d_causal_bf16": ("causal", 23, Dtype.BFLOAT16),
    "4d_causal_padded_kv_bf16": ("mask-short-lengths", 24, Dtype.BFLOAT16),
    "4d_padded_kv_bf16": ("mask-short-lengths", 24, Dtype.BFLOAT16),
    "4d_diff_heads_mask4d_padded_kv": ("mask-short-lengths", 24, Dtype.FLOAT32),
    "4d_with_past_and_present_qk_matmul_bias_3d_mask_causal": ("qk-mask-past-causal", 23, Dtype.FLOAT32),
    "4d_with_past_and_present_qk_matmul_bias_4d_mask_causal": ("qk-mask-past-causal", 23, Dtype.FLOAT32),
}
# Outside ONNX's tolerance by one float16 rounding, but inside the proven bound: ONNX rounds its expected values to
# float16 after every step, onnxruntime only at the end.
NO_FAULT = {"4d_causal_fp16"}


def _failing(name: str) -> bool:
    """Whether onnxruntime refuses the case or exceeds ONNX's tolerance."""
    case, runtime = node_cases()[name], get_runtime("ort-cpu")
    model = load_model(case.model)
    inputs, references = case.data_sets[0]
    feeds = {value.name: np.asarray(array) for value, array in zip(case.model.graph.input, inputs, strict=True)}
    if isinstance(runtime.supports(model), Unsupported):
        return True
    try:
        with runtime.load(model, LoadOptions()) as session:
            outputs = session.run(feeds)
    except SessionError:
        return True
    for value, array in zip(case.model.graph.output, map(np.asarray, references), strict=True):
        rtol = BFLOAT16_RTOL if array.dtype.name == "bfloat16" else RTOL
        actual, expected = outputs[value.name].astype(float), array.astype(float)
        if not np.allclose(actual, expected, rtol=rtol, atol=ATOL, equal_nan=True):
            return True
    return False


@pytest.mark.slow
def test_every_failing_node_case_has_a_row() -> None:
    """All 93 cases run; every failing one is explained by the table."""
    failing = {name.removeprefix("test_attention_") for name in node_cases() if _failing(name)}
    assert failing <= set(EXPLAINED) | NO_FAULT


@pytest.mark.parametrize(
    ("slug", "opset", "dtype"), sorted(set(EXPLAINED.values())), ids=lambda value: str(getattr(value, "value", value))
)
def test_the_row_that_explains_is_not_right(slug: str, opset: int, dtype: Dtype) -> None:
    """The row finds with its own inputs the fault that the node case shows."""
    record = run_row(FeatureRow(feature=find_feature(slug), opset=opset, dtype=dtype), get_runtime("ort-cpu"))
    assert record.verdict in (Conformity.WRONG, Conformity.REFUSED)
    assert record.reason


@pytest.mark.slow
def test_a_case_beyond_onnx_tolerance_may_be_right() -> None:
    """The float16 case differs from ONNX's values by one rounding and is inside the proven bound of the exact ones."""
    (name,) = (f"test_attention_{name}" for name in NO_FAULT)
    case = node_cases()[name]
    model = load_model(case.model)
    arrays, _ = case.data_sets[0]
    feeds = {value.name: np.asarray(array) for value, array in zip(case.model.graph.input, arrays, strict=True)}
    site = model.sites[0]
    inputs = AttentionInputs(**{field: feeds[value] for field, value in site.inputs.items()})
    with get_runtime("ort-cpu").load(model, LoadOptions()) as session:
        output = session.run(feeds)[site.output]
        precision = find_precision(session.ran().precision)
    assert judge(expect(site.spec, inputs, precision=precision), output).verdict is Verdict.OK
