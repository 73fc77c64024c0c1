"""Benchmarks of files: sizes, arms and baselines in, one comparison for each size set out."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from sdpa_onnx.core.attention.roofline import Ceilings
from sdpa_onnx.core.records.records import TimingRecord
from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.bench import bench_files
from sdpa_onnx.workflows.bench.arm_agreement import ArmAgreement
from sdpa_onnx.workflows.bench.arms import ArmChoice
from sdpa_onnx.workflows.bench.bench_files import BenchResult, BenchTask, prepare, time_all
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.requested_sizes import timed_sizes
from sdpa_onnx.workflows.timing.comparison import CLONE, TimedComparison
from sdpa_onnx.workflows.timing.job_folder import Arm


@pytest.fixture
def files(tmp_path: Path, bare_model: OnnxModel, decomposed_model: OnnxModel) -> list[Path]:
    return [bare_model.save(tmp_path / "fused.onnx"), decomposed_model.save(tmp_path / "plain.onnx")]


def _task(files: Sequence[Path], **more: object) -> BenchTask:
    found = {"choice": ArmChoice(runtimes=["ort-cpu"]), "check": CheckOptions(sizes={}), **more}
    return BenchTask(paths=files, **found)  # type: ignore[arg-type]


def test_sizes_that_are_not_given_are_usual(files: list[Path]) -> None:
    """Given sizes are kept; batch 1 and length 512 are the defaults for the others."""
    (check,) = prepare(_task(files[:1], sizes=({"kv_seq_len": 4},))).checks
    assert check.sizes == {"batch_size": 1, "q_seq_len": 512, "kv_seq_len": 4}
    assert (check.spreads, check.threads) == ((1.0,), 1)


def test_keys_follow_the_queries(files: list[Path]) -> None:
    """The key length equals the query length unless it is named too."""
    checks = prepare(_task(files[:1], sizes=({"q_seq_len": 4}, {"q_seq_len": 1, "kv_seq_len": 9}))).checks
    assert [(one.sizes["q_seq_len"], one.sizes["kv_seq_len"]) for one in checks] == [(4, 4), (1, 9)]


def test_sizes_of_given_inputs_are_theirs(files: list[Path]) -> None:
    """Given inputs decide the sizes of records and roofs."""
    shapes = {"Q": (2, 4, 3, 8), "K": (2, 2, 7, 8), "V": (2, 2, 7, 6)}
    given = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    (check,) = prepare(_task(files[:1], check=CheckOptions(sizes={}, inputs=given))).checks
    assert check.sizes == {"batch_size": 2, "q_seq_len": 3, "kv_seq_len": 7}


def test_comparisons_at_the_same_sizes(files: list[Path]) -> None:
    """Sizes that are equal only after the defaults are filled in are refused too."""
    same = ({"q_seq_len": 4}, {"q_seq_len": 4, "kv_seq_len": 4})
    with pytest.raises(PlanError) as caught:
        prepare(_task(files[:1], sizes=same))
    assert str(caught.value) == (
        "Two comparisons would be at the same sizes, batch_size=1, q_seq_len=4, kv_seq_len=4. Omit one --at."
    )


def test_file_that_is_called_like_the_clone(files: list[Path]) -> None:
    """Its name is reserved; the error comes before anything is judged or timed."""
    files[1] = files[1].rename(files[1].with_name(CLONE))
    with pytest.raises(PlanError) as caught:
        prepare(_task(files))
    assert str(caught.value) == f"No arm can be called '{CLONE}': every comparison has one. Choose another name."


def test_axis_that_is_not_there(bare_model: OnnxModel) -> None:
    """The error for a wrong axis lists the right ones."""
    with pytest.raises(PlanError) as caught:
        timed_sizes(bare_model, {"seq": 3})
    assert str(caught.value) == "The model has no axis 'seq'. It has batch_size, q_seq_len, kv_seq_len."


def _refused(files: Sequence[Path]) -> str:
    with pytest.raises(PlanError) as caught:
        prepare(_task(files))
    return str(caught.value)


def test_one_file_twice(files: list[Path]) -> None:
    """A file is not compared with itself, however its path is written."""
    assert _refused([files[0], files[0].parent / ".." / files[0].parent.name / "fused.onnx"]) == (
        "The same file is given twice."
    )


def test_files_with_other_inputs(files: list[Path], module_model: OnnxModel, tmp_path: Path) -> None:
    """Only files with the same inputs can be compared."""
    other = module_model.save(tmp_path / "module.onnx")
    assert _refused([files[0], other]).endswith(
        "fused.onnx has Q, K, V. Only models with the same inputs can be compared."
    )


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[CheckOptions]:
    """Comparisons that time nothing; the requested checks, in order."""
    requested: list[CheckOptions] = []

    def fake(arms: Sequence[Arm], check: CheckOptions, *, baseline: str, **_: object) -> TimedComparison:
        requested.append(check)
        records = {
            arm.name: TimingRecord(
                arm=arm.name, baseline=baseline, case=f"case of {arm.name}", threads=arm.threads or 1
            )
            for arm in arms
        }
        return TimedComparison(records=records)

    monkeypatch.setattr(bench_files, "bench", fake)
    monkeypatch.setattr(
        bench_files, "measure_ceilings", lambda **_: Ceilings(gemm_flops_per_second=1e9, exps_per_second=1e9)
    )
    monkeypatch.setattr(
        bench_files,
        "judge_numbers",
        lambda arms, *_, **__: ArmAgreement(warnings={arms[-1].name: ("Numbers wrong: so.",)}),
    )
    return requested


def _benched(task: BenchTask) -> Iterator[BenchResult]:
    return time_all(prepare(task))


def test_comparisons_come_one_by_one(files: list[Path], timed: list[CheckOptions]) -> None:
    """Each size set is a comparison, yielded before the next starts, so that a stop loses only one."""
    found = _benched(_task(files, sizes=({"q_seq_len": 4}, {"q_seq_len": 8})))
    assert next(found).sizes["q_seq_len"] == 4
    assert len(timed) == 1
    assert next(found).sizes["q_seq_len"] == 8


def test_arms_of_one_comparison_are_one_group(files: list[Path], timed: list[CheckOptions]) -> None:
    """Files with differently read attention are still one comparison: that of the baseline's case."""
    (found,) = _benched(_task(files, baseline="plain.onnx"))
    assert [(one.arm, one.case, one.group) for one in found.records] == [
        ("fused.onnx", "case of plain.onnx", "case of plain.onnx"),
        ("plain.onnx", "case of plain.onnx", "case of plain.onnx"),
    ]


def test_wrong_numbers_stand_on_the_record(files: list[Path], timed: list[CheckOptions]) -> None:
    """The timing record of an arm has a warning that its outputs are wrong."""
    (found,) = _benched(_task(files))
    assert [one.warnings for one in found.records] == [(), ("Numbers wrong: so.",)]
