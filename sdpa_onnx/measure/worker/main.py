"""What a worker answers: load, visit, after_idle, kernel_times, ran, outputs, unload.

One arm at a time. What a runtime raises goes to the parent as it is; the parent words it. Times nothing by itself
but what stands in `LoadTimes`, and the run after idling.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from . import memory
from .arrays import read_bits, write_bits
from .orphan import die_with
from .pipe import RefusalError, ReportedError, receive, send
from .visit import Turns, visit

__all__ = ["main"]

Answer = tuple[dict[str, Any], dict[str, Any]]


def main(adapter: str, descriptor: int, parent: int, runtime: str = "") -> None:
    """Import what the adapter needs, say so, and answer until the pipe ends.

    Args:
        adapter: Name of a module beside this one: "on_" and the value of `arm_job.Adapter`.
        descriptor: Of the pipe.
        parent: Process that started this one.
        runtime: What is imported too, so that processes import side by side; "" where the adapter tells.
    """
    die_with(parent)
    pipe: Connection[Any, Any] = Connection(descriptor)
    try:
        arms = importlib.import_module(f".on_{adapter}", __package__).ADAPTER()
        version = arms.version()
    except Exception as error:  # a package may raise anything
        first = (str(error).strip().splitlines() or [""])[0]
        send(pipe, {"failed": "import", "text": f"{type(error).__name__}: {first}"})
        return
    if runtime:
        with contextlib.suppress(Exception):  # `load` tries again, and tells
            arms.import_for(runtime)
    send(pipe, {"ready": True, "version": version})
    _Worker(arms).serve(pipe)


class _Worker:
    """The arm that is loaded, and the doors to it."""

    def __init__(self, arms: Any) -> None:
        self._arms = arms
        self._arm: Any = None
        self._turns = Turns([lambda: None])
        self._stage = "load"

    def serve(self, pipe: Connection[Any, Any]) -> None:
        """Answer until the pipe ends."""
        while True:
            try:
                request, _ = receive(pipe)
            except (EOFError, OSError):
                return
            answer: Answer
            try:
                answer = getattr(self, "do_" + request.pop("do"))(**request)
            except ReportedError as error:
                answer = {"failed": "told", "text": str(error)}, {}
            except RefusalError as error:
                answer = {"failed": "refused", "text": str(error)}, {}
            except MemoryError as error:
                answer = {"failed": "memory", "text": str(error)}, {}
            except Exception as error:
                answer = {"failed": "raised", "text": str(error), "type": type(error).__name__}, {}
            header, arrays = answer
            send(pipe, {**header, "stage": self._stage, "cpu_seconds": time.process_time()}, arrays)

    def do_load(self, **job: Any) -> Answer:
        self.do_unload()
        feeds = read_bits(job["inputs"])
        # Where the start did not tell the runtime; importing is no part of creating a session.
        import_for = getattr(self._arms, "import_for", None)
        if import_for is not None:
            import_for(job["runtime"])
        start = time.perf_counter()
        self._arm = arm = self._arms.open(job)
        created = time.perf_counter()
        prepared = arm.prepare(feeds)
        self._stage = "run"
        loaded_bytes = memory.resident_bytes()
        resets = memory.reset_peak()
        first_seconds, call = _timed_first(prepared)
        new_length_seconds = _new_length(arm, job["new_length_inputs"])
        peak = memory.peak_bytes() if resets else -1
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
            "warnings": getattr(arm, "warnings", []),
        }, {}

    def do_visit(self, calls: int) -> Answer:
        own = getattr(self._loaded(), "visit", None)
        return own(self._turns, calls) if own else visit(self._turns, calls)

    def do_after_idle(self) -> Answer:
        arm = self._loaded()
        start = time.perf_counter()
        next(self._turns.take(1))()
        arm.wait()
        return {"seconds": time.perf_counter() - start}, {}

    def do_kernel_times(self, calls: int) -> Answer:
        kernels, call = self._loaded().kernel_times(calls)
        return {"kernels": kernels, "call": call}, {}

    def do_ran(self, *, folder: str, with_graph: bool) -> Answer:
        return self._loaded().ran(folder, with_graph=with_graph), {}

    def do_outputs(self, path: str) -> Answer:
        write_bits(path, self._loaded().outputs())
        return {}, {}

    def _loaded(self) -> Any:
        if self._arm is None:
            raise RefusalError("has nothing loaded")
        return self._arm

    def do_unload(self) -> Answer:
        self._stage = "load"
        self._turns = Turns([lambda: None])
        arm, self._arm = self._arm, None
        if arm is None:
            return {}, {}
        arm.close()
        del arm
        gc.collect()
        gc.freeze()  # the packages that stay: looking through torch's objects again takes 0.15 s each time
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
