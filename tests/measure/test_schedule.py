"""Launches, looks and budgets, on workers whose times are known."""

import itertools
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.core.timing.paired import LOOKS, StoppingLook
from sdpa_onnx.measure.deadline import Deadline
from sdpa_onnx.measure.launch import ArmTooSlowError, BaselineFailedError
from sdpa_onnx.measure.schedule import BudgetSpentError, Schedule, ScheduleResult
from sdpa_onnx.measure.timing_plan import TimingPlan, calls_of_a_visit, lone_plan
from sdpa_onnx.measure.verdict_rule import CLONE
from sdpa_onnx.runtimes.arm_job import ArmJob
from tests.measure.fake_workers import MILLISECOND, FakeArm, FakeMachine, job, visits_of

PLAN = TimingPlan(blocks=40, budget_seconds=1e9, extras=False)


def _times(milliseconds: float) -> Callable[[int], float]:
    return lambda _: milliseconds * MILLISECOND


def _jobs(*names: str) -> dict[str, ArmJob]:
    """A clone has the file of its baseline, so that it takes what that takes."""
    return {name: job(name) for name in names}


def _schedule(machine: FakeMachine, plan: TimingPlan = PLAN, *, names: str = "ab", **more: object) -> Schedule:
    return Schedule(
        jobs=_jobs(*names), baseline="a", plan=plan, pool=machine.pool(), now=machine.now, sleep=machine.sleep, **more
    )


def _measure(machine: FakeMachine, plan: TimingPlan = PLAN, *, names: str = "ab") -> ScheduleResult:
    with machine.pool() as pool:
        schedule = _schedule(machine, plan, names=names)
        schedule.pool = pool
        return schedule.measure()


def _noisy(ratio: float, noise: float = 0.01) -> dict[str, FakeArm]:
    return {"a": FakeArm(noise=noise), "b": FakeArm(wall_ns=_times(ratio), noise=noise)}


def _open(ratio: float = 1.015, spread: float = 0.02) -> dict[str, FakeArm]:
    """An arm whose processes are by turns slower and faster than its ratio; as it stands, never decided."""
    return {"a": FakeArm(), "b": FakeArm(wall_ns=lambda process: ratio * (1 + spread * (-1) ** process) * MILLISECOND)}


def test_every_block_visits_every_arm_once_in_random_order() -> None:
    """Never one arm and then the other: every order of three arms occurs, and each block has each arm once."""
    machine = FakeMachine()
    plan = TimingPlan(
        blocks=60, budget_seconds=1e9, extras=False, clone=False, looks=(StoppingLook(launches=1, alpha=0.01),)
    )
    _measure(machine, plan, names="abc")
    measured = list(visits_of(machine.told))[-180:]
    blocks = [tuple(measured[at : at + 3]) for at in range(0, 180, 3)]
    assert set(blocks) == set(itertools.permutations("abc"))
    firsts = [block[0] for block in blocks]
    assert all(firsts.count(name) >= 10 for name in "abc")


def test_every_launch_has_processes_of_its_own() -> None:
    """Two arms and the clone, four launches: twelve processes, each started before any is loaded, and all stopped."""
    machine = FakeMachine(arms={"b": FakeArm(wall_ns=_times(2.0))})
    found = _measure(machine)
    assert (len(machine.processes), machine.alive, len(found.seconds)) == (12, 0, 4)
    assert {name: sample.wall_seconds.shape for name, sample in found.samples.items()} == {
        "a": (4, 40, 10),
        "b": (4, 40, 5),
        CLONE: (4, 40, 10),
    }
    assert np.allclose(found.samples["b"].wall_seconds, 2e-3)


def test_kept_processes_serve_the_next_comparison() -> None:
    """A pool that keeps its workers starts no more for a second comparison, whose launches are still apart."""
    machine = FakeMachine()
    with machine.pool(fresh=False) as pool:
        for names in ("ab", "cd"):
            schedule = Schedule(jobs=_jobs(*names), baseline=names[0], plan=PLAN, pool=pool, now=machine.now)
            schedule.measure()
        assert (len(machine.processes), machine.alive) == (12, 12)
        loaded = [worker.name for worker in machine.processes]
        assert (loaded.count("c"), loaded.count("d")) == (8, 4)
    assert machine.alive == 0


@pytest.mark.parametrize(
    ("ratio", "spread", "launches", "word"),
    [
        (1.05, 0.0, 4, RatioVerdict.SLOWER),
        (0.95, 0.0, 4, RatioVerdict.FASTER),
        (1.0, 0.0, 4, RatioVerdict.EQUAL),
        (1.015, 0.01, 6, RatioVerdict.SLOWER),
        (1.015, 0.02, 8, RatioVerdict.INCONCLUSIVE),
    ],
)
def test_looks_stop_at_a_word(ratio: float, spread: float, launches: int, word: RatioVerdict) -> None:
    """At the first look with a word, or at the last: processes that differ by 1 % take six launches for 1.5 %."""
    found = _measure(FakeMachine(arms=_open(ratio, spread)))
    assert found.decision is not None
    assert (found.decision.verdicts["b"], len(found.seconds)) == (word, launches)
    assert found.decision.look in LOOKS


def test_a_margin_keeps_looking() -> None:
    """A gate at 5 % wants to know more of a slow-down of 5 % than that it is one."""
    gate = TimingPlan(blocks=40, budget_seconds=1e9, extras=False, margin=0.05)
    found = _measure(FakeMachine(arms=_noisy(1.05, 0.001)), gate)
    assert found.decision is not None
    assert (found.decision.verdicts["b"], len(found.seconds)) == (RatioVerdict.SLOWER, 8)


def test_a_clone_that_differs_makes_the_table_noisy() -> None:
    """A second process of the baseline that takes 3 % longer in every launch: nothing here can be trusted."""
    # Odd processes of the baseline's model are slow: by launch one of the two is, in turn or not.
    slow = {process for process in range(16) if process % 2}
    machine = FakeMachine(arms={"a": FakeArm(wall_ns=lambda process: (1.03 if process in slow else 1.0) * MILLISECOND)})
    schedule = _schedule(machine)
    schedule.plan = TimingPlan(blocks=40, budget_seconds=1e9, extras=False, looks=LOOKS[:1])
    # Which of the two is loaded first is drawn; keep seeds where the clone is second in every launch of the look.
    for seed in range(200):
        machine = FakeMachine(arms=machine.arms)
        plan = TimingPlan(blocks=40, budget_seconds=1e9, extras=False, looks=LOOKS[:1], seed=seed)
        found = _measure(machine, plan)
        if np.ptp(np.median(found.samples[CLONE].wall_seconds, axis=(1, 2))) == 0:
            break
    assert found.decision is not None
    assert found.decision.verdicts == {"b": RatioVerdict.NOISY}
    assert not found.decision.can_stop


def test_no_look_begins_that_does_not_fit() -> None:
    """Launches of 2.4 s and more: eight want 20 s, six 15 s; a budget of 17 s ends an open question at six."""
    machine = FakeMachine(arms=_open(), starting_seconds=0.4)
    plan = TimingPlan(blocks=40, least_blocks=40, budget_seconds=17.0, extras=False)
    found = _measure(machine, plan)
    assert len(found.seconds) == 6
    assert machine.seconds <= 17.0
    assert found.decision is not None
    assert found.decision.look == LOOKS[1]


def test_blocks_are_taken_so_that_all_looks_fit() -> None:
    """Three arms of 10 ms a visit, eight launches of 1.2 s setting up: 30 s leave 8 times 2.5 s."""
    machine = FakeMachine(arms=_open(), starting_seconds=0.4)
    found = _measure(machine, TimingPlan(budget_seconds=30.0, extras=False))
    blocks = found.samples["a"].wall_seconds.shape[1]
    assert 70 <= blocks < 80
    assert len(found.seconds) == 8
    assert machine.seconds <= 30.0


def test_what_the_least_takes_is_told_in_the_first_launch() -> None:
    """Once, and about what it then takes, be the budget smaller: starts, loading and blocks of the first look."""
    machine, notes = FakeMachine(arms=_open(ratio=1.2, spread=0.0), starting_seconds=5.0), list[str]()
    with machine.pool() as pool:
        schedule = _schedule(machine, TimingPlan(budget_seconds=8.0, extras=False), on_note=notes.append)
        schedule.pool = pool
        assert len(schedule.measure().seconds) == 4
    (note,) = notes
    told, launches = re.fullmatch(r"at least about (\d+) s: (4 launches of 40 blocks)", note).groups()  # type: ignore[union-attr]
    assert launches == "4 launches of 40 blocks"
    assert machine.seconds == pytest.approx(float(told), rel=0.05)
    assert machine.seconds > 60.0


def test_the_first_look_is_taken_whatever_it_costs() -> None:
    """With the least blocks, since there would be no number at all."""
    found = _measure(FakeMachine(arms=_open()), TimingPlan(budget_seconds=0.1, least_blocks=7, extras=False))
    assert found.samples["a"].wall_seconds.shape == (4, 7, 10)


@pytest.mark.parametrize(
    ("seconds", "calls"), [(1e-6, 10_000), (1e-3, 10), (6e-3, 2), (0.0199, 2), (0.0201, 1), (3.0, 1)]
)
def test_calls_of_a_visit(seconds: float, calls: int) -> None:
    """About 10 ms and at least two, but one where a single call is long."""
    assert calls_of_a_visit(seconds, 0.01) == calls


@pytest.mark.parametrize(("disturbed", "clock"), [(0.0999, "wall"), (0.1001, "cpu")])
def test_clock_on_either_side_of_the_limit(disturbed: float, clock: str) -> None:
    """CPU time decides where more than a tenth of the calls of any arm lost time."""
    from sdpa_onnx.measure.samples import ArmSamples
    from sdpa_onnx.measure.verdict_rule import clock_of

    wall = np.full((1, 100, 100), 1e-3)
    cpu = wall.copy()
    lost = round(disturbed * 10_000)
    cpu.reshape(-1)[:lost] *= 0.9
    samples = {
        "a": ArmSamples(wall_seconds=wall, cpu_seconds=cpu),
        "b": ArmSamples(wall_seconds=wall, cpu_seconds=wall),
    }
    assert clock_of(samples, threads=1) == clock
    assert clock_of(samples, threads=2) == clock_of(samples, threads=1, device="cuda") == "wall"


def test_disturbed_arms_are_compared_by_cpu_time() -> None:
    """Wall times that say 4 and CPU times that say 2: the CPU's count."""
    arms = {"a": FakeArm(), "b": FakeArm(wall_ns=_times(4.0), cpu_share=0.5)}
    decision = _measure(FakeMachine(arms=arms)).decision
    assert decision is not None
    assert (decision.clock, decision.estimates["b"].ratio) == ("cpu", pytest.approx(2.0))


def test_an_arm_on_a_gpu_makes_wall_time_decide() -> None:
    """Though the baseline on the CPU was disturbed: the host's time is no CPU time of the GPU's arm."""
    arms = {"a": FakeArm(cpu_share=0.5), "b": FakeArm(wall_ns=_times(4.0), device="cuda")}
    decision = _measure(FakeMachine(arms=arms)).decision
    assert decision is not None
    assert (decision.clock, decision.estimates["b"].ratio) == ("wall", pytest.approx(4.0))


@pytest.mark.parametrize("stage", ["load", "visit"])
def test_an_arm_that_dies_in_a_later_launch(stage: str) -> None:
    """Its sentence is told, its samples are gone, and the others come to their end."""
    machine = FakeMachine(arms={**_noisy(1.1, 0.001), "c": FakeArm(fails={1: stage})})
    found = _measure(machine, names="abc")
    assert {name: str(error) for name, error in found.failures.items()} == {"c": f"c crashed at {stage}."}
    assert sorted(found.samples) == ["a", "b", CLONE]
    assert found.samples["b"].wall_seconds.shape[0] == 4
    assert machine.alive == 0


def test_a_baseline_that_dies_ends_the_comparison() -> None:
    """Nothing is left to compare with; whoever asked starts again without it. No worker stays."""
    machine = FakeMachine(arms={"a": FakeArm(fails={2: "visit", 3: "visit"})})  # of the second launch, the clone's too
    with pytest.raises(BaselineFailedError) as caught:
        _measure(machine)
    assert str(caught.value) == "a crashed at visit."
    assert machine.alive == 0


def test_a_failing_extra_costs_nothing_but_itself() -> None:
    """An arm whose run after idling fails was timed all the same, and the doubt is told."""
    machine = FakeMachine(arms={**_noisy(1.1, 0.001), "b": FakeArm(fails={0: "idle"})})
    found = _measure(machine, TimingPlan(blocks=40, budget_seconds=1e9))
    assert (found.failures, found.doubts) == ({}, {"b": "b crashed at idle."})
    assert [launch["b"].idle_seconds for launch in found.launches][:2] == [None, 0.75]


def test_no_steady_state_is_told() -> None:
    """Times that only ever grow reach none."""
    machine = FakeMachine(arms={"a": FakeArm(), "b": FakeArm(growing=0.05, wall_ns=_times(0.01))})
    plan = TimingPlan(blocks=2, least_blocks=2, visit_seconds=0.0001, warm_up_seconds=0.02, extras=False)
    found = _measure(machine, plan)
    assert (found.samples["a"].steady, found.samples["b"].steady) == (True, False)


def test_a_ratio_that_moves_is_told() -> None:
    """Steady by its warm-up, and 8 % longer at the end of every launch; the others are not named."""
    machine = FakeMachine(arms={"a": FakeArm(), "b": FakeArm(growing=0.0002, wall_ns=_times(2.0)), "c": FakeArm()})
    decision = _measure(machine, names="abc").decision
    assert decision is not None
    assert decision.moving == {"b"}


def test_one_arm_alone_has_no_clone_and_one_look() -> None:
    """There is nothing to compare."""
    found = _measure(FakeMachine(), names="a")
    assert (list(found.samples), len(found.seconds)) == (["a"], 4)


def test_ctrl_c_leaves_no_worker() -> None:
    """In the midst of a launch."""
    machine = FakeMachine()

    def interrupt(_: str) -> None:
        if machine.seconds > 1.0:
            raise KeyboardInterrupt

    with machine.pool() as pool:
        schedule = _schedule(machine, on_progress=interrupt)
        schedule.pool = pool
        with pytest.raises(KeyboardInterrupt):
            schedule.measure()
    assert machine.processes
    assert machine.alive == 0


def test_the_order_repeats_with_the_seed() -> None:
    """The same seed visits alike, another one differently."""
    orders = []
    for seed in (1, 1, 2):
        machine = FakeMachine()
        _measure(
            machine, TimingPlan(blocks=20, least_blocks=20, budget_seconds=1e9, extras=False, seed=seed), names="abc"
        )
        orders.append(list(visits_of(machine.told)))
    assert orders[0] == orders[1] != orders[2]


def _limited(machine: FakeMachine, seconds: float, **more: object) -> TimingPlan:
    """A plan whose command began at 0 on the clock of the machine."""
    return replace(PLAN, deadline=Deadline(budget_seconds=seconds, now=machine.now, start=0.0), **more)


# Of two arms and a clone of 1 ms, in launches that take 5 s to start: about 3 x 5 s, warm-ups, and 40 blocks of 30 ms.
_STARTING = 5.0


@pytest.mark.parametrize(("budget", "launches"), [(1000.0, 4), (60.0, 3), (45.0, 2), (20.0, 1)])
def test_a_deadline_holds(budget: float, launches: int) -> None:
    """Launches that would end later are left out, and nothing goes on after it, whatever the looks ask for."""
    machine = FakeMachine(arms=_noisy(0.5), starting_seconds=_STARTING)
    result = _measure(machine, _limited(machine, budget))
    assert len(result.launches) == launches
    assert machine.now() <= budget
    assert result.decision is not None
    assert result.decision.estimates["b"].ratio == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(("launches", "verdict"), [(3, RatioVerdict.FASTER), (2, RatioVerdict.INCONCLUSIVE)])
def test_too_few_launches_have_no_verdict(launches: int, verdict: RatioVerdict) -> None:
    """Below three launches of 40 blocks the test rejects too many equal arms: there is a ratio and no verdict."""
    machine = FakeMachine(arms=_noisy(0.5), starting_seconds=_STARTING)
    result = _measure(machine, _limited(machine, {3: 60.0, 2: 45.0}[launches]))
    assert result.decision is not None
    assert (len(result.launches), result.decision.verdicts["b"]) == (launches, verdict)


def test_a_deadline_in_the_first_launch() -> None:
    """The blocks until then count; with none there is nothing to say."""
    slow = {"a": FakeArm(wall_ns=_times(100.0)), "b": FakeArm(wall_ns=_times(50.0))}
    machine = FakeMachine(arms=slow, starting_seconds=1.0)
    result = _measure(machine, _limited(machine, 12.0, warm_up_seconds=0.1))
    assert len(result.launches) == 1
    assert 0 < len(result.launches[0]["a"].visits) < 40
    assert machine.now() <= 12.5  # the block that was running
    machine = FakeMachine(starting_seconds=30.0)
    with pytest.raises(BudgetSpentError):
        _measure(machine, _limited(machine, 20.0))


@pytest.mark.parametrize("budget", [10.52, 11.03, 11.54, 12.05, 12.56])
def test_a_deadline_within_a_visit(budget: float) -> None:
    """No answer is waited for beyond it: the blocks finished by then count, of every arm, also if visits are slow."""
    slow = {name: FakeArm(wall_ns=_times(100.0), growing=0.02) for name in "ab"}
    machine = FakeMachine(arms=slow, starting_seconds=1.0, ends_at=budget)
    result = _measure(machine, _limited(machine, budget, warm_up_seconds=0.1))
    assert (len(result.launches), result.failures) == (1, {})
    first, second = (len(result.launches[0][name].visits) for name in "ab")
    assert 0 < first == second < 40
    assert machine.now() == pytest.approx(budget)


@pytest.mark.parametrize("slow", "abc")
@pytest.mark.parametrize("budget", [20.0, 40.0])
def test_a_slow_arm_does_not_take_the_time_of_the_others(slow: str, budget: float) -> None:
    """Loading one arm takes longer than the command may: it is out, and the others have complete blocks."""
    arms = {name: FakeArm(loading_seconds=1000.0 if name == slow else 0.1) for name in "abc"}
    machine = FakeMachine(arms=arms, starting_seconds=0.5, ends_at=budget)
    with machine.pool() as pool:
        schedule = _schedule(machine, _limited(machine, budget), names="abc", times_survivor=False)
        schedule.pool = pool
        if slow == "a":  # the baseline: the comparison starts again without it, with the time that is left
            with pytest.raises(BaselineFailedError) as error:
                schedule.measure()
            assert isinstance(error.value.__cause__, ArmTooSlowError)
            assert machine.now() < 0.6 * budget
            return
        result = schedule.measure()
    assert isinstance(result.failures[slow], ArmTooSlowError)
    assert set(result.launches[0]) == {*"abc", CLONE} - {slow}
    assert len({len(arm.visits) for arm in result.launches[0].values()}) == 1
    assert machine.now() <= budget


def test_a_survivor_of_slow_arms_is_timed_alone() -> None:
    """What failed may make a comparison pointless; what had no time leaves the median of the others."""
    arms = {"a": FakeArm(), "b": FakeArm(loading_seconds=1000.0)}
    machine = FakeMachine(arms=arms, starting_seconds=0.5, ends_at=30.0)
    with machine.pool() as pool:
        schedule = _schedule(machine, _limited(machine, 30.0), times_survivor=False)
        schedule.pool = pool
        result = schedule.measure()
    assert len(result.samples["a"].wall_seconds) >= 1
    assert list(result.failures) == ["b"]


def test_visits_begin_before_the_time_is_over() -> None:
    """Eight calls of 2 s would warm up an arm for 16 s: of 40 s half is for blocks, in which every arm has its turn."""
    slow = {name: FakeArm(wall_ns=_times(2000.0)) for name in "ab"}
    machine = FakeMachine(arms=slow, ends_at=40.0)
    result = _measure(machine, _limited(machine, 40.0))
    assert {len(arm.visits) for arm in result.launches[0].values()} == {2}
    assert machine.now() <= 40.0


def test_an_arm_that_is_late_does_not_undo_a_launch() -> None:
    """A worker that fails after the deadline, in a later launch, ends that launch; the launches before it count."""
    slower = FakeArm(wall_ns=lambda process: (1.0 if process < 2 else 100.0) * MILLISECOND)
    machine = FakeMachine(arms={"a": slower, "b": FakeArm(fails={1: "load"})}, starting_seconds=_STARTING)
    plan = _limited(machine, 35.0)
    result = _measure(machine, plan)
    assert (len(result.launches), result.failures) == (1, {})


def test_one_arm_has_fewer_launches() -> None:
    """Alone it is not compared: three processes, few blocks where time is short, no clone, extras once."""
    machine = FakeMachine(starting_seconds=0.5)
    plan = lone_plan(replace(PLAN, extras=True, budget_seconds=2.0, blocks=80))
    result = _measure(machine, plan, names="a")
    assert len(result.launches) == 3
    assert len(result.launches[0]["a"].visits) == 12
    assert list(result.samples) == ["a"]
    assert [launch["a"].idle_seconds is not None for launch in result.launches] == [True, False, False]
