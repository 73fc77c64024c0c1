"""Exported attention on onnxruntime, timed by pytest-benchmark: forms by lengths by d_k.

`make bench` runs this file; no default or slow run collects it, since its name begins with `bench_`. Two runs are
compared with `pytest-benchmark compare A.json B.json --group-by=fullname`. What comes of it are figures of one arm at
a time: for a verdict on a ratio use `sdpa-onnx bench`, which interleaves its arms.
"""

from functools import cache

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from sdpa_onnx.core.agreement import Agreement, expect, judge
from sdpa_onnx.core.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.precision import find_precision
from sdpa_onnx.core.records import Verdict
from sdpa_onnx.core.roofline import attention_work
from sdpa_onnx.core.spec import AttentionCase, AttentionSpec
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Purpose, Session, get_runtime
from sdpa_onnx.torch_export.exporter import export_spec
from sdpa_onnx.workflows.checked import form_of

_RUNTIME = "ort-cpu"
_THREADS = 1
_SEED = 0

# 25 is the same node, which onnxruntime 1.32 expands.
_FORMS = {"decomposed-18": 18, "attention-23": 23, "attention-25": 25}
_LENGTHS = (128, 512, 1024)
_HEAD_DIMS = (32, 64, 128)


@cache
def _exported(head_dim: int, opset: int) -> OnnxModel:
    """One graph serves every length."""
    spec = AttentionSpec(q_num_heads=8, kv_num_heads=8, head_dim=head_dim)
    return export_spec(spec, opset=opset, form="attention" if opset >= 23 else "decomposed")


def _judged(case: AttentionCase, inputs: AttentionInputs, session: Session) -> Agreement:
    """One run of the session that is timed afterwards, against the oracle."""
    output = session.run(inputs.onnx_feeds())["Y"]
    expectation = expect(case.spec, inputs, precision=find_precision(session.ran().precision), seed=_SEED)
    return judge(expectation, output)


def _extra_info(case: AttentionCase, model: OnnxModel, session: Session, agreement: Agreement) -> dict[str, object]:
    ran = session.ran()
    return {
        "case": case.case_id,
        "form": form_of(model),
        "opset": model.opset,
        "runtime": get_runtime(_RUNTIME).version(),
        "threads": _THREADS,
        "useful_flops": attention_work(case).useful_flops,
        "ran": dict(ran.node_counts),
        "warnings": list(ran.warnings),
        "max_bound_ratio": agreement.max_bound_ratio,
    }


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("length", _LENGTHS, ids="length{}".format)
@pytest.mark.parametrize("d_k", _HEAD_DIMS, ids="d_k{}".format)
def test_attention(benchmark: BenchmarkFixture, d_k: int, length: int, form: str) -> None:
    """Eight heads, batch 1, float32: right by the oracle first, then timed with inputs and outputs bound."""
    model = _exported(d_k, _FORMS[form])
    case = AttentionCase(spec=model.sites[0].spec, q_seq_len=length)
    inputs = draw_inputs(case, seed=_SEED)
    benchmark.group = f"d_k {d_k:>3}, length {length:>4}"
    options = LoadOptions(threads=_THREADS, purpose=Purpose.TIMING)
    with get_runtime(_RUNTIME).load(model, options) as session:
        agreement = _judged(case, inputs, session)
        assert agreement.verdict is Verdict.OK, agreement.diagnosis
        benchmark.extra_info.update(_extra_info(case, model, session, agreement))
        benchmark(session.bind(inputs.onnx_feeds()))
