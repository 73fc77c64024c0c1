"""Whether callables use several threads, and whether this machine has idle cores for them; times no callable.

CPU time above wall time shows threads only if cores are free for them: on a busy machine they take turns. CPU time of
the process that the calling thread did not spend shows them on every machine.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sdpa_onnx.measure.machine_load import IDLE_TOLERANCE, OthersLoad, usable_cores

__all__ = ["ThreadsUsed", "ThreadsWatch"]

# Share of the CPU time of the process that other threads may spend before they count: a monitor or a progress bar wakes
# up now and then, but the worker threads on two cores spend nearly half.
_BEYOND_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadsUsed:
    """The threads and cores in use while callables were timed.

    Args:
        beyond: Share of the CPU time of the process that threads other than the calling one spent.
        cores: CPU time of the process over wall time.
        idle: Usable cores that no other process used; None if the system does not report it.
    """

    beyond: float
    cores: float
    idle: float | None = None

    @property
    def several(self) -> bool:
        """Whether the callables use more than one thread."""
        return self.beyond > _BEYOND_SHARE

    @property
    def undecidable(self) -> str:
        """Why times of several threads cannot be judged on this machine now, one sentence; "" if they can."""
        needed = max(2.0, self.cores)
        if not self.several or self.idle is None or needed <= self.idle + IDLE_TOLERANCE:
            return ""
        return (
            f"Undecidable on this machine now: the callables use several threads, but only {self.idle:.1f} cores are "
            "idle; set OPENBLAS_NUM_THREADS=1, or the variable of your library, before Python starts."
        )


@dataclass(slots=True, kw_only=True)
class ThreadsWatch:
    """Watches threads and cores from its creation on.

    Args:
        process, thread: CPU time of the process and of the calling thread, seconds.
        now: Wall time, seconds.
        load: Load of other processes.
        count: Number of usable cores.
    """

    process: Callable[[], float] = time.process_time
    thread: Callable[[], float] = time.thread_time
    now: Callable[[], float] = time.perf_counter
    load: OthersLoad = field(default_factory=lambda: OthersLoad(ours=time.process_time))
    count: int = field(default_factory=lambda: len(usable_cores()))
    _start: tuple[float, float, float] = field(init=False)

    def __post_init__(self) -> None:
        self._start = self._read()

    def used(self) -> ThreadsUsed:
        """The threads and cores in use since creation."""
        wall, process, thread = (now - then for now, then in zip(self._read(), self._start, strict=True))
        others = self.load.share()
        return ThreadsUsed(
            beyond=max(1.0 - thread / process, 0.0) if process > 0.0 else 0.0,
            cores=process / wall if wall > 0.0 else 0.0,
            idle=None if others is None else max(self.count - others, 0.0),
        )

    def _read(self) -> tuple[float, float, float]:
        return self.now(), self.process(), self.thread()
