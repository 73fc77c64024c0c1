"""A comparison of arms whose times are known."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from sdpa_onnx.core.records import Outcome, TimingRecord
from sdpa_onnx.core.roofline import Ceilings
from sdpa_onnx.errors import PlanError, SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.measure import visits
from sdpa_onnx.measure.visits import Plan
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Session
from sdpa_onnx.workflows import bench_files as bench_files_module
from sdpa_onnx.workflows.bench import Arm, Comparison, bench
from sdpa_onnx.workflows.bench_files import bench_files
from sdpa_onnx.workflows.checked import Check
from tests.sweep.fakes import Arrays, Faulty, FaultySession, Refusing, Throwing, plant

_PLAN = Plan(blocks=12, visit_seconds=0.004, warm_up_seconds=0.1, budget_seconds=100.0)
_SIZES = {"batch_size": 1, "q_seq_len": 4, "kv_seq_len": 6}


@dataclass
class _Time:
    """Both clocks; only a call moves them."""

    wall: int = 0
    cpu: int = 0

    def wall_ns(self) -> int:
        return self.wall

    def cpu_ns(self) -> int:
        return self.cpu


@dataclass
class _TimedSession(FaultySession):
    """Runs nothing; a call takes the next of some times."""

    time: _Time = field(default_factory=_Time)
    wall_ns: Callable[[], int] = lambda: 0
    cpu_share: float = 1.0
    report: RanReport | None = None
    bound: list[Arrays] = field(default_factory=list)

    def bind(self, inputs: Arrays) -> Callable[[], None]:
        self.bound.append(inputs)

        def call() -> None:
            spent = self.wall_ns()
            self.time.wall += spent
            self.time.cpu += round(self.cpu_share * spent)

        return call

    def ran(self) -> RanReport:
        return self.report or self.session.ran()


@dataclass
class _Timed(Faulty):
    """A runtime whose calls take times from a list, round and round."""

    time: _Time = field(default_factory=_Time)
    times_ns: tuple[int, ...] = (1_000_000,)
    cpu_share: float = 1.0
    report: RanReport | None = None
    sessions: list[_TimedSession] = field(default_factory=list)
    options: list[LoadOptions] = field(default_factory=list)

    def load(self, model: OnnxModel, options: LoadOptions) -> Session:
        self.options.append(options)
        again = itertools.cycle(self.times_ns)
        session = _TimedSession(
            self.real.load(model, options),
            self.fault,
            time=self.time,
            wall_ns=lambda: next(again),
            cpu_share=self.cpu_share,
            report=self.report,
        )
        self.sessions.append(session)
        return session


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> _Time:
    """The clocks of every measurement in the test."""
    clock = _Time()
    monkeypatch.setattr(visits, "SystemClock", lambda: clock)
    return clock


def _bench(
    model: OnnxModel,
    *runtimes: Faulty,
    baseline: str,
    ceilings: Ceilings | None = None,
    threads: int = 1,
    inputs: Arrays | None = None,
) -> Comparison:
    return bench(
        [Arm(name=runtime.name, model=model, runtime=runtime) for runtime in runtimes],
        Check(sizes=_SIZES, spreads=(1.0,), threads=threads, inputs=inputs),
        target="t",
        baseline=baseline,
        plan=_PLAN,
        ceilings=ceilings,
    )


def test_ratio_to_the_baseline(bare_model: OnnxModel, time: _Time) -> None:
    """An arm of 3 ms beside one of 2 ms is 1.5 times as long, with an interval that holds no doubt."""
    slow = _Timed(name="slow", time=time, times_ns=(3_000_000,))
    fast = _Timed(name="fast", time=time, times_ns=(2_000_000,))
    found = _bench(bare_model, slow, fast, baseline="fast")
    record = found.records["slow"]
    assert (record.median_seconds, record.wall_min_seconds) == (pytest.approx(3e-3), pytest.approx(3e-3))
    assert [record.ratio, record.ratio_low, record.ratio_high] == pytest.approx([1.5, 1.5, 1.5])
    assert (found.records["fast"].ratio, found.records["fast"].baseline) == (1.0, "fast")
    assert (record.clock, record.disturbed, record.steady, record.blocks) == ("wall", 0.0, True, 12)


def test_samples_are_what_was_measured(bare_model: OnnxModel, time: _Time) -> None:
    """Raw samples have a row a block and a column a call, and the record counts them."""
    found = _bench(bare_model, _Timed(name="a", time=time), baseline="a")
    sample = found.samples["a"]
    assert sample.wall_seconds.shape == sample.cpu_seconds.shape == (12, 4)
    assert np.allclose(sample.wall_seconds, 1e-3)
    assert (found.records["a"].calls, found.records["a"].blocks) == (48, 12)


def test_disturbed_machine_is_measured_by_cpu_time(bare_model: OnnxModel, time: _Time) -> None:
    """Where calls lose time to others the CPU's clock decides, for all arms, and the share is told."""
    calm = _Timed(name="calm", time=time, times_ns=(1_000_000,))
    lost = _Timed(name="lost", time=time, times_ns=(4_000_000,), cpu_share=0.5)
    found = _bench(bare_model, calm, lost, baseline="calm")
    assert {record.clock for record in found.records.values()} == {"cpu"}
    assert (found.records["lost"].disturbed, found.records["calm"].disturbed) == (1.0, 0.0)
    assert found.records["lost"].ratio == pytest.approx(2.0)


def test_several_threads_are_measured_by_the_wall(bare_model: OnnxModel, time: _Time) -> None:
    """CPU time adds up over threads and says nothing then."""
    lost = _Timed(name="lost", time=time, cpu_share=0.5)
    assert _bench(bare_model, lost, baseline="lost", threads=2).records["lost"].clock == "wall"


def test_device_is_measured_by_the_wall(bare_model: OnnxModel, time: _Time) -> None:
    """CPU time says nothing of a GPU."""
    report = RanReport(providers={"CUDAExecutionProvider": 1}, node_counts={"Attention": 1}, precision="float32")
    lost = _Timed(name="lost", time=time, cpu_share=0.5, report=report)
    assert _bench(bare_model, lost, baseline="lost").records["lost"].clock == "wall"


def test_warnings_of_the_session_reach_the_record(bare_model: OnnxModel, time: _Time) -> None:
    """What a runtime doubts about itself travels with its times; so do the nodes that ran."""
    report = RanReport(
        providers={"x": 2}, node_counts={"Attention": 1, "Cast": 1}, precision="float32", warnings=("It fell back.",)
    )
    found = _bench(bare_model, _Timed(name="a", time=time, report=report), baseline="a")
    assert found.records["a"].warnings == ("It fell back.",)
    assert found.records["a"].ran == {"Attention": 1, "Cast": 1}


def test_no_steady_state_is_told(bare_model: OnnxModel, time: _Time) -> None:
    """Times that only ever grow reach no steady state, and the record says so."""
    growing = tuple(round(1e6 * 1.05**number) for number in range(200))
    assert not _bench(bare_model, _Timed(name="a", time=time, times_ns=growing), baseline="a").records["a"].steady


def test_share_of_the_roof(bare_model: OnnxModel, time: _Time) -> None:
    """Work over the ceilings, over the time: by hand for 4 heads, 4 causal queries, widths 8 and 6."""
    found = _bench(
        bare_model,
        _Timed(name="a", time=time),
        baseline="a",
        ceilings=Ceilings(gemm_flops_per_second=1e7, exps_per_second=1e6),
    ).records["a"]
    pairs = 4 * (1 + 2 + 3 + 4)
    assert (found.useful_flops, found.exps) == (pairs * 2 * 14, pairs)
    assert found.executed_flops == 4 * 4 * 6 * 2 * 14
    assert found.roof_share == pytest.approx((pairs * 28 / 1e7 + pairs / 1e6) / 1e-3)


def test_no_ceilings_no_share(bare_model: OnnxModel, time: _Time) -> None:
    """Without measured ceilings there is no share, and no zero that looks like one."""
    assert _bench(bare_model, _Timed(name="a", time=time), baseline="a").records["a"].roof_share == -1.0


def test_every_arm_gets_the_same_inputs(bare_model: OnnxModel, time: _Time) -> None:
    """Times of different inputs would not be comparable."""
    arms = [_Timed(name=name, time=time) for name in "ab"]
    _bench(bare_model, *arms, baseline="a")
    first, second = (arm.sessions[0].bound[0] for arm in arms)
    assert list(first) == ["Q", "K", "V"]
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert [arm.options[0] for arm in arms] == [LoadOptions(threads=1, purpose=arms[0].options[0].purpose)] * 2


def test_given_inputs_are_bound(bare_model: OnnxModel, time: _Time) -> None:
    """The user's arrays are what is timed."""
    given = {
        "Q": np.ones((1, 4, 4, 8), np.float32),
        "K": np.ones((1, 2, 6, 8), np.float32),
        "V": np.ones((1, 2, 6, 6), np.float32),
    }
    arm = _Timed(name="a", time=time)
    _bench(bare_model, arm, baseline="a", inputs=given)
    assert all(arm.sessions[0].bound[0][name] is given[name] for name in given)


def test_record_says_what_was_timed(bare_model: OnnxModel, time: _Time) -> None:
    """Case, sizes, type, form and opset stand in the record; torch has no form."""
    found = _bench(bare_model, _Timed(name="a", time=time), _Timed(name="torch", time=time), baseline="torch").records
    assert found["a"].case == found["torch"].group == "b1_hq4_hkv2_q4_kv6_d8_f32_causal_dv6"
    assert (found["a"].form, found["a"].opset) == ("attention", 23)
    assert (found["torch"].form, found["torch"].opset) == ("", 0)
    assert (found["a"].sizes.q_seq_len, found["a"].sizes.kv_seq_len, found["a"].dtype) == (4, 6, "float32")


def test_arms_of_one_name(bare_model: OnnxModel, time: _Time) -> None:
    """Two arms of one name would be one record."""
    with pytest.raises(PlanError) as caught:
        _bench(bare_model, _Timed(name="a", time=time), _Timed(name="a", time=time), baseline="a")
    assert str(caught.value) == "Arms are a, a, the baseline is 'a'. Each arm once, please."


def test_baseline_that_is_no_arm(bare_model: OnnxModel, time: _Time) -> None:
    """A ratio to what was not timed is refused."""
    with pytest.raises(PlanError) as caught:
        _bench(bare_model, _Timed(name="a", time=time), baseline="b")
    assert str(caught.value) == "Arms are a, the baseline is 'b'. Each arm once, please."


def test_arm_that_does_not_take_the_model(bare_model: OnnxModel, time: _Time) -> None:
    """An arm that cannot run is told with its reason before anything is timed."""
    with pytest.raises(SessionError) as caught:
        _bench(bare_model, Refusing(name="a"), baseline="a")
    assert str(caught.value) == "a: fake has no such kernel"


def test_sessions_are_closed_when_an_arm_fails(bare_model: OnnxModel, time: _Time) -> None:
    """A failing arm leaves no session open behind it."""
    first = _Timed(name="a", time=time)
    with pytest.raises(SessionError, match="no"):
        _bench(bare_model, first, Throwing(name="b", error=SessionError("no")), baseline="a")
    with pytest.raises(SessionError):
        first.sessions[0].run({})


@pytest.fixture
def files(tmp_path: Path, bare_model: OnnxModel, decomposed_model: OnnxModel) -> list[Path]:
    return [bare_model.save(tmp_path / "fused.onnx"), decomposed_model.save(tmp_path / "plain.onnx")]


def _bench_files(
    monkeypatch: pytest.MonkeyPatch, paths: list[Path], *runtimes: Faulty, baseline: str | None = None
) -> list[TimingRecord]:
    plant(monkeypatch, *runtimes)
    monkeypatch.setattr(
        bench_files_module,
        "measure_ceilings",
        lambda **_: Ceilings(gemm_flops_per_second=1e9, exps_per_second=1e9),
    )
    names = [runtime.name for runtime in runtimes]
    return bench_files(paths, names, Check(sizes={"q_seq_len": 4}), baseline=baseline, plan=_PLAN)


def test_files_on_runtimes(monkeypatch: pytest.MonkeyPatch, files: list[Path], time: _Time) -> None:
    """Every file on every runtime, torch once; ratios refer to torch unless asked otherwise."""
    arms = [_Timed(name="fast", time=time), _Timed(name="torch", time=time, times_ns=(2_000_000,))]
    found = _bench_files(monkeypatch, files, *arms)
    assert [(record.arm, record.ratio) for record in found] == [
        ("fast fused.onnx", pytest.approx(0.5)),
        ("fast plain.onnx", pytest.approx(0.5)),
        ("torch", 1.0),
    ]
    found = _bench_files(monkeypatch, files, *arms, baseline="fast fused.onnx")
    assert {record.baseline for record in found} == {"fast fused.onnx"}


def test_sizes_that_are_not_given_are_usual(monkeypatch: pytest.MonkeyPatch, files: list[Path], time: _Time) -> None:
    """What the caller fixes stays; batch 1 and length 512 stand for the rest."""
    (found,) = _bench_files(monkeypatch, files[:1], _Timed(name="fast", time=time))
    assert (found.sizes.batch_size, found.sizes.q_seq_len, found.sizes.kv_seq_len) == (1, 4, 512)


def test_refusing_runtime_is_a_record(monkeypatch: pytest.MonkeyPatch, files: list[Path], time: _Time) -> None:
    """A runtime that does not take a file is told with its reason beside the times of the others."""
    found = _bench_files(monkeypatch, files[:1], _Timed(name="fast", time=time), Refusing(name="fake"))
    assert [(record.runtime, record.outcome) for record in found] == [
        ("fast", Outcome.OK),
        ("fake", Outcome.UNSUPPORTED),
    ]
    assert found[1].reason == "fake has no such kernel"


def test_no_runtime_takes_the_files(monkeypatch: pytest.MonkeyPatch, files: list[Path]) -> None:
    """When nothing can be timed the reason is the error."""
    with pytest.raises(PlanError) as caught:
        _bench_files(monkeypatch, files[:1], Refusing(name="fake"))
    assert str(caught.value) == "No runtime takes these models: fake has no such kernel"


def test_one_file_twice(monkeypatch: pytest.MonkeyPatch, files: list[Path], time: _Time) -> None:
    """A file is not compared with itself."""
    with pytest.raises(PlanError) as caught:
        _bench_files(monkeypatch, [files[0], files[0]], _Timed(name="fast", time=time))
    assert str(caught.value) == "The same file is given twice."


def test_two_files_of_one_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bare_model: OnnxModel, time: _Time
) -> None:
    """Files of one name in two folders are two arms."""
    paths = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        paths.append(bare_model.save(tmp_path / folder / "m.onnx"))
    found = _bench_files(monkeypatch, paths, _Timed(name="fast", time=time))
    assert len({record.arm for record in found}) == 2
