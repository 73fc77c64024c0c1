"""Exported attention on onnxruntime, timed by pytest-benchmark: forms by lengths by d_k.

`make bench` runs the files of this folder; no default or slow run collects them, since their names begin with `bench_`.
Two runs are compared with `pytest-benchmark compare A.json B.json --group-by=fullname`. What comes of this file are
figures of one arm at a time; the ratio of two forms is `bench_forms`'.
"""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from sdpa_onnx.core.attention.roofline import attention_work
from sdpa_onnx.runtimes.base import get_runtime
from tests.benchmarks.judged import RUNTIME, THREADS, Judged, exported, judged

# 25 is the same node, which onnxruntime 1.32 expands.
_FORMS = ("decomposed-18", "attention-23", "attention-25")
_LENGTHS = (128, 512, 1024)
_HEAD_DIMS = (32, 64, 128)


def _extra_info(one: Judged) -> dict[str, object]:
    return {
        "case": one.case.case_id,
        "form": one.model.facts.form.value,
        "opset": one.model.opset,
        "runtime": get_runtime(RUNTIME).version(),
        "threads": THREADS,
        "useful_flops": attention_work(one.case).useful_flops,
        "ran": dict(one.ran.node_counts),
        "warnings": list(one.ran.warnings),
        "max_bound_ratio": one.agreement.max_bound_ratio,
    }


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("length", _LENGTHS, ids="length{}".format)
@pytest.mark.parametrize("d_k", _HEAD_DIMS, ids="d_k{}".format)
def test_attention(benchmark: BenchmarkFixture, d_k: int, length: int, form: str) -> None:
    """Eight heads, batch 1, float32: right by the oracle first, then timed with inputs and outputs bound."""
    name, _, opset = form.partition("-")
    benchmark.group = f"d_k {d_k:>3}, length {length:>4}"
    with judged(exported(d_k, name, int(opset)), length) as one:
        benchmark.extra_info.update(_extra_info(one))
        benchmark(one.call)
