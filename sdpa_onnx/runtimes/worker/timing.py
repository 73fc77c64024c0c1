"""Time one arm at a time: load, visit, after_idle, kernel_times, ran, outputs, unload.

Times nothing by itself but what `LoadTimes` has, and the run after idling.
"""

from __future__ import annotations

import contextlib
import gc
import time
from typing import Any

import numpy as np

from . import memory
from .arrays import read_bits, write_bits
from .loaded import Loaded
from .pipe import RefusalError
from .visit import Turns, visit

__all__ = ["TimingService"]

Answer = tuple[dict[str, Any], dict[str, Any]]


class TimingService:
    """The arm that is loaded, and the requests to it.

    Args:
        engine: Opens arms; see `sdpa_onnx.runtimes.engine.Engine`.
        version: Of its package, e.g. "onnxruntime 1.32.0"; "" where that is not known yet.
    """

    # What was printed last explains a crash.
    keeps_prints = True

    def __init__(self, engine: Any, *, version: str) -> None:
        gc.freeze()  # the packages that stay: looking through torch's objects takes 0.1 s each time
        self.version = version
        self.stage = "load"
        self._engine = engine
        self._arm: Loaded | None = None
        self._turns = Turns([lambda: None])

    def do_load(self, job: dict[str, Any]) -> Answer:
        self.do_unload()
        feeds = read_bits(job["feeds"])
        # Where the start did not tell the runtime; importing is no part of creating a session.
        import_for = getattr(self._engine, "import_for", None)
        if import_for is not None:
            import_for(job["runtime"])
        start = time.perf_counter()
        self._arm = arm = Loaded(self._engine, job)
        created = time.perf_counter()
        prepared = arm.prepare(feeds)
        self.stage = "run"
        loaded_bytes = memory.resident_bytes(arm.process)
        resets = memory.reset_peak(arm.process)
        first_seconds, call = _timed_first(prepared)
        new_length_seconds = _new_length(arm, job["new_length_feeds"])
        peak = memory.peak_bytes(arm.process) if resets else -1
        others = [arm.prepare(_copied(feeds)).first_run() for _ in range(job["copies"] - 1)]
        self._turns = Turns([call, *others])
        return {
            "create_seconds": created - start,
            "first_seconds": first_seconds,
            "new_length_seconds": new_length_seconds,
            "loaded_bytes": loaded_bytes,
            "peak_bytes": max(0, peak - loaded_bytes) if peak >= 0 and loaded_bytes >= 0 else -1,
            "version": arm.version(),
            "device": arm.device,
            "warnings": arm.warnings,
        }, {}

    def do_visit(self, calls: int) -> Answer:
        own = self._loaded().visit
        return own(self._turns, calls) if own else visit(self._turns, calls)

    def do_after_idle(self) -> Answer:
        arm = self._loaded()
        start = time.perf_counter()
        next(self._turns.take(1))()
        arm.wait()
        return {"seconds": time.perf_counter() - start}, {}

    def do_kernel_times(self, calls: int) -> Answer:
        return self._loaded().profile(calls), {}

    def do_ran(self, *, folder: str, with_graph: bool) -> Answer:
        return self._loaded().ran(folder, with_graph=with_graph), {}

    def do_outputs(self, path: str) -> Answer:
        write_bits(path, self._loaded().outputs())
        return {}, {}

    def _loaded(self) -> Loaded:
        if self._arm is None:
            raise RefusalError("has nothing loaded")
        return self._arm

    def do_unload(self) -> Answer:
        self.stage = "load"
        self._turns = Turns([lambda: None])
        arm, self._arm = self._arm, None
        if arm is None:
            return {}, {}
        arm.close()
        del arm
        gc.collect()
        gc.freeze()  # what the first run imported
        memory.give_back()
        return {}, {}


def _timed_first(prepared: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    call = prepared.first_run()
    return time.perf_counter() - start, call


def _new_length(arm: Any, folder: str | None) -> float:
    """Seconds of the first run there; -1 where the graph does not take that length, which is no failure of the arm."""
    if folder is None:
        return -1.0
    with contextlib.suppress(Exception):
        return _timed_first(arm.prepare(read_bits(folder)))[0]
    return -1.0


def _copied(feeds: dict[str, Any]) -> dict[str, Any]:
    return {name: (np.array(bits), onnx_type) for name, (bits, onnx_type) in feeds.items()}
