"""Workers without a process, on a clock that only they move: what an arm takes, and how it fails, is written down."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sdpa_onnx.measure.pool import WorkerPool
from sdpa_onnx.runtimes.arm_job import ArmJob, KernelTimes, LoadTimes, RanFacts, Visit
from sdpa_onnx.runtimes.base import RanReport
from sdpa_onnx.runtimes.workers import WorkerFailedError, WorkerSilentError
from tests.runtimes.worker.environments import ORT

MILLISECOND = 1_000_000


@dataclass
class FakeArm:
    """What an arm does.

    Args:
        wall_ns: Of a call, by the number of the process that runs it.
        cpu_share: CPU time over wall time.
        noise: Standard deviation of the log of every call.
        loading_seconds: What loading takes.
        growing: How much longer every call takes than the one before, as a share.
        fails: Process number -> what it fails at: "start", "ready", "load", "visit", "idle", "ran".
    """

    wall_ns: Callable[[int], float] = lambda _: MILLISECOND
    cpu_share: float = 1.0
    noise: float = 0.0
    growing: float = 0.0
    loading_seconds: float = 0.0
    fails: Mapping[int, str] = field(default_factory=dict)
    device: str = "cpu"
    clock_mhz: Callable[[], float] = lambda: -1.0


@dataclass
class FakeMachine:
    """The clock, and the workers that run.

    Args:
        arms: By the stem of the model's file, else by runtime, else the usual arm.
        starting_seconds: Of one launch: what `wait_ready` takes.
        report: What every worker says of what ran.
        ends_at: When no answer is waited for any longer, on its clock.
    """

    arms: Mapping[str, FakeArm] = field(default_factory=dict)
    starting_seconds: float = 0.0
    ends_at: float = math.inf
    report: RanReport = field(
        default_factory=lambda: RanReport(providers={"x": 1}, node_counts={"Attention": 1}, precision="float32")
    )
    seconds: float = 0.0
    told: list[tuple[str, str]] = field(default_factory=list)
    jobs: list[ArmJob] = field(default_factory=list)
    processes: list["FakeWorker"] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    _numbers: dict[str, int] = field(default_factory=dict)

    def start(
        self, engine: str, *, python: Path | None, threads: int, patience_seconds: float, runtime: str
    ) -> "FakeWorker":
        worker = FakeWorker(self, engine)
        self.processes.append(worker)
        return worker

    def pool(self, *, fresh: bool = True) -> WorkerPool:
        return WorkerPool(fresh=fresh, start=self.start)

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def number(self, name: str) -> int:
        """How many processes have loaded this arm before."""
        self._numbers[name] = self._numbers.get(name, -1) + 1
        return self._numbers[name]

    @property
    def alive(self) -> int:
        return sum(not worker.stopped for worker in self.processes)


@dataclass(eq=False)
class FakeWorker:
    """One process."""

    machine: FakeMachine
    engine: str
    name: str = ""
    process: int = -1
    stopped: bool = False
    called: int = 0

    def wait_ready(self) -> None:
        self.machine.seconds += self.machine.starting_seconds

    def load(self, job: ArmJob, *, patience_seconds: float | None = None) -> LoadTimes:
        self.name = job.model.stem
        self.process = self.machine.number(self.name)
        self.machine.jobs.append(job)
        self._arm_of = self.machine.arms.get(self.name) or self.machine.arms.get(job.runtime) or FakeArm()
        self._do("load")
        until = min(self.machine.ends_at, self.machine.seconds + (patience_seconds or math.inf))
        self.machine.seconds = min(self.machine.seconds + self._arm_of.loading_seconds, until)
        if self.machine.seconds == until:
            raise WorkerSilentError(f"{self.name} did not answer.")
        return LoadTimes(
            create_seconds=0.5 + self.process,
            first_seconds=0.25,
            new_length_seconds=0.125 if job.new_length_inputs is not None else -1.0,
            loaded_bytes=100,
            peak_bytes=7 + self.process,
            version="fake 1.0",
            device=self._arm_of.device,
        )

    def visit(self, calls: int) -> Visit:
        self._do("visit")
        arm = self._arm_of
        wall = arm.wall_ns(self.process) * np.exp(arm.noise * self.machine.rng.standard_normal(calls))
        if arm.growing:
            wall = wall * (1.0 + arm.growing) ** (self.called + np.arange(calls))
        self.called += calls
        self.machine.seconds += float(wall.sum()) * 1e-9
        if self.machine.seconds > self.machine.ends_at:
            self.machine.seconds = self.machine.ends_at
            raise WorkerSilentError(f"{self.name} did not answer.")
        return Visit(
            wall_ns=np.round(wall).astype(np.int64),
            cpu_ns=np.round(arm.cpu_share * wall).astype(np.int64),
            switches=1,
            faults=2,
            clock_mhz=arm.clock_mhz(),
        )

    def after_idle(self) -> float:
        self._do("idle")
        return 0.75

    def kernel_times(self, calls: int) -> KernelTimes:
        self._do("kernels")
        return KernelTimes(kernel_seconds=0.0004, call_seconds=0.00045)

    def ran(self, *, with_graph: bool = True) -> RanFacts:
        self._do("ran")
        return RanFacts(report=self.machine.report)

    def outputs(self, path: Path) -> None: ...

    def unload(self) -> None:
        self._do("unload")

    @property
    def cpu_seconds(self) -> float:
        return 0.0

    def stop(self) -> None:
        self.stopped = True

    def _do(self, what: str) -> None:
        self.machine.told.append((what, self.name))
        if self._arm_of.fails.get(self.process) == what:
            raise WorkerFailedError(f"{self.name} crashed at {what}.")


def job(name: str, **more: object) -> ArmJob:
    """A job that fake workers know by its name."""
    return ArmJob(runtime="ort-cpu", engine=ORT, model=Path(f"{name}.onnx"), inputs=Path("in"), **more)


def visits_of(told: list[tuple[str, str]]) -> Iterator[str]:
    """Names in the order of visits."""
    return (name for what, name in told if what == "visit")
