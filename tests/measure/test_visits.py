"""The schedule of a comparison, on a clock that only calls advance."""

from collections.abc import Callable, Iterator
from itertools import chain, count, repeat

import numpy as np
import pytest

from sdpa_onnx.measure.samples import ArmSamples
from sdpa_onnx.measure.visits import SystemClock, VisitPlan, visit_arms

MILLISECOND = 1_000_000


class FakeClock:
    """Time stands still but for calls."""

    def __init__(self) -> None:
        self.wall = 5_000
        self.cpu = 70
        self.calls: list[str] = []

    def wall_ns(self) -> int:
        return self.wall

    def cpu_ns(self) -> int:
        return self.cpu

    def arm(self, name: str, wall: Iterator[int] | int, cpu: Iterator[int] | int | None = None) -> Callable[[], None]:
        """A call that takes the next of these nanoseconds; CPU time as wall time unless given."""
        walls = repeat(wall) if isinstance(wall, int) else wall
        cpus = repeat(cpu) if isinstance(cpu, int) else cpu

        def call() -> None:
            spent = next(walls)
            self.wall += spent
            self.cpu += spent if cpus is None else next(cpus)
            self.calls.append(name)

        return call


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


# Warm-up of calls of a millisecond in visits of two: a first visit of five, eleven of two.
WARM_UP = 5 + 11 * 2
# Two calls of a millisecond each a visit.
SHORT = VisitPlan(blocks=20, visit_seconds=0.002, budget_seconds=1e9)


def visits_of(calls: list[str], calls_per_visit: int, arms: int) -> list[tuple[str, ...]]:
    """Names in the order of the visits, block by block; each visit is uninterrupted."""
    visits = [calls[at : at + calls_per_visit] for at in range(0, len(calls), calls_per_visit)]
    assert all(len(set(visit)) == 1 for visit in visits)
    names = [visit[0] for visit in visits]
    return [tuple(names[at : at + arms]) for at in range(0, len(names), arms)]


def test_every_block_visits_every_arm_once_in_random_order(clock: FakeClock) -> None:
    """Never one arm and then the other: all six orders of three arms occur."""
    arms = {name: clock.arm(name, MILLISECOND) for name in "abc"}
    visit_arms(arms, VisitPlan(blocks=60, visit_seconds=0.002, budget_seconds=1e9), clock=clock)
    warm_up, measured = clock.calls[: 3 * WARM_UP], clock.calls[3 * WARM_UP :]
    assert warm_up == ["a"] * WARM_UP + ["b"] * WARM_UP + ["c"] * WARM_UP
    blocks = visits_of(measured, 2, 3)
    assert len(blocks) == 60
    assert all(sorted(block) == ["a", "b", "c"] for block in blocks)
    assert len(set(blocks)) == 6
    firsts = [block[0] for block in blocks]
    assert all(firsts.count(name) >= 10 for name in "abc")


def test_the_order_repeats_with_the_seed() -> None:
    """The same seed visits alike, another one differently."""
    orders = []
    for seed in (1, 1, 2):
        clock = FakeClock()
        arms = {name: clock.arm(name, MILLISECOND) for name in "abc"}
        visit_arms(arms, VisitPlan(blocks=20, visit_seconds=0.002, budget_seconds=1e9, seed=seed), clock=clock)
        orders.append(clock.calls)
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_every_call_is_kept_on_both_clocks(clock: FakeClock) -> None:
    """Raw samples in seconds, (1 launch, blocks, calls), in the order they were taken."""
    # Warm-up calls of 1 ms, then 1000, 1001, ... us, of which the CPU worked 900 us.
    wall = chain(repeat(MILLISECOND, WARM_UP), (MILLISECOND + 1000 * step for step in count()))
    cpu = chain(repeat(MILLISECOND, WARM_UP), repeat(900_000))
    samples = visit_arms({"a": clock.arm("a", wall, cpu)}, SHORT, clock=clock)["a"]
    assert samples.wall_seconds.shape == (1, 20, 2)
    np.testing.assert_allclose(samples.wall_seconds.ravel(), 1e-3 + 1e-6 * np.arange(40), rtol=1e-12)
    np.testing.assert_allclose(samples.cpu_seconds, 9e-4, rtol=1e-12)
    assert samples.steady


@pytest.mark.parametrize(
    ("call_ns", "calls"), [(100_000, 100), (3 * MILLISECOND, 3), (5 * MILLISECOND, 2), (80 * MILLISECOND, 1)]
)
def test_a_visit_lasts_as_long_as_planned_and_has_two_calls_if_they_are_short(
    clock: FakeClock, call_ns: int, calls: int
) -> None:
    """Ten milliseconds, or two calls that take longer; one where a call is long."""
    plan = VisitPlan(blocks=3, visit_seconds=0.01, budget_seconds=1e9)
    assert visit_arms({"a": clock.arm("a", call_ns)}, plan, clock=clock)["a"].wall_seconds.shape == (1, 3, calls)


def test_a_call_that_waits_does_not_lengthen_its_visit(clock: FakeClock) -> None:
    """Ten milliseconds are wall time: a call that waits 15 ms for a device and computes 10 us is called twice."""
    plan = VisitPlan(blocks=3, visit_seconds=0.01, budget_seconds=1e9)
    samples = visit_arms({"a": clock.arm("a", 15 * MILLISECOND, 10_000)}, plan, clock=clock)["a"]
    assert samples.wall_seconds.shape == (1, 3, 2)


def test_each_arm_has_its_own_number_of_calls(clock: FakeClock) -> None:
    """A quick arm is called more often in the same time."""
    arms = {"quick": clock.arm("quick", MILLISECOND), "slow": clock.arm("slow", 4 * MILLISECOND)}
    samples = visit_arms(arms, VisitPlan(blocks=3, visit_seconds=0.012, budget_seconds=1e9), clock=clock)
    assert {name: arm.wall_seconds.shape for name, arm in samples.items()} == {"quick": (1, 3, 12), "slow": (1, 3, 3)}


# --- Warm-up ---


def test_warm_up_waits_while_times_fall(clock: FakeClock) -> None:
    """Ten visits that each set a new best are not steady; after them, the last two thirds must be."""
    falling = (step * MILLISECOND for step in range(20, 10, -1) for _ in range(5))
    wall = chain(falling, repeat(10 * MILLISECOND))
    plan = VisitPlan(blocks=1, visit_seconds=0.05)
    samples = visit_arms({"a": clock.arm("a", wall)}, plan, clock=clock)["a"]
    assert samples.steady
    assert len(clock.calls) > 5 * (10 + 3) + 5


def test_a_steady_arm_warms_up_for_twelve_visits(clock: FakeClock) -> None:
    """Of five calls, where a visit has room for them."""
    assert visit_arms({"a": clock.arm("a", MILLISECOND)}, VisitPlan(blocks=1), clock=clock)["a"].steady
    assert len(clock.calls) == 12 * 5 + 10


def test_calls_that_are_often_held_up_do_not_pass_the_budget(clock: FakeClock) -> None:
    """Every second call of 1 ms takes 40: by the least of them a visit of 10 ms would have 10 calls and take 205 ms."""
    ms = MILLISECOND
    wall = chain.from_iterable(repeat([ms, 40 * ms]))
    plan = VisitPlan(blocks=20, visit_seconds=0.01)
    found = visit_arms({"a": clock.arm("a", wall, repeat(ms))}, plan, clock=clock)
    assert found["a"].wall_seconds.shape == (1, 20, 1)


def test_one_slow_call_does_not_spoil_a_visit(clock: FakeClock) -> None:
    """For the steady state the median of five counts, not the mean; for the calls of a visit what they will take."""
    ms = MILLISECOND
    wall = chain(repeat(ms, 50), [ms, ms, 50 * ms, ms, ms, ms, 90 * ms, ms, 70 * ms, ms], repeat(ms))
    assert visit_arms({"a": clock.arm("a", wall)}, VisitPlan(blocks=1, visit_seconds=0.005), clock=clock)["a"].steady
    assert len(clock.calls) == 12 * 5 + 2


def test_warm_up_gives_up_at_its_limit(clock: FakeClock) -> None:
    """Times that grow by 10 % from visit to visit never settle: after the limit it goes on and says so."""
    unsettled = (round(MILLISECOND * 1.1**block) for block in count() for _ in range(5))
    plan = VisitPlan(blocks=1, visit_seconds=0.02, warm_up_seconds=2.0)
    start = clock.wall
    samples = visit_arms({"a": clock.arm("a", unsettled)}, plan, clock=clock)["a"]
    assert not samples.steady
    # At most one visit over the limit, then the calls that were measured.
    assert 2.0 < (clock.wall - start) * 1e-9 - samples.wall_seconds.sum() <= 2.0 + samples.wall_seconds.max() * 5


# --- Budget ---


def test_the_budget_ends_the_blocks(clock: FakeClock) -> None:
    """The block that passes the budget is the last: 2 arms x 2 calls x 10 ms a block, 1 s."""
    arms = {name: clock.arm(name, 10 * MILLISECOND) for name in "ab"}
    plan = VisitPlan(blocks=100, visit_seconds=0.02, budget_seconds=1.0, least_blocks=5)
    samples = visit_arms(arms, plan, clock=clock)
    # 25 blocks are exactly 1 s, which is not above the budget; the 26th passes it.
    assert {name: arm.wall_seconds.shape[1] for name, arm in samples.items()} == {"a": 26, "b": 26}


def test_the_least_blocks_are_measured_whatever_they_cost(clock: FakeClock) -> None:
    """A call of 10 s against a budget of 4 s: twelve blocks all the same."""
    samples = visit_arms({"a": clock.arm("a", 10_000 * MILLISECOND)}, VisitPlan(), clock=clock)["a"]
    assert samples.wall_seconds.shape == (1, 12, 1)


def test_no_more_blocks_than_planned(clock: FakeClock) -> None:
    """Time left over is not spent; warm-up does not count against the budget."""
    samples = visit_arms({"a": clock.arm("a", MILLISECOND)}, VisitPlan(blocks=40), clock=clock)["a"]
    assert samples.wall_seconds.shape[1] == 40
    few = visit_arms({"a": clock.arm("a", MILLISECOND)}, VisitPlan(blocks=4, least_blocks=12), clock=clock)["a"]
    assert few.wall_seconds.shape[1] == 4


# --- Disturbance ---


def samples_of(wall: list[float], cpu: list[float]) -> ArmSamples:
    return ArmSamples(wall_seconds=np.array([[wall]]), cpu_seconds=np.array([[cpu]]), steady=True)


def test_disturbed_calls_lose_three_percent_and_three_microseconds() -> None:
    """Just inside and just outside the limit, for a long and a short call."""
    limit = [0.1 * 1.03 + 3e-6, 1e-6 * 1.03 + 3e-6]
    cpu = [0.1, 1e-6]
    assert samples_of([one * 0.9999 for one in limit], cpu).disturbed == 0.0
    assert samples_of([one * 1.0001 for one in limit], cpu).disturbed == 1.0
    assert samples_of([limit[0] * 1.0001, limit[1] * 0.9999], cpu).disturbed == 0.5


def test_more_cpu_than_wall_is_no_disturbance() -> None:
    """Several threads spend more CPU time than wall time."""
    assert samples_of([0.1, 0.1], [0.2, 0.4]).disturbed == 0.0


def test_the_share_of_disturbed_calls_comes_from_the_run(clock: FakeClock) -> None:
    """Every fourth call waits 1 ms for other processes."""
    wall = chain(repeat(MILLISECOND, 15), (MILLISECOND * (2 if step % 4 == 3 else 1) for step in count()))
    samples = visit_arms({"a": clock.arm("a", wall, MILLISECOND)}, SHORT, clock=clock)["a"]
    assert samples.disturbed == 0.25


def test_the_system_clocks_never_go_back() -> None:
    """Both count nanoseconds as integers."""
    for read in (SystemClock().wall_ns, SystemClock().cpu_ns):
        first, second = read(), read()
        assert isinstance(first, int)
        assert second >= first
