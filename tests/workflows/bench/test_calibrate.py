"""Calibration from samples with a known spread, and the conditions under which no figure is stored."""

from pathlib import Path

import numpy as np
import pytest

from sdpa_onnx.core.records.records import Outcome, TimingRecord
from sdpa_onnx.core.timing.paired import Calibration
from sdpa_onnx.measure.samples import ArmSamples
from sdpa_onnx.measure.timing_plan import TimingPlan
from sdpa_onnx.workflows.bench import calibrate as module
from sdpa_onnx.workflows.bench.calibrate import CalibrationResult, calibrate, judge_calibration
from sdpa_onnx.workflows.timing.comparison import TimedComparison

_LAUNCHES, _BLOCKS, _CALLS = 4, 40, 3
_BEFORE = Calibration()


def _comparison(seed: int, *, disturbed: float = 0.0, process_sd: float = 0.004) -> TimedComparison:
    """Six processes of 1 ms; a share of the calls loses 1 ms to others."""
    rng = np.random.default_rng(seed)
    samples = {}
    for number in range(6):
        process = rng.normal(0.0, process_sd, (_LAUNCHES, 1, 1))
        cpu = 1e-3 * np.exp(process + rng.normal(0.0, 0.002, (_LAUNCHES, _BLOCKS, _CALLS)))
        lost = 1e-3 * (rng.random(cpu.shape) < disturbed)
        samples[f"process {number + 1}"] = ArmSamples(wall_seconds=cpu + lost, cpu_seconds=cpu)
    return TimedComparison(records={name: TimingRecord(arm=name) for name in samples}, samples=samples)


def _judged(*found: TimedComparison, others: int = 0, idle: float | None = 2.0) -> CalibrationResult:
    return judge_calibration(found, before=_BEFORE, idle=idle, others=others, threads=1)


def test_known_spread_is_found() -> None:
    """Processes 0.4 % apart give pairs about 0.57 % apart, with more degrees of freedom than the default figure."""
    found = _judged(_comparison(1), _comparison(2))
    assert found.refusal == ""
    assert found.spread is not None
    assert found.spread.between_sd == pytest.approx(np.sqrt(2) * 0.004, rel=0.35)
    assert found.spread.degrees > _BEFORE.degrees
    assert found.disturbed == 0.0


def test_disturbed_machine_is_not_kept() -> None:
    """Above a tenth of the calls the figure is that of a busy machine; just below it is stored."""
    found = _judged(_comparison(1, disturbed=0.2), _comparison(2, disturbed=0.2))
    assert found.refusal == (
        f"Not kept: {found.disturbed:.0%} of the calls lost time to other processes, at most 10% may. "
        "Repeat on a quiet machine."
    )
    assert _judged(_comparison(1, disturbed=0.08), _comparison(2, disturbed=0.08)).refusal == ""


def test_company_is_not_kept() -> None:
    """Another timing at the same time invalidates the figure, even if the calls seem quiet."""
    assert _judged(_comparison(1), others=2).refusal == (
        "Not kept: 2 other timing(s) ran on this machine meanwhile. Repeat after they have finished."
    )


def test_spread_below_the_noise_is_not_kept() -> None:
    """If the sampling error explains the difference, a figure near zero would lead to false verdicts."""
    found = _judged(_comparison(1, process_sd=0.0), _comparison(2, process_sd=0.0))
    assert found.refusal.startswith("Not kept: the figure has ")
    assert found.refusal.endswith(" degrees of freedom, at least 4 are needed. Use more --seconds.")


def test_process_that_failed() -> None:
    """Without samples the refusal states the reason."""
    failed = TimingRecord(arm="process 1", outcome=Outcome.FAILED, reason="It crashed.")
    found = _judged(TimedComparison(records={"process 1": failed}))
    assert (found.spread, found.refusal) == (None, "Nothing was measured: It crashed.")


@pytest.fixture
def fake_bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, object]]:
    """Synthetic comparisons, a cache folder of the test, and the requests."""
    requests: list[dict[str, object]] = []

    def bench(arms: object, check: object, **more: object) -> TimedComparison:
        requests.append({"arms": arms, "check": check, **more})
        return _comparison(len(requests))

    monkeypatch.setattr(module, "bench", bench)
    monkeypatch.setattr(module, "export_target", lambda *_, **__: None)
    monkeypatch.setattr(module, "idle_cores", lambda: 2.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return requests


def test_figure_is_kept_and_used(fake_bench: list[dict[str, object]]) -> None:
    """Six identical processes at two lengths, without a clone; the next comparison uses the figure."""
    done = calibrate(threads=1, budget_seconds=5.0, patience_seconds=9.0)
    assert (done.refusal, done.before) == ("", Calibration())
    assert done.path is not None
    assert done.path.exists()
    assert done.spread is not None
    now = module.load_calibration()
    assert (now.between_sd, now.degrees, now.machine) == (done.spread.between_sd, done.spread.degrees, done.machine)
    assert [(len(one["arms"]), one["check"].sizes["q_seq_len"]) for one in fake_bench] == [(6, 128), (6, 512)]  # type: ignore[arg-type,attr-defined]
    plan = fake_bench[0]["plan"]
    assert isinstance(plan, TimingPlan)
    assert (plan.clone, plan.extras, plan.budget_seconds) == (False, False, 5.0)


def test_refused_figure_changes_nothing(fake_bench: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused figure is shown and not stored."""
    monkeypatch.setattr(module, "bench", lambda *_, **__: _comparison(1, disturbed=0.5))
    done = calibrate(threads=1, budget_seconds=5.0, patience_seconds=9.0)
    assert done.refusal
    assert done.path is None
    assert module.load_calibration() == Calibration()
