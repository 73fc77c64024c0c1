"""Reports what ran in a timing worker: nodes, providers and precision, as a session of that runtime reports it."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.measure.arm_settings import ort_target
from sdpa_onnx.runtimes.arm_job import RanFacts
from sdpa_onnx.runtimes.base import LoadOptions, Purpose, RanReport

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
    target = ort_target(runtime, model, LoadOptions(threads=threads, purpose=Purpose.TIMING))
    if target is None:
        return _ran_report(model, worker.ran(), provider=runtime, precision="", threads=threads)
    from sdpa_onnx.runtimes.ort_ran import is_unread

    facts = worker.ran(with_graph=not is_unread(model))
    return _ran_report(model, facts, provider=target.provider, precision=target.precision, threads=threads)


def _ran_report(model: OnnxModel, facts: RanFacts, *, provider: str, precision: str, threads: int) -> RanReport:
    """The report from a worker's facts, while its file of the optimised graph is there."""
    from sdpa_onnx.runtimes.ort_ran import report_of, report_of_large

    if isinstance(facts.report, RanReport):
        return facts.report
    if isinstance(facts.report, Mapping):
        return _openvino_report(model, facts.report, threads=threads)
    assigned = {name: Counter(operators) for name, operators in facts.assigned.items()}
    if facts.optimised is None:
        return report_of_large(assigned=assigned, provider=provider, precision=precision)
    return report_of(model, optimised=facts.optimised, assigned=assigned, provider=provider, precision=precision)


def _openvino_report(model: OnnxModel, reported: Mapping[str, Any], *, threads: int) -> RanReport:
    from sdpa_onnx.runtimes.openvino_ran import execution_node, report_of

    graph = {node["name"]: execution_node(**node) for node in reported["nodes"]}
    return report_of(model, graph=graph, hint=reported["hint"], used_threads=reported["threads"], threads=threads)
