"""Say what ONNX Runtime really runs for a model.

Two sources: the session's own record of which provider took which node, and
the graph after optimisation. `worker.engines.onnxruntime` gets them.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.graph.domains import CONTRIB_DOMAIN, is_standard
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import RanReport

__all__ = ["count_expanded", "count_fused", "report_of", "report_of_large"]

# ONNX Runtime names the values of an inlined function body "_inlfunc_<operator>_...": the only trace that
# an operator leaves once it is expanded (seen in 1.32.0; the nodes themselves have no name).
_INLINED = re.compile(r"_inlfunc_(?P<operator>[A-Za-z0-9]+)_")

# ONNX Runtime computes a float16 node for which it has no kernel in float32, and marks the values (1.32.0).
_WIDENED = "InsertedPrecisionFreeCast_"

_UNREAD = (
    "The model is above 500 MB, so the optimised graph was not read: ONNX Runtime would hold it several times. What "
    "was fused or expanded is not known."
)

# Operators that compute shapes. ONNX Runtime keeps them on the CPU on purpose, beside a device provider.
_SHAPE_OPERATORS = frozenset(
    {"Cast", "Concat", "ConstantOfShape", "Gather", "Identity", "Range", "Shape", "Size", "Slice", "Squeeze"}
    | {"Unsqueeze"}
)


def report_of(
    model: OnnxModel,
    *,
    optimised: Path,
    assigned: Mapping[str, Counter[str]],
    provider: str,
    precision: str,
) -> RanReport:
    """Say which providers took which nodes, what was expanded, and what that does to the precision.

    Args:
        model: The model that was loaded.
        optimised: File of the graph after optimisation.
        assigned: Operators that each provider took; no operators where the version does not report them.
        provider: The provider that was requested.
        precision: The declared arithmetic where no operator is expanded.
    """
    nodes = list(_nodes(onnx.load(optimised, load_external_data=False).graph))
    expanded = count_expanded(model, nodes)
    warnings = [
        *_expansion_warnings(model, nodes, expanded),
        *_widening_warnings(nodes),
        *_provider_warnings(assigned, provider),
    ]
    if "Attention" in expanded and model.facts.attention_dtype is Dtype.FLOAT64:
        precision = "float32"
        warnings.append("The expansion of Attention holds the scale in float32, so the result is no float64 one.")
    return RanReport(
        providers=_providers(assigned, len(nodes)),
        node_counts=dict(sorted(Counter(node.op_type for node in nodes).items())),
        expanded=expanded,
        fused=count_fused(model, nodes),
        precision=precision,
        warnings=tuple(warnings),
    )


def report_of_large(*, assigned: Mapping[str, Counter[str]], provider: str, precision: str) -> RanReport:
    """Say which providers took which nodes of a model that `ran_report.is_unread`.

    Args:
        assigned: Operators that each provider took.
        provider: The provider that was requested.
        precision: The declared arithmetic.
    """
    return RanReport(
        providers={name: operators.total() for name, operators in sorted(assigned.items())},
        node_counts={},
        precision=precision,
        warnings=(_UNREAD, *_provider_warnings(assigned, provider)),
    )


def count_expanded(model: OnnxModel, nodes: list[onnx.NodeProto]) -> dict[str, int]:
    """Nodes that came out of the model's expanded operators, by operator.

    A node counts if it writes a value of an inlined body, or the operator's own
    output. A body inside a body (float16 Softmax inside Attention) counts for
    the outer one, taken to be Attention where the model has one.
    """
    owners = _owners(model, nodes)
    return dict(sorted(Counter(owner for owner in owners if owner is not None).items()))


def count_fused(model: OnnxModel, nodes: list[onnx.NodeProto]) -> dict[str, int]:
    """Nodes whose operator stands neither in the model nor in a body that was expanded, by operator.

    An operator of the same name in another domain is another operator. A Cast
    around a float16 node is left out: it is reported as a warning.
    """
    asked = {(_domain(node.domain), node.op_type) for node in _source_nodes(model)}
    counts = Counter(
        node.op_type
        for node, owner in zip(nodes, _owners(model, nodes), strict=True)
        if owner is None and (_domain(node.domain), node.op_type) not in asked and not _is_cast(node)
    )
    return dict(sorted(counts.items()))


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _is_cast(node: onnx.NodeProto) -> bool:
    """Whether it only converts for a node that has no kernel of its own type."""
    return node.op_type == "Cast" and _is_widened(node)


def _owners(model: OnnxModel, nodes: list[onnx.NodeProto]) -> list[str | None]:
    """For each node that runs, the expanded operator that it came out of, or None."""
    sources = [node for node in _source_nodes(model) if is_standard(node) or node.domain == CONTRIB_DOMAIN]
    operators = {node.op_type for node in sources}
    local = {function.name for function in model.ir.functions.values()}
    writers = {value.name: node.op_type for node in sources for value in node.outputs if value.name}
    inlined = [[_INLINED.search(name) for name in node.output] for node in nodes]
    bodies = {found["operator"] for row in inlined for found in row if found} - local
    outer = "Attention" if "Attention" in bodies & operators else min(bodies & operators, default=None)
    owners: list[str | None] = []
    for node, row in zip(nodes, inlined, strict=True):
        body = next((found["operator"] for found in row if found), None)
        if body in bodies:
            owner = body if body in operators else outer
        else:
            # A float32 stand-in for a float16 output keeps its name behind the prefix; a Cast only converts it.
            names = node.output if node.op_type == "Cast" else [name.removeprefix(_WIDENED) for name in node.output]
            owner = next((writers[name] for name in names if writers.get(name) in bodies), None)
        owners.append(None if node.op_type == owner else owner)
    return owners


def _is_widened(node: onnx.NodeProto) -> bool:
    return any(name.startswith(_WIDENED) for name in (*node.input, *node.output))


def _widening_warnings(nodes: list[onnx.NodeProto]) -> Iterator[str]:
    widened = [node for node in nodes if _is_widened(node)]
    casts = sum(_is_cast(node) for node in widened)
    count = len(widened) - casts
    if count:
        with_casts = f", with {casts} cast{'s' * (casts != 1)} that a float32 file does not need" if casts else ""
        yield f"{count} float16 node{'s' * (count != 1)} ran in float32{with_casts}."


def _expansion_warnings(model: OnnxModel, nodes: list[onnx.NodeProto], expanded: Mapping[str, int]) -> Iterator[str]:
    asked = Counter(node.op_type for node in _source_nodes(model))
    kept = Counter(node.op_type for node in nodes)
    for operator, count in expanded.items():
        gone = asked[operator] - kept[operator]
        into = f"expanded into {count} node{'s' * (count != 1)}."
        yield f"{gone} {operator} nodes were {into}" if gone > 1 else f"{operator} was {into}"


def _provider_warnings(assigned: Mapping[str, Counter[str]], provider: str) -> Iterator[str]:
    for other, operators in assigned.items():
        strays = {name: count for name, count in sorted(operators.items()) if name not in _SHAPE_OPERATORS}
        if other != provider and strays:
            total = sum(strays.values())
            listed = ", ".join(f"{name} {count}" for name, count in strays.items())
            yield f"{total} node{'s' * (total != 1)} ran on {other}, not on {provider}: {listed}."


def _providers(assigned: Mapping[str, Counter[str]], nodes: int) -> dict[str, int]:
    # The record dates from before the last fusions, so where one provider has all, the graph's own count is the truth.
    if len(assigned) == 1:
        return dict.fromkeys(assigned, nodes)
    return {name: operators.total() for name, operators in sorted(assigned.items())}


def _source_nodes(model: OnnxModel) -> Iterator[ir.Node]:
    """Every node of the model, those in subgraphs and in the model's own functions too."""
    yield from model.ir.graph.all_nodes()
    for function in model.ir.functions.values():
        yield from function.all_nodes()


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)
