"""The report of what ran, from the facts that an engine gives; they may come from a worker process."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.graph.files.large import is_large
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import RanReport

__all__ = ["engine_report", "is_unread"]


def is_unread(model: OnnxModel) -> bool:
    """Whether a model is too large to be loaded once more for its optimised graph."""
    # In float64 an expanded Attention changes the precision, which only the optimised graph shows.
    return is_large(model.ir) and model.facts.attention_dtype is not Dtype.FLOAT64


def engine_report(
    model: OnnxModel, facts: Mapping[str, Any], *, engine: str, precision: str, threads: int
) -> RanReport:
    """Say what ran, while the file of the optimised graph is there.

    Args:
        model: The model that was loaded.
        facts: See `runtimes.engine.Opened`.
        engine: Name of the runtime.
        precision: The declared arithmetic.
        threads: As requested.
    """
    if "execution" in facts:
        report = _of_openvino(model, facts)
    elif "provider" in facts:
        report = _of_onnxruntime(model, facts, precision)
    else:
        report = _of_nodes(model, facts, precision)
    used = facts.get("threads", threads)
    if used == threads:
        return report
    sentence = f"{engine} used {used} thread{'s' * (used != 1)}, not {threads} as requested."
    return replace(report, warnings=(*report.warnings, sentence))


def _of_nodes(model: OnnxModel, facts: Mapping[str, Any], precision: str) -> RanReport:
    assigned = {name: Counter(operators) for name, operators in facts.get("assigned", {}).items()}
    counts = sum(assigned.values(), Counter[str]()) or _operators(model)
    return RanReport(
        providers={name: operators.total() for name, operators in assigned.items()} or {"CPU": counts.total()},
        node_counts=dict(sorted(counts.items())),
        precision=str(facts.get("precision", precision)),
        warnings=tuple(facts.get("warnings", ())),
    )


def _operators(model: OnnxModel) -> Counter[str]:
    return Counter(node.op_type for node in model.ir.graph.all_nodes())


def _of_openvino(model: OnnxModel, facts: Mapping[str, Any]) -> RanReport:
    from sdpa_onnx.runtimes.openvino_ran import execution_node, report_of

    graph = {node["name"]: execution_node(**node) for node in facts["execution"]}
    return report_of(model, graph=graph, hint=facts["hint"])


def _of_onnxruntime(model: OnnxModel, facts: Mapping[str, Any], precision: str) -> RanReport:
    from sdpa_onnx.runtimes.ort_ran import report_of, report_of_large

    assigned = {name: Counter(operators) for name, operators in facts["assigned"].items()}
    provider, optimised = facts["provider"], facts["optimised"]
    if optimised is None:
        return report_of_large(assigned=assigned, provider=provider, precision=precision)
    return report_of(model, optimised=Path(optimised), assigned=assigned, provider=provider, precision=precision)
