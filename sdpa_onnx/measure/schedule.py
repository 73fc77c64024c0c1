"""The schedule of a comparison: launch after launch, fixed looks, until there are verdicts or the budget is used.

The looks are fixed beforehand, each with its share of alpha: nothing here goes on "until significant".
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.core.timing.paired import StoppingLook
from sdpa_onnx.measure.launch import ArmLaunch, ArmTooSlowError, BaselineFailedError, Launch
from sdpa_onnx.measure.pool import TimedWorker, WorkerPool
from sdpa_onnx.measure.samples import CLONE, ArmSamples
from sdpa_onnx.measure.timing_plan import TimingPlan, blocks_of_launch
from sdpa_onnx.measure.verdict_rule import Decision, decide, quiet_blocks
from sdpa_onnx.runtimes.arm_job import ArmJob
from sdpa_onnx.runtimes.workers import WorkerFailedError

__all__ = ["BudgetSpentError", "LoneArmError", "Schedule", "ScheduleResult"]

# Below so many launches or blocks the test rejects too many equal arms, so a budget that ends earlier gives ratios and
# no verdicts. Source: METHOD B.3 (40 blocks x 3 pairs).
_LEAST_LAUNCHES, _LEAST_BLOCKS = 3, 40


class BudgetSpentError(WorkerFailedError):
    """The deadline came before anything was measured."""


class LoneArmError(WorkerFailedError):
    """All arms but one failed to load, and that one is not to be timed alone.

    Args:
        failures: Error by arm.
    """

    def __init__(self, failures: Mapping[str, WorkerFailedError]) -> None:
        super().__init__(" ".join(map(str, failures.values())))
        self.failures = failures


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleResult:
    """A finished comparison.

    Args:
        samples: By arm, `CLONE` among them where there was one.
        launches: What each launch measured of each arm that did not fail.
        failures: Error by arm that did not.
        doubts: Sentence by arm that was timed and then failed at an extra measurement.
        decision: The last look; None where others used the machine all the time.
        seconds: By launch: starts, loading, warm-up, blocks.
    """

    samples: Mapping[str, ArmSamples]
    launches: tuple[Mapping[str, ArmLaunch], ...]
    failures: Mapping[str, WorkerFailedError]
    doubts: Mapping[str, str]
    decision: Decision | None
    seconds: tuple[float, ...]


@dataclass(slots=True)
class Schedule:
    """Carries out one comparison.

    The blocks of a launch are chosen once, after the first warm-up: as many as let every look fit into the budget, at
    most `plan.blocks`; with fewer than `plan.least_blocks` the later looks are given up instead, from the last. The
    first look is taken whatever it costs, with `plan.least_blocks` if need be: a budget that is to hold there needs a
    small `least_blocks`.

    Args:
        jobs: By arm. A clone of the baseline is added where the plan asks for one and there is something to compare.
        baseline: Arm that ratios refer to.
        plan: How much is measured.
        pool: Of the workers.
        threads: Threads inside one operator; above 1 blocks in which others used the machine are noted.
        on_progress: Called with the current step.
        on_note: Called in the first launch with an estimate of the shortest total time.
        question: Asked of every arm, with its worker, at the end of the first launch.
        after_launch: Called after each, such as to look for other timings.
        times_survivor: Whether the only arm that did not fail to load is timed.
        now, sleep: The clock, seconds.
    """

    jobs: Mapping[str, ArmJob]
    baseline: str
    plan: TimingPlan
    pool: WorkerPool
    threads: int = 1
    on_progress: Callable[[str], None] = lambda _: None
    on_note: Callable[[str], None] = lambda _: None
    question: Callable[[str, TimedWorker], object] = lambda _, __: None
    after_launch: Callable[[], object] = lambda: None
    times_survivor: bool = True
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    _rng: np.random.Generator = field(init=False)
    _calls: dict[str, int] = field(default_factory=dict, init=False)
    _failures: dict[str, WorkerFailedError] = field(default_factory=dict, init=False)
    _doubts: dict[str, str] = field(default_factory=dict, init=False)
    _launches: list[Launch] = field(default_factory=list, init=False)
    _seconds: list[float] = field(default_factory=list, init=False)
    _blocks: int = field(default=0, init=False)

    def measure(self) -> ScheduleResult:
        """Launch, look, and stop.

        Raises:
            BaselineFailedError: If the baseline fails in any launch.
            LoneArmError: If the others fail to load and the baseline is not to be timed alone.
            BudgetSpentError: If the deadline of the plan comes before one launch has measured anything.
        """
        self._rng = np.random.default_rng(self.plan.seed)
        begin, decision = self.now(), None
        for look in self.plan.looks:
            if self._launches and not self._fits(look, self.now() - begin):
                break
            while len(self._launches) < look.launches and self._allows_launch():
                if not self._launch(look, begin):
                    break
            if not self._launches:
                raise BudgetSpentError("The time limit was reached before anything was timed.")
            is_complete = len(self._launches) >= look.launches
            decision = self._decide(look) if is_complete else self._cut(look)
            if decision is None or decision.can_stop or not is_complete:
                break
        return self._measured(decision)

    def _allows_launch(self) -> bool:
        """Whether another launch would end before the deadline, if it takes as long as the longest before."""
        return self.plan.deadline.allows(max(self._seconds, default=0.0))

    def _cut(self, look: StoppingLook) -> Decision | None:
        """The result of the launches that the deadline left; of too few there are ratios and no verdicts."""
        decision = self._decide(replace(look, launches=len(self._launches)))
        if decision is None or (len(self._launches) >= _LEAST_LAUNCHES and self._blocks >= _LEAST_BLOCKS):
            return decision
        kept = {
            name: verdict if verdict is RatioVerdict.NOISY else RatioVerdict.INCONCLUSIVE
            for name, verdict in decision.verdicts.items()
        }
        return replace(decision, verdicts=kept)

    def _launch(self, look: StoppingLook, begin: float) -> bool:
        """Carry out one launch; False if the deadline came in it and it does not count."""
        number, start = len(self._launches), self.now()
        self.on_progress(f"launch {number + 1} of at most {self.plan.looks[-1].launches}: starting {len(self._left())}")
        with self._new_launch(number) as launch:
            try:
                launch.start()
                if number == 0:
                    self._check_company(launch)
                    self._choose_blocks(
                        launch.seconds_of_block(), spent=self.now() - begin, setting_up=self.now() - start
                    )
                blocks = launch.visit(
                    self._blocks, watch_others=self.threads > 1, on_block=lambda block: self._told(number, block)
                )
            except BaselineFailedError:
                if self.plan.deadline.is_past:
                    return False
                raise
            if blocks < self._blocks or (number and self.plan.deadline.is_past and launch.failures):
                if number or not blocks:
                    return False
                self._blocks = blocks
            if self.plan.extras and self._has_extras(look, number) and self._allows(start):
                launch.extras()
            if number == 0 and self._allows(start):
                launch.ask(self.question)
        self._failures |= {name: why for name, why in launch.failures.items() if name != CLONE}
        self._doubts = launch.doubts | self._doubts
        self._launches.append(launch)
        self._seconds.append(self.now() - start)
        self.after_launch()
        return True

    def _has_extras(self, look: StoppingLook, number: int) -> bool:
        """Extras are measured in every launch of the first look, of an arm alone in the first launch."""
        return look is self.plan.looks[0] and (number == 0 or len(self.jobs) > 1)

    def _allows(self, start: float) -> bool:
        """Whether extra measurements fit: loading a model again takes no longer than the launch has taken so far."""
        return self.plan.deadline.allows(self.now() - start)

    def _check_company(self, launch: Launch) -> None:
        """Stop where failures have left one arm, unless that is to be timed alone."""
        others = {name: why for name, why in launch.failures.items() if name != CLONE}
        failures = {name: why for name, why in others.items() if not isinstance(why, ArmTooSlowError)}
        if failures and not self.times_survivor and len(others) == len(self.jobs) - 1:
            raise LoneArmError(failures)

    def _choose_blocks(self, block_seconds: float, *, spent: float, setting_up: float) -> None:
        """Blocks of every launch, and what the least will take: the first look is taken whatever it costs."""
        self._blocks = blocks_of_launch(self.plan, block_seconds=block_seconds, spent=spent, setting_up=setting_up)
        launches = self.plan.looks[0].launches
        least = spent + (launches - 1) * setting_up + launches * self._blocks * block_seconds
        self.on_note(f"at least about {least:.0f} s: {launches} launches of {self._blocks} blocks")

    def _new_launch(self, number: int) -> Launch:
        return Launch(
            number=number,
            jobs=self._left(),
            baseline=self.baseline,
            pool=self.pool,
            plan=self.plan,
            calls=self._calls,
            rng=self._rng,
            now=self.now,
            sleep=self.sleep,
        )

    def _told(self, number: int, block: int) -> None:
        of = self.plan.looks[-1].launches
        self.on_progress(f"launch {number + 1} of at most {of}: block {block} of {self._blocks}")

    def _left(self) -> dict[str, ArmJob]:
        """Jobs of the arms that have not failed, and of the clone."""
        left = {name: job for name, job in self.jobs.items() if name not in self._failures}
        lost = any(CLONE in launch.failures for launch in self._launches)
        if self.plan.clone and len(self.jobs) > 1 and not lost:
            left[CLONE] = self.jobs[self.baseline]
        return left

    def _contestants(self) -> list[str]:
        """Arms that failed in no launch; the baseline is among them, or the comparison has ended."""
        return [name for name in self._left() if all(name in launch.arms for launch in self._launches)]

    def _fits(self, look: StoppingLook, spent: float) -> bool:
        """Whether the launches of a look would end within the budget, if they take what those before took."""
        more = look.launches - len(self._launches)
        return spent + more * float(np.median(self._seconds)) <= self.plan.budget_seconds

    def _decide(self, look: StoppingLook) -> Decision | None:
        """Result of the look, or None where others used the machine all the time."""
        samples = self._samples()
        if not quiet_blocks(samples):
            return None
        return decide(samples, self.baseline, look=look, plan=self.plan, threads=self.threads, device=self._device())

    def _device(self) -> str:
        """Of the first arm that does not run on the CPU, if there is one: its CPU time is meaningless."""
        devices = (self._launches[0].arms[name].loaded.device for name in self._contestants())
        return next((device for device in devices if device != "cpu"), "cpu")

    def _samples(self) -> dict[str, ArmSamples]:
        return {name: self._sample(name) for name in self._contestants()}

    def _sample(self, name: str) -> ArmSamples:
        launches = [launch.arms[name] for launch in self._launches]
        visits = [visit for launch in launches for visit in launch.visits]
        shape = (len(launches), self._blocks, -1)
        return ArmSamples(
            wall_seconds=_seconds([visit.wall_ns for visit in visits]).reshape(shape),
            cpu_seconds=_seconds([visit.cpu_ns for visit in visits]).reshape(shape),
            steady=all(launch.steady for launch in launches),
            switches=_total([visit.switches for visit in visits]),
            faults=_total([visit.faults for visit in visits]),
            quiet=np.array([launch.quiet for launch in self._launches]) if self.threads > 1 else None,
        )

    def _measured(self, decision: Decision | None) -> ScheduleResult:
        kept = self._contestants()
        return ScheduleResult(
            samples=self._samples(),
            launches=tuple({name: launch.arms[name] for name in kept} for launch in self._launches),
            failures=self._failures,
            doubts=self._doubts,
            decision=decision,
            seconds=tuple(self._seconds),
        )


def _seconds(visits: list[NDArray[np.int64]]) -> NDArray[np.float64]:
    return np.stack(visits).astype(np.float64) * 1e-9


def _total(counts: list[int]) -> int | None:
    """Their sum, or None where the system does not count them, for which a worker reports -1."""
    return None if min(counts, default=-1) < 0 else sum(counts)
