"""Say what OpenVINO really runs for a model, and in which arithmetic.

Source: the execution graph that the CPU plug-in gives, whose nodes carry the
kind of layer and the names of what they were made of. `worker.engines.openvino` gets it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import RanReport

__all__ = ["ExecutionNode", "count_expanded", "execution_node", "precision_of", "report_of"]

# Stand in the graph and compute nothing.
_STORED = frozenset({"Input", "Output", "Const"})
# Operators that OpenVINO may run whole; all others have too many counterparts to tell.
_ATTENTIONS = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention"})
# The importer numbers the results of one ONNX node "Y.0", "Y.1".
_NUMBERED = re.compile(r"\.\d+$")
_HINTS = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionNode:
    """One node of the execution graph.

    Args:
        layer: Kind of layer, OpenVINO's word.
        names: Names of the ONNX nodes or values, or of OpenVINO's own nodes, that it was made of.
        sources: Names of the execution nodes that it reads.
    """

    layer: str
    names: tuple[str, ...]
    sources: tuple[str, ...] = ()


def report_of(model: OnnxModel, *, graph: Mapping[str, ExecutionNode], hint: str) -> RanReport:
    """Say which layers run, what each attention became, and what that does to the precision.

    Args:
        model: The model that was loaded.
        graph: The execution graph, by name of node.
        hint: The effective precision, OpenVINO's word.
    """
    working = [node for node in graph.values() if node.layer not in _STORED]
    expanded = count_expanded(model, graph)
    precision, warnings = precision_of(model.facts.attention_dtype, hint)
    fused = Counter(node.layer for node in working if len(node.names) > 1)
    return RanReport(
        providers={"CPU": len(working)},
        node_counts=dict(sorted(Counter(node.layer for node in working).items())),
        expanded=expanded,
        fused=dict(sorted(fused.items())),
        precision=precision,
        warnings=(*_expansion_warnings(model, expanded), *warnings),
    )


def count_expanded(model: OnnxModel, graph: Mapping[str, ExecutionNode]) -> dict[str, int]:
    """Layers that each kind of attention became, where it is more than one.

    What OpenVINO makes of a node is unnamed but for its last layer, so the
    layers are collected upwards from there, as far as the next layer that has
    the name of another node of the model.
    """
    sources = list(model.ir.graph.all_nodes())
    owners = {name: index for index, node in enumerate(sources) for name in _names_of(node)}
    counts: Counter[str] = Counter()
    for index, node in enumerate(sources):
        if node.op_type in _ATTENTIONS:
            layers = _layers_of(index, owners, graph)
            counts[node.op_type] += layers if layers > 1 else 0
    return {operator: count for operator, count in sorted(counts.items()) if count}


def precision_of(dtype: Dtype, hint: str) -> tuple[str, tuple[str, ...]]:
    """The declared arithmetic, and a warning where it is not the model's own.

    Args:
        dtype: Of the model.
        hint: The effective precision, OpenVINO's word; others than f32, bf16
            and f16 mean that every layer keeps its own type.

    OpenVINO has no float64. The bfloat16 layers of a bfloat16 model stay
    bfloat16 under the hint f32 (2026.4.1). How float16 adds was not measured,
    so the weakest word is declared.
    """
    computed = _HINTS.get(hint, "float32")
    if computed == "float32" and dtype is not Dtype.FLOAT64:
        declared = dtype.value  # with float32 inside, at least as accurate as that
    else:
        declared = "float16-accumulation" if computed == "float16" else computed
    if computed == dtype.value or (computed, dtype) == ("float32", Dtype.BFLOAT16):
        return declared, ()
    return declared, (f"OpenVINO ran this {dtype.value} model in {computed}.",)


def _layers_of(index: int, owners: Mapping[str, int], graph: Mapping[str, ExecutionNode]) -> int:
    def owner_of(node: ExecutionNode) -> int | None:
        found = [owners[name] for name in _candidates(node.names) if name in owners]
        return index if index in found else next(iter(found), None)

    waiting = [name for name, node in graph.items() if node.layer not in _STORED and owner_of(node) == index]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        node = graph[name]
        if name not in seen and node.layer not in _STORED and owner_of(node) in (index, None):
            seen.add(name)
            waiting.extend(node.sources)
    return len(seen)


def _names_of(node: ir.Node) -> Iterable[str]:
    return [name for name in (node.name, *(value.name for value in node.outputs)) if name]


def _candidates(names: Iterable[str]) -> Iterable[str]:
    for name in names:
        yield name
        yield _NUMBERED.sub("", name)


def _expansion_warnings(model: OnnxModel, expanded: Mapping[str, int]) -> Iterable[str]:
    asked = Counter(node.op_type for node in model.ir.graph.all_nodes())
    for operator, count in expanded.items():
        into = f"expanded into {count} nodes."
        yield f"{asked[operator]} {operator} nodes were {into}" if asked[operator] > 1 else f"{operator} was {into}"


def execution_node(name: str, *, layer: str, originals: str, sources: Iterable[str]) -> ExecutionNode:
    """One node in OpenVINO's own words: `originals` are the names of what it was made of, between commas."""
    return ExecutionNode(
        layer=layer, names=tuple(part for part in originals.split(",") if part) or (name,), sources=tuple(sources)
    )
