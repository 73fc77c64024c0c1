"""Reports what ran in a timing worker: nodes, providers and precision, as a session of that runtime reports it."""

from typing import Protocol

from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.measure.arm_settings import engine_of
from sdpa_onnx.runtimes.arm_job import RanFacts
from sdpa_onnx.runtimes.base import Purpose, RanReport

__all__ = ["RanReporter", "worker_report"]


class RanReporter(Protocol):
    """A worker that can report what ran; see `timing_worker.TimingWorker`."""

    def ran(self, *, with_graph: bool = True) -> RanFacts: ...


def worker_report(worker: RanReporter, model: OnnxModel, runtime: str, *, threads: int) -> RanReport:
    """Ask a worker what ran, before it is stopped.

    Args:
        worker: The worker, with the model still loaded.
        model: The model that it loaded.
        runtime: Registered name of its runtime.
        threads: Threads inside one operator.

    Raises:
        WorkerFailedError: If the worker does not answer.
    """
    from sdpa_onnx.runtimes.engine_runtime import engine_precision
    from sdpa_onnx.runtimes.ran_report import engine_report, is_unread

    engine = engine_of(runtime)
    found = worker.ran(with_graph=not is_unread(model))
    if isinstance(found.report, RanReport):
        return found.report
    precision = "" if engine is None else engine_precision(engine, model, Purpose.TIMING)
    return engine_report(model, found.facts, engine=runtime, precision=precision, threads=threads)
