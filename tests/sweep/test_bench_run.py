"""A comparison as a run folder: what `report` and `compare` read from it."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from sdpa_onnx.core.records.records import AgreementRecord, Outcome, TimingRecord
from sdpa_onnx.core.timing.paired import Calibration
from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.measure.timing_plan import TimingPlan
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.sweep.bench_run import BenchRun
from sdpa_onnx.sweep.store import read_run
from sdpa_onnx.workflows.bench.arm_agreement import ArmAgreement
from sdpa_onnx.workflows.bench.arms import ArmChoice, ArmSet
from sdpa_onnx.workflows.bench.bench_files import BenchResult, BenchTask, PreparedBench
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.timing.job_folder import Arm
from tests.graph.models import product
from tests.report.synthetic_bench import BASELINE, benched, timing

_REFUSED = TimingRecord(arm="ort-gqa", outcome=Outcome.UNSUPPORTED, reason="It has no such mask.")


@pytest.fixture
def prepared() -> PreparedBench:
    """Two lengths and one refused arm."""
    model: OnnxModel = load_model(product())
    runtime = get_runtime("ort-cpu")
    arms = tuple(Arm(name=name, model=model, runtime=runtime) for name in (BASELINE, "ort-cpu"))
    sizes = ({"batch_size": 1, "q_seq_len": n, "kv_seq_len": n} for n in (128, 256))
    plan = TimingPlan(calibration=Calibration(between_sd=0.003, degrees=21.0, machine="here"))
    return PreparedBench(
        task=BenchTask(paths=[Path("m.onnx")], choice=ArmChoice(), check=CheckOptions(sizes={}, seed=7), plan=plan),
        contest=ArmSet(arms=arms, refused=(_REFUSED,), warnings={}),
        checks=tuple(CheckOptions(sizes=one) for one in sizes),
        baseline=BASELINE,
        target="files",
    )


def _compared(length: int, *, numbers: ArmAgreement | None = None) -> BenchResult:
    return benched(
        timing(BASELINE, length=length), timing("ort-cpu", 0.8, length=length), length=length, numbers=numbers
    )


def test_whole_run(tmp_path: Path, prepared: PreparedBench) -> None:
    """Records in order with their cells, raw samples, and the environment."""
    judged = AgreementRecord(target="files, ort-cpu", runtime="ort-cpu")
    with BenchRun(tmp_path / "run", prepared, command="sdpa-onnx bench m.onnx") as run:
        run.add(_compared(128, numbers=ArmAgreement(records=(judged,))))
        run.add(_compared(256))
        run.finish()
    header, records = read_run(tmp_path / "run")
    assert (header.suite, header.command, header.seed) == ("bench", "sdpa-onnx bench m.onnx", 7)
    assert header.calibration == {"between_sd": 0.003, "degrees": 21.0}
    assert (header.planned_cells, header.done_cells, header.is_finished) == (3, 3, True)
    assert [type(record).__name__[:6] for record in records] == ["Timing", "Agreem", *["Timing"] * 4]
    assert len({record.cell for record in records}) == len(records)
    last = records[-1]
    assert isinstance(last, TimingRecord)
    with np.load(tmp_path / "run" / last.samples) as samples:
        assert samples["wall_seconds"].shape == samples["cpu_seconds"].shape == (4, 12, 2)


def test_stopped_run_keeps_what_has_ended(tmp_path: Path, prepared: PreparedBench) -> None:
    """A run that was stopped is readable and marked as incomplete."""
    with BenchRun(tmp_path / "run", prepared, command="") as run:
        run.add(_compared(128))
    header, records = read_run(tmp_path / "run")
    assert (header.is_finished, header.done_cells, len(records)) == (False, 2, 3)


def test_folder_that_holds_a_run(tmp_path: Path, prepared: PreparedBench) -> None:
    """Nothing is written over."""
    with BenchRun(tmp_path / "run", prepared, command=""):
        pass
    with pytest.raises(PlanError) as caught:
        BenchRun(tmp_path / "run", prepared, command="")
    assert str(caught.value).startswith(f"{tmp_path / 'run'} already contains a run.")


def test_cells_are_those_of_what_was_asked(tmp_path: Path, prepared: PreparedBench) -> None:
    """The same question has the same cells in another folder; another seed has others."""
    other = dataclasses.replace(prepared, task=dataclasses.replace(prepared.task, check=CheckOptions(sizes={}, seed=8)))
    cells = []
    for name, one in {"a": prepared, "b": prepared, "c": other}.items():
        with BenchRun(tmp_path / name, one, command="") as run:
            run.add(_compared(128))
        cells.append([record.cell for record in read_run(tmp_path / name)[1]])
    assert cells[0] == cells[1]
    assert not set(cells[0]) & set(cells[2])
