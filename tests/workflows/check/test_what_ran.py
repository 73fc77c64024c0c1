"""What a session says that it ran stands on the records, of agreement and of time."""

import pytest

from sdpa_onnx.core.records.records import AgreementRecord, TimingRecord
from sdpa_onnx.core.timing.paired import StoppingLook
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.measure.timing_plan import TimingPlan
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.timing.comparison import Arm, bench
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model
from tests.runtimes.models import Problem, decomposed, model

CHECK = CheckOptions(sizes={"batch": 1, "q_len": 4, "kv_len": 4}, spreads=(1.0,))
# Kept, expanded, and expanded with float32 nodes for float16 ones.
PROBLEMS = {
    "kept": Problem(),
    "expanded": Problem(opset=25),
    "widened": Problem(opset=25, dtype="float16"),
}


def told(record: AgreementRecord | TimingRecord) -> tuple[object, ...]:
    return record.ran, record.expanded, record.fused, record.providers, record.warnings


def timed(loaded: OnnxModel) -> TimingRecord:
    comparison = bench(
        [Arm(name="arm", model=loaded, runtime=get_runtime("ort-cpu"))],
        CHECK,
        target="test",
        baseline="arm",
        plan=TimingPlan(
            looks=(StoppingLook(launches=1, alpha=0.01),), blocks=2, visit_seconds=0.001, least_blocks=2, extras=False
        ),
    )
    return comparison.records["arm"]


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_records_carry_what_ran(problem: Problem) -> None:
    """Nodes, expansions, fusions, providers and warnings are copied, none is lost on the way."""
    loaded, runtime = model(problem), get_runtime("ort-cpu")
    with runtime.load(loaded, LoadOptions()) as session:
        report: RanReport = session.ran()
    expected = (report.node_counts, report.expanded, report.fused, report.providers, report.warnings)
    assert bool(report.expanded) == (problem.opset == 25)
    (checked,) = check_model(loaded, runtime, CHECK, target="test", expectations=ExpectationCache())
    assert told(checked) == expected
    assert told(timed(loaded)) == expected


def test_a_timing_carries_what_was_fused() -> None:
    """The product with the transposed key is one operator of ONNX Runtime's own."""
    record = timed(decomposed())
    assert record.fused == {"FusedMatMul": 1}
    assert (record.expanded, record.providers) == ({}, {"CPUExecutionProvider": 3})
