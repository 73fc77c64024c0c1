"""Comparisons of arms with known times, and some of real arms."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.roofline import Ceilings
from sdpa_onnx.core.records.records import Outcome, RatioVerdict
from sdpa_onnx.core.timing.paired import StoppingLook
from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.measure.timing_plan import Cache, TimingPlan
from sdpa_onnx.runtimes.array_files import read_arrays
from sdpa_onnx.runtimes.base import RanReport, Runtime, get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.timing import comparison as bench_module
from sdpa_onnx.workflows.timing.comparison import CLONE, Arm, TimedComparison, bench
from sdpa_onnx.workflows.timing.job_folder import longer
from tests.measure.fake_workers import MILLISECOND, FakeArm, FakeMachine
from tests.sweep.fakes import Faulty, Refusing

pytestmark = pytest.mark.alone

_PLAN = TimingPlan(blocks=6, least_blocks=6, visit_seconds=0.004, budget_seconds=100.0)
_SIZES = {"batch_size": 1, "q_seq_len": 4, "kv_seq_len": 6}
_ALL = dict.fromkeys(range(99), "load")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle pause takes no time, memory is not measured."""
    monkeypatch.setattr("sdpa_onnx.measure.launch._IDLE_SECONDS", 0.0)
    monkeypatch.setattr(bench_module, "working_set_bandwidth", lambda *_: 1e12)


def _bench(
    model: OnnxModel,
    *runtimes: Runtime,
    machine: FakeMachine | None = None,
    plan: TimingPlan = _PLAN,
    ceilings: Ceilings | None = None,
    threads: int = 1,
    inputs: Mapping[str, NDArray[np.generic]] | None = None,
    baseline: str = "",
) -> TimedComparison:
    with (machine or FakeMachine()).pool() as pool:
        return bench(
            [Arm(name=runtime.name, model=model, runtime=runtime) for runtime in runtimes],
            CheckOptions(sizes=_SIZES, spreads=(1.0,), threads=threads, inputs=inputs),
            target="t",
            baseline=baseline or runtimes[0].name,
            plan=plan,
            ceilings=ceilings,
            pool=pool,
        )


def _arm(milliseconds: float, **more: object) -> FakeArm:
    return FakeArm(wall_ns=lambda _: milliseconds * MILLISECOND, **more)  # type: ignore[arg-type]


def test_record_of_an_arm(bare_model: OnnxModel) -> None:
    """An arm of 3 ms and one of 2 ms: verdict, interval, number of measurements, and the extra measurements."""
    machine = FakeMachine(arms={"slow": _arm(3.0), "fast": _arm(2.0)})
    found = _bench(bare_model, Faulty(name="fast"), Faulty(name="slow"), machine=machine)
    record = found.records["slow"]
    assert (record.verdict, record.outcome, record.baseline) == (RatioVerdict.SLOWER, Outcome.OK, "fast")
    assert [record.ratio, record.ratio_wall, record.ratio_cpu] == pytest.approx([1.5, 1.5, 1.5])
    assert 1.4 < record.ratio_low < 1.5 < record.ratio_high < 1.6
    assert (record.confidence, record.between_sd, record.launches_needed) == (pytest.approx(0.99), 0.0057, 0)
    assert record.median_seconds == record.median_low == record.wall_min_seconds == pytest.approx(3e-3)
    assert (record.clock, record.disturbed, record.steady) == ("wall", 0.0, True)
    assert (record.launches, record.blocks, record.calls) == (4, 6, 48)
    assert (record.switches, record.faults) == (24, 48)
    assert (record.create_seconds % 1, record.first_seconds, record.new_length_seconds) == (0.0, 0.25, 0.125)
    assert (record.idle_seconds, record.kernel_seconds) == (0.75, 0.0004)
    assert record.host_seconds == pytest.approx(0.00005)
    assert (record.runtime_version, record.model_nodes) == ("fake 1.0", {"Attention": 1})
    assert record.peak_memory_bytes >= 7
    assert record.model_bytes > 100
    assert record.ran == {"Attention": 1}
    base = found.records["fast"]
    assert (base.ratio, base.verdict, base.ratio_wall, base.ratio_cpu) == (1.0, None, None, None)
    assert len(found.launch_seconds) == 4
    assert found.seconds > sum(found.launch_seconds)


def test_a_ratio_that_moves_is_a_warning(bare_model: OnnxModel) -> None:
    """Steady after warm-up, and 8 % slower at the end of every launch; an arm of constant time has no warning."""
    machine = FakeMachine(arms={"moves": _arm(2.0, growing=0.0002), "stays": _arm(2.0)})
    arms = [Faulty(name=name) for name in ("base", "moves", "stays")]
    found = _bench(bare_model, *arms, machine=machine, plan=TimingPlan(extras=False))
    sentence = "The ratio of moves was still changing during the measurement."
    assert {name: sentence in record.warnings for name, record in found.records.items()} == {
        "base": False,
        "moves": True,
        "stays": False,
    }
    assert not any("still changing" in warning for warning in found.records["stays"].warnings)


def test_samples_are_what_was_measured(bare_model: OnnxModel) -> None:
    """By launch, block and call, the clone's too."""
    found = _bench(bare_model, Faulty(name="a"), Faulty(name="b"))
    assert {name: sample.wall_seconds.shape for name, sample in found.samples.items()} == {
        "a": (4, 6, 4),
        "b": (4, 6, 4),
        CLONE: (4, 6, 4),
    }
    assert np.allclose(found.samples["a"].cpu_seconds, 1e-3)


def test_a_failing_arm_is_a_record(bare_model: OnnxModel) -> None:
    """With the error of its worker; the others are compared."""
    machine = FakeMachine(arms={"bad": FakeArm(fails=_ALL), "good": _arm(2.0)})
    found = _bench(bare_model, Faulty(name="base"), Faulty(name="bad"), Faulty(name="good"), machine=machine)
    assert (found.records["bad"].outcome, found.records["bad"].reason) == (Outcome.FAILED, "model0 crashed at load.")
    assert found.records["good"].verdict is RatioVerdict.SLOWER
    assert (list(found.records), machine.alive) == (["base", "bad", "good"], 0)


def test_a_failing_baseline_is_replaced(bare_model: OnnxModel) -> None:
    """Ratios refer to the next arm, and every record has a warning."""
    machine = FakeMachine(arms={"bad": FakeArm(fails=_ALL), "slow": _arm(2.0)})
    found = _bench(bare_model, Faulty(name="bad"), Faulty(name="ok"), Faulty(name="slow"), machine=machine)
    warning = "The baseline bad failed, so ratios refer to ok."
    assert [(one.baseline, one.warnings) for one in found.records.values()] == [("ok", (warning,))] * 3
    assert found.records["slow"].ratio == pytest.approx(2.0)


def test_all_arms_fail(bare_model: OnnxModel) -> None:
    """Nothing is compared, nothing is raised."""
    machine = FakeMachine(arms={name: FakeArm(fails=_ALL) for name in "ab"})
    found = _bench(bare_model, Faulty(name="a"), Faulty(name="b"), machine=machine)
    assert {one.outcome for one in found.records.values()} == {Outcome.FAILED}
    assert found.samples == {}


def test_refusing_runtime_is_unsupported(bare_model: OnnxModel) -> None:
    """Reported before anything starts."""
    found = _bench(bare_model, Faulty(name="a"), Refusing(name="b"))
    assert (found.records["b"].outcome, found.records["b"].reason) == (Outcome.UNSUPPORTED, "fake has no such kernel")


def test_warnings_of_the_worker_reach_the_record(bare_model: OnnxModel) -> None:
    """The warnings of a runtime are in its timing record."""
    report = RanReport(providers={"x": 2}, node_counts={"Cast": 1}, precision="float32", warnings=("It fell back.",))
    found = _bench(bare_model, Faulty(name="a"), machine=FakeMachine(report=report))
    assert (found.records["a"].warnings, found.records["a"].ran) == (("It fell back.",), {"Cast": 1})


def test_clocks_that_differ_are_reported(bare_model: OnnxModel) -> None:
    """An arm that waits a twentieth of its time is slower by the wall than by the CPU."""
    machine = FakeMachine(arms={"waits": _arm(2.0, cpu_share=0.95), "works": _arm(2.0)})
    (warning,) = (
        _bench(bare_model, Faulty(name="works"), Faulty(name="waits"), machine=machine).records["waits"].warnings
    )
    assert warning == (
        "The ratio is 1.000 by wall time and 0.950 by CPU time: "
        "the difference is larger than the uncertainty of either."
    )


def test_roof_and_bound_by_hand(bare_model: OnnxModel) -> None:
    """Work over the ceilings, over the time: for 4 heads, 4 causal queries, widths 8 and 6."""
    roof = Ceilings(gemm_flops_per_second=1e7, exps_per_second=1e6)
    plan = replace(_PLAN, cache=Cache.WARM)
    record = _bench(bare_model, Faulty(name="a"), ceilings=roof, plan=plan).records["a"]
    pairs = 4 * (1 + 2 + 3 + 4)
    assert (record.useful_flops, record.exps, record.cache) == (pairs * 28, pairs, "warm")
    assert record.executed_flops == 4 * 4 * 6 * 28
    assert record.roof_share == pytest.approx((pairs * 28 / 1e7 + pairs / 1e6) / 1e-3)
    assert record.bound_by == "products"
    assert _bench(bare_model, Faulty(name="a")).records["a"].roof_share is None


def test_roof_is_of_the_cpu_and_its_threads(bare_model: OnnxModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of the roof of another number of threads, or of another device, would be misleading."""
    monkeypatch.setattr(bench_module, "idle_cores", lambda: 2.0)
    monkeypatch.setattr("sdpa_onnx.measure.machine_load.OthersLoad.share", lambda _: 0.0)
    machine = FakeMachine(arms={"gpu": FakeArm(device="cuda")})
    threads = {"one": 1, "two": 2, "gpu": 1}
    with machine.pool() as pool:
        found = bench(
            [Arm(name=name, model=bare_model, runtime=Faulty(name=name), threads=of) for name, of in threads.items()],
            CheckOptions(sizes=_SIZES, spreads=(1.0,), threads=1),
            target="t",
            baseline="one",
            plan=_PLAN,
            ceilings=Ceilings(gemm_flops_per_second=1e7, exps_per_second=1e6),
            pool=pool,
        ).records
    assert {name: (one.roof_share is not None, one.bound_by) for name, one in found.items()} == {
        "one": (True, "products"),
        "two": (False, ""),
        "gpu": (False, ""),
    }


def test_launches_without_a_profile_do_not_count(bare_model: OnnxModel) -> None:
    """Only launches of the first look have one; so does the time around kernels."""
    machine = FakeMachine(arms={"b": _arm(1.05)})
    plan = replace(_PLAN, margin=0.05)  # at the limit, so that there is no verdict
    record = _bench(bare_model, Faulty(name="a"), Faulty(name="b"), machine=machine, plan=plan).records["b"]
    assert (record.launches, record.kernel_seconds) == (8, 0.0004)
    assert record.host_seconds == pytest.approx(0.00005)


def test_inconclusive_verdict_needs_another_launch(bare_model: OnnxModel) -> None:
    """One ratio of 1.1 % would be proven by itself; for three in a table Holm requires more, and the record has it."""
    machine = FakeMachine(arms={name: _arm(1.01126) for name in "bcd"})
    plan = replace(_PLAN, looks=(StoppingLook(launches=4, alpha=0.002),))
    alone = _bench(bare_model, Faulty(name="a"), Faulty(name="b"), machine=machine, plan=plan).records["b"]
    assert (alone.verdict, alone.launches_needed) == (RatioVerdict.SLOWER, 0)
    found = _bench(bare_model, *(Faulty(name=name) for name in "abcd"), machine=machine, plan=plan).records["b"]
    assert (found.verdict, found.launches_needed) == (RatioVerdict.INCONCLUSIVE, 1)


def test_changing_gpu_clock_is_reported(bare_model: OnnxModel) -> None:
    """By more than a percent; visits are then not comparable."""
    warnings = {}
    for lowest in (1970.0, 1900.0):
        clocks = itertools.cycle((1980.0, lowest))
        machine = FakeMachine(arms={"a": FakeArm(device="cuda", clock_mhz=lambda clocks=clocks: next(clocks))})
        warnings[lowest] = _bench(bare_model, Faulty(name="a"), machine=machine).records["a"].warnings
    sentence = "The clock of the GPU varied from 1900 to 1980 MHz during the measurement."
    assert warnings == {1970.0: (), 1900.0: (sentence,)}


@pytest.mark.parametrize(
    ("cache", "flops", "copies", "recorded"),
    [
        (Cache.AUTO, 1e15, 5, "cold"),
        (Cache.AUTO, 1e3, 1, "warm"),
        (Cache.COLD, 1e3, 5, "cold"),
        (Cache.WARM, 1e15, 1, "warm"),
    ],
)
def test_cache_is_cold_where_memory_bounds(
    bare_model: OnnxModel, monkeypatch: pytest.MonkeyPatch, cache: Cache, flops: float, copies: int, recorded: str
) -> None:
    """Copies of the inputs are used in turn, unless the user requests otherwise."""
    monkeypatch.setattr(bench_module, "cold_copies", lambda *_, **__: 5)
    machine = FakeMachine()
    roof = Ceilings(gemm_flops_per_second=flops, exps_per_second=1e15, bytes_per_second=1e9)
    plan = replace(_PLAN, cache=cache)
    found = _bench(bare_model, Faulty(name="a"), machine=machine, ceilings=roof, plan=plan)
    assert ({job.copies for job in machine.jobs}, found.records["a"].cache) == ({copies}, recorded)


def test_more_threads_than_idle_cores(bare_model: OnnxModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """No time, and no process; within the tolerance they are timed."""
    machine = FakeMachine()
    for idle, reason in ((1.1, "2 threads were requested, and 1.1 cores are idle."), (None, "")):
        monkeypatch.setattr(bench_module, "idle_cores", lambda idle=idle: idle)
        record = _bench(bare_model, Faulty(name="a"), machine=machine, threads=2).records["a"]
        text = reason or "this system does not report its load, and several threads need an idle one."
        assert (record.outcome, record.reason) == (Outcome.SKIPPED, f"Undecidable on this machine now: {text}")
    assert machine.processes == []


def _bench_threads(
    model: OnnxModel, threads: Mapping[str, int], machine: FakeMachine, *, lone: bool = True
) -> TimedComparison:
    """Arms of several thread counts; the first one is the baseline."""
    with machine.pool() as pool:
        return bench(
            [Arm(name=name, model=model, runtime=Faulty(name=name), threads=of) for name, of in threads.items()],
            CheckOptions(sizes=_SIZES, spreads=(1.0,), threads=1),
            target="t",
            baseline=next(iter(threads)),
            plan=_PLAN,
            pool=pool,
            times_survivor=lone,
        )


def test_one_thread_is_timed_where_two_are_not(bare_model: OnnxModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the arm of two threads is skipped; the others have a baseline of one thread, and a warning."""
    monkeypatch.setattr(bench_module, "idle_cores", lambda: 1.1)
    machine = FakeMachine(arms={"slow": _arm(2.0)})
    found = _bench_threads(bare_model, {"two": 2, "one": 1, "slow": 1}, machine).records
    assert found["two"].outcome is Outcome.SKIPPED
    assert found["two"].reason == "Undecidable on this machine now: 2 threads were requested, and 1.1 cores are idle."
    assert (found["slow"].verdict, found["slow"].baseline) == (RatioVerdict.SLOWER, "one")
    assert found["one"].warnings == ("The baseline two was skipped, so ratios refer to one.",)
    alone = _bench_threads(bare_model, {"one": 1, "two": 2}, FakeMachine(), lone=False).records
    assert [one.outcome for one in alone.values()] == [Outcome.OK, Outcome.SKIPPED]


def test_one_thread_is_timed_again_on_a_busy_machine(bare_model: OnnxModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores were idle at the start and not afterwards: arms of one thread do not need them."""
    monkeypatch.setattr(bench_module, "idle_cores", lambda: 2.0)
    monkeypatch.setattr("sdpa_onnx.measure.machine_load.OthersLoad.share", lambda _: 0.3)
    found = _bench_threads(bare_model, {"one": 1, "two": 2, "more": 1}, FakeMachine()).records
    assert [one.outcome for one in found.values()] == [Outcome.OK, Outcome.SKIPPED, Outcome.OK]
    assert found["two"].reason == (
        "Undecidable on this machine now: other processes used the machine in all but 0 of 6 blocks of a launch."
    )
    assert found["more"].blocks == 6


@pytest.mark.parametrize("bad", ["a", "b"])
def test_a_lone_survivor_is_not_timed(bare_model: OnnxModel, bad: str) -> None:
    """If one arm of two does not load, even the baseline, the comparison ends after seconds."""
    machine = FakeMachine(arms={bad: FakeArm(fails=_ALL)})
    found = _bench_threads(bare_model, {"a": 1, "b": 1}, machine, lone=False).records
    good = found["b" if bad == "a" else "a"]
    assert (found[bad].outcome, found[bad].reason) == (Outcome.FAILED, "model0 crashed at load.")
    assert (good.outcome, good.reason) == (Outcome.SKIPPED, f"nothing to compare with: {bad} failed.")
    assert len(machine.processes) <= 3
    assert machine.alive == 0
    assert _bench_threads(bare_model, {"a": 1}, FakeMachine(), lone=False).records["a"].outcome is Outcome.OK


def test_shortest_time_is_reported_once(bare_model: OnnxModel) -> None:
    """After the first launch: 4 launches of 6 blocks, in which 3 processes are visited for 4 ms each."""
    notes: list[str] = []
    with FakeMachine().pool() as pool:
        bench(
            [Arm(name=name, model=bare_model, runtime=Faulty(name=name)) for name in "ab"],
            CheckOptions(sizes=_SIZES, spreads=(1.0,)),
            target="t",
            baseline="a",
            plan=_PLAN,
            pool=pool,
            on_note=notes.append,
        )
    assert notes == ["at least about 0 s: 4 launches of 6 blocks"]


@pytest.mark.parametrize(("share", "outcome"), [(0.049, Outcome.OK), (0.051, Outcome.SKIPPED)])
def test_others_use_the_machine_meanwhile(
    bare_model: OnnxModel, monkeypatch: pytest.MonkeyPatch, share: float, outcome: Outcome
) -> None:
    """Several threads are compared over blocks in which other processes used less than 5 % of a core."""
    monkeypatch.setattr(bench_module, "idle_cores", lambda: 2.0)
    monkeypatch.setattr("sdpa_onnx.measure.machine_load.OthersLoad.share", lambda _: share)
    found = _bench(bare_model, Faulty(name="a"), Faulty(name="b"), threads=2).records["b"]
    assert found.outcome is outcome
    if outcome is Outcome.SKIPPED:
        assert found.reason == (
            "Undecidable on this machine now: other processes used the machine in all but 0 of 6 blocks of a launch."
        )
    else:
        assert (found.clock, found.ratio_cpu) == ("wall", None)


def test_every_arm_gets_the_same_inputs_and_another_length(bare_model: OnnxModel, tmp_path: Path) -> None:
    """Times of different inputs would not be comparable; files are shared."""
    machine = FakeMachine()
    given = {
        "Q": np.ones((1, 4, 4, 8), np.float32),
        "K": np.ones((1, 2, 6, 8), np.float32),
        "V": np.ones((1, 2, 6, 6), np.float32),
    }
    seen: list[dict[str, tuple[int, ...]]] = []
    load = FakeMachine.number

    def read(self: FakeMachine, name: str) -> int:
        job = self.jobs[-1] if self.jobs else None
        if job is not None and job.inputs.exists():
            seen.append({name: array.shape for name, array in read_arrays(job.inputs).items()})
            if job.new_length_inputs is not None:
                seen.append({name: array.shape for name, array in read_arrays(job.new_length_inputs).items()})
        return load(self, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeMachine, "number", read)
        _bench(bare_model, Faulty(name="a"), Faulty(name="b"), machine=machine)
    assert len({(job.model, job.inputs, job.new_length_inputs) for job in machine.jobs}) == 1
    assert seen[0] == {name: array.shape for name, array in given.items()}
    assert seen[1] == {"Q": (1, 4, 5, 8), "K": (1, 2, 7, 8), "V": (1, 2, 7, 6)}
    machine = FakeMachine()
    _bench(bare_model, Faulty(name="a"), machine=machine, inputs=given)
    assert {job.new_length_inputs for job in machine.jobs} == {None}


def test_another_length_is_prime() -> None:
    """Batch sizes and single queries stay; axes of equal size stay equal."""
    sizes = {"batch_size": 4, "q_seq_len": 512, "kv_seq_len": 512, "past_seq_len": 1, "more": 2}
    assert longer(sizes) == {"batch_size": 4, "q_seq_len": 521, "kv_seq_len": 521, "past_seq_len": 1, "more": 3}


def test_record_says_what_was_timed(bare_model: OnnxModel) -> None:
    """The record has case, sizes, type, form, opset, options and environment; torch has no form."""
    with FakeMachine().pool() as pool:
        arms = [
            Arm(name="a", model=bare_model, runtime=get_runtime("ort-cpu"), options={"mlas.x": "1"}, environment="old"),
            Arm(name="t", model=bare_model, runtime=Faulty(name="torch"), threads=1),
        ]
        found = bench(
            arms, CheckOptions(sizes=_SIZES, spreads=(1.0,)), target="t", baseline="t", plan=_PLAN, pool=pool
        ).records
    assert found["a"].case == found["t"].group == "b1_hq4_hkv2_q4_kv6_d8_f32_causal_dv6"
    assert (found["a"].form, found["a"].opset, found["t"].form, found["t"].opset) == ("attention", 23, "", 0)
    assert (found["a"].sizes.q_seq_len, found["a"].sizes.kv_seq_len, found["a"].dtype) == (4, 6, "float32")
    assert (found["a"].options, found["a"].python) == ({"mlas.x": "1"}, "old")


@pytest.mark.parametrize(("names", "baseline"), [("aa", "a"), ("a", "b")])
def test_names_that_do_not_fit(bare_model: OnnxModel, names: str, baseline: str) -> None:
    """Two arms of one name would be one record; a ratio to an arm that is not timed is refused."""
    with pytest.raises(PlanError) as caught:
        _bench(bare_model, *(Faulty(name=name) for name in names), baseline=baseline)
    assert str(caught.value) == f"Arms are {', '.join(names)}, the baseline is '{baseline}'. Pass each arm once."


def test_name_of_the_clone(bare_model: OnnxModel) -> None:
    """An arm of its name would be confused with it."""
    with pytest.raises(PlanError) as caught:
        _bench(bare_model, Faulty(name="a"), Faulty(name=CLONE), baseline="a")
    assert str(caught.value) == f"No arm can be called '{CLONE}': every comparison has one. Choose another name."


def _written_out(*, softmaxes: int = 1) -> OnnxModel:
    """Attention of two heads as real nodes."""
    import onnx
    from onnx import TensorProto, helper

    shape = [1, 2, "n", 16]
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("q", "k", "v", "y")}
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["s0"]),
        *(helper.make_node("Softmax", [f"s{at}"], [f"s{at + 1}"]) for at in range(softmaxes)),
        helper.make_node("MatMul", [f"s{softmaxes}", "v"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [values[name] for name in "qkv"], [values["y"]])
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return load_model(made)


def _real(arms: Mapping[str, OnnxModel], length: int) -> TimedComparison:
    runtime = get_runtime("ort-cpu")
    plan = TimingPlan(
        looks=(StoppingLook(launches=2, alpha=0.01),),
        blocks=10,
        least_blocks=10,
        visit_seconds=0.002,
        budget_seconds=3.0,
    )
    return bench(
        [Arm(name=name, model=model, runtime=runtime) for name, model in arms.items()],
        CheckOptions(sizes={"n": length}, spreads=(1.0,)),
        target="t",
        baseline=next(iter(arms)),
        plan=plan,
    )


def test_a_planted_slow_graph_is_found() -> None:
    """Real workers: eight softmaxes instead of one."""
    found = _real({"plain": _written_out(), "slow": _written_out(softmaxes=8)}, 64)
    slow = found.records["slow"]
    assert (slow.outcome, slow.verdict) == (Outcome.OK, RatioVerdict.SLOWER)
    assert slow.ratio > 1.5
    assert slow.ran["Softmax"] == 8
    assert slow.runtime_version.startswith("onnxruntime ")
    assert min(slow.create_seconds, slow.first_seconds, slow.new_length_seconds, slow.idle_seconds) > 0
    assert slow.kernel_seconds > 0
    assert slow.host_seconds >= 0
    assert slow.peak_memory_bytes >= 0
