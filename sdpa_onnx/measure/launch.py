"""One launch of a comparison: start a process for every arm, warm them up in random order, visit them in random blocks.

Knows jobs and workers, not models; judges nothing. Never times one arm and then the other: what disturbs the machine
must disturb all arms alike.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from sdpa_onnx.core.timing.steady import WarmUp, judge_warm_up
from sdpa_onnx.measure.machine_load import OthersLoad
from sdpa_onnx.measure.pool import TimedWorker, WorkerKey, WorkerPool, worker_keys
from sdpa_onnx.measure.samples import CLONE
from sdpa_onnx.measure.timing_plan import TimingPlan, calls_of_a_visit
from sdpa_onnx.runtimes.arm_job import ArmJob, KernelTimes, LoadTimes, Visit
from sdpa_onnx.runtimes.workers import WorkerFailedError, WorkerSilentError

__all__ = ["ArmLaunch", "ArmTooSlowError", "BaselineFailedError", "Launch"]

# A warm-up may always take so many calls: the rule needs five, and a fresh process is seldom steady in those.
_LEAST_WARM_CALLS = 8
# How long the arms are left alone before the run after idling: far above the time that threads spin for.
_IDLE_SECONDS = 0.2
# Calls of the run under the runtime's own profile.
_PROFILED_CALLS = 5
# Others are looked for over windows of this length, since /proc/stat ticks every 10 ms: 5 % of a core are 2.5 ticks.
_WINDOW_SECONDS = 0.5
# Share of one core that others may use in a block of several threads. Source: METHOD B.4.
_OTHERS_LIMIT = 0.05


class BaselineFailedError(WorkerFailedError):
    """The arm that all ratios refer to failed; the comparison starts again without it."""


class ArmTooSlowError(WorkerFailedError):
    """Loading an arm took more than its share of the time limit, which belongs to the other arms too."""


class _OutOfTimeError(Exception):
    """The deadline came while a visit was waited for."""


@dataclass(slots=True)
class ArmLaunch:
    """What one launch measured of one arm.

    Args:
        loaded: What loading took.
        steady: Whether it warmed up.
        visits: By block.
        idle_seconds: Run after idling, None where not measured.
        kernels: Time inside kernels, and of the calls that it was measured in.
    """

    loaded: LoadTimes
    steady: bool = True
    visits: list[Visit] = field(default_factory=list)
    idle_seconds: float | None = None
    kernels: KernelTimes = field(default_factory=KernelTimes)


@dataclass(slots=True)
class Launch:
    """One launch; a context manager that gives its workers back.

    Args:
        number: Which, from 0.
        jobs: By arm, the clone among them.
        baseline: The arm that may not fail.
        pool: Of the workers.
        plan: How much is measured.
        calls: Calls of a visit by arm; what is missing is filled in by the warm-up.
        rng: Of every order.
        now: Wall clock, seconds.
        arms: What was measured, of arms that have not failed.
        failures: Error by arm.
        doubts: Sentence by arm that was timed and then failed at an extra measurement.
        quiet: By block, whether nobody else used the machine; empty where that is not asked.
    """

    number: int
    jobs: Mapping[str, ArmJob]
    baseline: str
    pool: WorkerPool
    plan: TimingPlan
    calls: dict[str, int]
    rng: np.random.Generator
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    arms: dict[str, ArmLaunch] = field(default_factory=dict, init=False)
    failures: dict[str, WorkerFailedError] = field(default_factory=dict, init=False)
    doubts: dict[str, str] = field(default_factory=dict, init=False)
    quiet: list[bool] = field(default_factory=list, init=False)
    _workers: dict[str, TimedWorker] = field(default_factory=dict, init=False)
    _keys: dict[str, WorkerKey] = field(default_factory=dict, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for name in list(self._workers):
            self._let_go(name, failed=error[0] is not None)

    def start(self) -> None:
        """Start all processes at once, so that they import side by side; then load and warm up one after the other.

        Under a time limit no arm has more than its share of what is left: an arm that is not loaded by then is out, and
        half of the time after loading is for the visits.

        Raises:
            BaselineFailedError: Here as everywhere, if the baseline fails; another arm is an error in `failures`.
        """
        keys = worker_keys(self.jobs, self.number)
        for name in self._shuffled(self.jobs):
            self._keys[name] = keys[name]
            with self._failing(name):
                self._workers[name] = self.pool.take(keys[name])
        self._each(lambda _, worker: worker.wait_ready())
        self._each(self._load)
        self._each(self._warm_up)

    def seconds_of_block(self) -> float:
        """About what one block takes, from the last visits of the warm-up."""
        return sum(
            float(np.median(arm.visits[-1].wall_ns)) * 1e-9 * self.calls[self._model(name)]
            for name, arm in self.arms.items()
        )

    def visit(self, blocks: int, *, watch_others: bool, on_block: Callable[[int], None]) -> int:
        """Visit every arm once in each block, in random order.

        Args:
            blocks: How many.
            watch_others: Whether to note in which blocks nobody else used the machine.
            on_block: Called with the number of finished blocks.

        Returns:
            Finished blocks: fewer where the deadline of the plan has come.
        """
        for arm in self.arms.values():
            arm.visits.clear()
        load = OthersLoad(ours=lambda: time.process_time() + self.pool.cpu_seconds()) if watch_others else None
        for block in range(blocks):
            if self.plan.deadline.is_past:
                return block
            try:
                self._each(self._visit)
            except _OutOfTimeError:  # the block does not count, in no arm
                for arm in self.arms.values():
                    del arm.visits[block:]
                return block
            if load is not None and (block + 1 == blocks or load.seconds >= _WINDOW_SECONDS):
                share = load.share()
                is_quiet = share is not None and share < _OTHERS_LIMIT
                self.quiet += [is_quiet] * (block + 1 - len(self.quiet))
            on_block(block + 1)
        return blocks

    def extras(self) -> None:
        """Measure the run after idling and the time inside kernels."""
        self.sleep(_IDLE_SECONDS)  # of all arms at once
        self._each(self._after_idle, is_extra=True)
        self._each(self._kernels, is_extra=True)

    def ask(self, question: Callable[[str, TimedWorker], object]) -> None:
        """Ask every arm something else, such as what ran, while its worker lives."""
        self._each(question, is_extra=True)

    def _load(self, name: str, worker: TimedWorker) -> None:
        parts = len(self._workers.keys() - self.arms.keys()) + 1  # one more for the warm-up and the visits
        share = self.plan.deadline.turn(parts)
        try:
            loaded = worker.load(self.jobs[name], patience_seconds=None if math.isinf(share) else share)
        except WorkerSilentError as error:
            raise error if math.isinf(share) else ArmTooSlowError(str(error)) from error
        self.arms[name] = ArmLaunch(loaded=loaded)

    def _warm_up(self, name: str, worker: TimedWorker) -> None:
        """Visit until steady; visits are as long as they will be."""
        arm = self.arms[name]
        left = sum(not other.visits for other in self.arms.values())
        share = self.plan.deadline.turn(left + len(self.arms))
        model = self._model(name)
        start, medians, best, done = self.now(), list[float](), float("inf"), 0
        state = WarmUp.NOT_YET
        while state is WarmUp.NOT_YET:
            calls = self.calls.get(model) or (calls_of_a_visit(best, self.plan.visit_seconds) if done else 1)
            visit = worker.visit(calls)
            arm.visits.append(visit)
            medians.append(float(np.median(visit.cpu_ns)))
            best, done = min(best, float(visit.wall_ns.min()) * 1e-9), done + calls
            state = judge_warm_up(
                medians,
                calls=done,
                seconds=self.now() - start,
                limit_seconds=min(max(self.plan.warm_up_seconds, _LEAST_WARM_CALLS * best), share),
            )
        arm.steady = state is WarmUp.STEADY
        self.calls.setdefault(model, calls_of_a_visit(best, self.plan.visit_seconds))

    def _model(self, name: str) -> str:
        """Whose number of calls an arm has: a clone's is the baseline's."""
        return self.baseline if name == CLONE else name

    def _visit(self, name: str, worker: TimedWorker) -> None:
        try:
            self.arms[name].visits.append(worker.visit(self.calls[self._model(name)]))
        except WorkerSilentError as error:
            if self.plan.deadline.is_past:
                raise _OutOfTimeError from error
            raise

    def _after_idle(self, name: str, worker: TimedWorker) -> None:
        self.arms[name].idle_seconds = worker.after_idle()

    def _kernels(self, name: str, worker: TimedWorker) -> None:
        self.arms[name].kernels = worker.kernel_times(_PROFILED_CALLS)

    def _each(self, step: Callable[[str, TimedWorker], object], *, is_extra: bool = False) -> None:
        """Do something with every worker that lives, in random order."""
        for name in self._shuffled(self._workers):
            with self._failing(name, is_extra=is_extra):
                step(name, self._workers[name])

    @contextlib.contextmanager
    def _failing(self, name: str, *, is_extra: bool = False) -> Iterator[None]:
        """A worker that fails is out of this launch, and the others go on; what was timed before an extra counts."""
        try:
            yield
        except WorkerFailedError as error:
            self._let_go(name, failed=True)
            if is_extra:
                self.doubts[name] = str(error)
                return
            self.arms.pop(name, None)
            if name == self.baseline:
                raise BaselineFailedError(str(error)) from error
            self.failures[name] = error

    def _let_go(self, name: str, *, failed: bool) -> None:
        self._workers.pop(name, None)
        self.pool.give_back(self._keys[name], failed=failed)

    def _shuffled(self, names: Iterable[str]) -> list[str]:
        order = list(names)
        self.rng.shuffle(order)
        return order
