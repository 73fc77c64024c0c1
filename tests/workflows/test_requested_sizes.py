"""A fault that exists at one length only is found where a command is asked for that length, and only there."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import sdpa_onnx.workflows.verify.verify_file as verify_file_module
from sdpa_onnx.core.attention.roofline import Ceilings
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Subject, TimingRecord
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.pytest_plugin.agreement import find_disagreement
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.workflows.bench import bench_files
from sdpa_onnx.workflows.bench.arms import ArmChoice
from sdpa_onnx.workflows.bench.bench_files import BenchTask, prepare, time_all
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.choose_form.choose import RaceBudget
from sdpa_onnx.workflows.convert import convert_file
from sdpa_onnx.workflows.convert.convert_file import ProofOptions
from sdpa_onnx.workflows.convert.convert_for_runtime import ConversionTask, convert_fastest
from sdpa_onnx.workflows.timing.comparison import TimedComparison
from sdpa_onnx.workflows.timing.job_folder import Arm
from sdpa_onnx.workflows.verify.verify_file import verify_file
from tests.workflows.bench.test_arm_agreement import InProcess
from tests.workflows.length_fault import LENGTH, WrongAtLength

_SPEC = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8)


def _plant(monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> None:
    monkeypatch.setattr(verify_file_module, "get_runtime", lambda _: runtime)


@pytest.fixture
def bare() -> OnnxModel:
    return load_model(build_attention_model(_SPEC, opset=23, dtype=Dtype.FLOAT32))


def _wrong(model: OnnxModel, sizes: Mapping[str, int]) -> set[Subject]:
    found = list(verify_file(model, ["ort-cpu"], CheckOptions(sizes=sizes), target="t"))
    assert any(record.outcome is Outcome.OK for record in found)
    return {
        record.subject
        for record in found
        if isinstance(record, AgreementRecord) and record.outcome is Outcome.DISAGREES
    }


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True], ids=["output of the module", "attention"])
@pytest.mark.parametrize(("length", "is_found"), [(LENGTH, True), (LENGTH + 1, False), (None, False)])
def test_verify_against_a_module(
    monkeypatch: pytest.MonkeyPatch, module_model: OnnxModel, length: int | None, *, inside: bool, is_found: bool
) -> None:
    """`verify --against MODULE --size`: the attention and the outputs of the module are judged at that length."""
    assert module_model.source is not None
    _plant(monkeypatch, WrongAtLength(inside=inside))
    (axis,) = (name for name in module_model.facts.axes if name not in module_model.facts.batch_axes)
    found = _wrong(module_model, {} if length is None else {axis: length})
    expected = Subject.ATTENTION if inside else Subject.OUTPUT
    assert (expected in found) is is_found


@pytest.mark.parametrize(
    ("axis", "length", "is_found"),
    [
        ("q_seq_len", LENGTH, True),
        pytest.param("q_seq_len", LENGTH - 1, False, marks=pytest.mark.slow),
    ],
)
def test_the_pytest_fixture(
    monkeypatch: pytest.MonkeyPatch, bare: OnnxModel, axis: str, length: int, *, is_found: bool
) -> None:
    """`sdpa.assert_agrees(model, sizes=...)` judges at these sizes."""
    _plant(monkeypatch, WrongAtLength())
    found = find_disagreement(bare, "ort-cpu", sizes={axis: length}, inputs=None, seed=0)
    assert (found is not None) is is_found


@pytest.mark.parametrize("lengths", [(5, LENGTH), (LENGTH - 1,), ()])
def test_bench_at(monkeypatch: pytest.MonkeyPatch, bare: OnnxModel, tmp_path: Path, lengths: tuple[int, ...]) -> None:
    """`bench --at`: each comparison judges the arms at its own sizes; without it, at the usual ones."""
    worker = type("Wrong", (InProcess,), {"runtime": WrongAtLength(), "started": []})
    monkeypatch.setattr(bench_files, "workers_until", lambda _: worker)
    monkeypatch.setattr(bench_files, "bench", _timed)
    rates = Ceilings(gemm_flops_per_second=1e9, exps_per_second=1e9)
    monkeypatch.setattr(bench_files, "measure_ceilings", lambda **_: rates)
    task = BenchTask(
        paths=[bare.save(tmp_path / "a.onnx")],
        choice=ArmChoice(runtimes=["ort-cpu"], patience_seconds=None),
        check=CheckOptions(sizes={}),
        sizes=[{"q_seq_len": length} for length in lengths] or [{}],
    )
    results = list(time_all(prepare(task)))
    assert len(results) == max(1, len(lengths))
    assert [one.sizes["q_seq_len"] for one in results if one.numbers.warnings] == [LENGTH] * (LENGTH in lengths)
    assert [one.sizes["q_seq_len"] for one in results if one.records[0].warnings] == [LENGTH] * (LENGTH in lengths)


def _timed(arms: Sequence[Arm], check: CheckOptions, *, baseline: str, **_: object) -> TimedComparison:
    """A comparison that times nothing."""
    records = {arm.name: TimingRecord(arm=arm.name, baseline=baseline, case="case", threads=1) for arm in arms}
    return TimedComparison(records=records)


@pytest.mark.slow
@pytest.mark.parametrize(("at", "is_found"), [(LENGTH, True), (LENGTH + 1, False)])
def test_convert_at(
    monkeypatch: pytest.MonkeyPatch, module_model: OnnxModel, tmp_path: Path, at: int, *, is_found: bool
) -> None:
    """`convert --form auto --at`: the result is judged where it is timed."""
    path = module_model.save(tmp_path / "a.onnx")
    monkeypatch.setattr(convert_file, "get_runtime", lambda _: WrongAtLength(inside=False))
    (axis,) = (name for name in module_model.facts.axes if name not in module_model.facts.batch_axes)
    task = ConversionTask(path=path, output=tmp_path / "b.onnx", opset=None, proof=ProofOptions())
    done, _ = convert_fastest(task, RaceBudget(seconds=0.5), at=[{axis: at}], on_step=lambda _: None)
    assert done.proof is not None
    assert (done.path is None) is is_found
    assert done.proof.longest >= at
