"""What attention stands in a file: form, figures, axes, and what a runtime makes of it.

Reads only; recognises the standard operator, the contrib operators and the plain
softmax(QK^T) V pattern. Turning one into another is not done here.
"""

import itertools
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from sdpa_onnx.core.records import AttentionRecord, Outcome
from sdpa_onnx.errors import ModelError, SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Unsupported, get_runtime
from sdpa_onnx.workflows.checked import form_of
from sdpa_onnx.workflows.feeds import axis_names
from sdpa_onnx.workflows.file_axes import site_doubt, static_axes

__all__ = ["inspect_model", "what_runs"]

_CONTRIB_DOMAIN = "com.microsoft"
_CONTRIB = ("Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedMultiHeadAttention")
# What may stand between a softmax and the products around it without changing what it is.
_SEEN_THROUGH = frozenset({"Cast", "Dropout", "Identity", "Where", "Add", "Mul", "Div", "Reshape", "Expand"})
_STEPS = 6
_NOT_READ = (
    "its figures are not read yet: only standard Attention nodes of known shape are, and what a module "
    "that we exported does through scaled_dot_product_attention"
)
_NESTED = "it stands inside a subgraph or function, which is not read yet"


def inspect_model(model: OnnxModel, *, target: str) -> list[AttentionRecord]:
    """One record per attention.

    Raises:
        ModelError: If there is none.
    """
    axes, fixed = _axes(model), static_axes(model)
    found = [
        AttentionRecord(
            target=target,
            form=form_of(model),
            opset=model.opset,
            node=site.name,
            dialect="ONNX Attention" if form_of(model) == "attention" else "decomposed by torch.onnx",
            spec=site.spec,
            dynamic_axes=axes,
            static_axes=fixed,
            scale_doubt=site_doubt(model, site),
        )
        for site in model.sites
    ]
    if not found:
        found = [
            _unlifted(model, target, axes, node, dialect, _NOT_READ) for node, dialect in _patterns(model.ir.graph)
        ]
    found += [
        _unlifted(model, target, axes, node, dialect, _NESTED) for node, dialect in _patterns(_nested_nodes(model))
    ]
    if not found:
        raise ModelError(f"{target} has no attention in it.", hint="Neither an operator nor softmax(QK^T) V was found.")
    return found


def what_runs(model: OnnxModel, runtime: str) -> RanReport | str:
    """What a runtime really runs for the model, or why it does not.

    Raises:
        RuntimeNotFoundError: Unknown runtime.
    """
    found = get_runtime(runtime)
    for answer in (found.available(), found.supports(model)):
        if isinstance(answer, Unsupported):
            return answer.reason
    try:
        with found.load(model, LoadOptions()) as session:
            return session.ran()
    except SessionError as error:
        return str(error)


def _axes(model: OnnxModel) -> tuple[str, ...]:
    try:
        return axis_names(model)
    except ModelError:
        return ("unnamed",)


def _unlifted(
    model: OnnxModel, target: str, axes: tuple[str, ...], node: ir.Node, dialect: str, reason: str
) -> AttentionRecord:
    return AttentionRecord(
        target=target,
        form=form_of(model),
        opset=model.opset,
        outcome=Outcome.UNSUPPORTED,
        reason=reason,
        node=node.name or node.op_type,
        dialect=dialect,
        dynamic_axes=axes,
        static_axes=static_axes(model),
    )


def _nested_nodes(model: OnnxModel) -> Iterator[ir.Node]:
    """Nodes of the bodies of If, Loop and Scan, and of the functions that something calls."""
    graph, bodies = model.ir.graph, list(model.ir.functions.values())
    everywhere = itertools.chain(graph.all_nodes(), *(body.all_nodes() for body in bodies))
    called = {node.op_identifier() for node in everywhere}
    yield from (node for node in graph.all_nodes() if node.graph is not graph)
    for body in bodies:
        if body.identifier() in called:
            yield from body.all_nodes()


def _patterns(nodes: Iterable[ir.Node]) -> Iterator[tuple[ir.Node, str]]:
    for node in nodes:
        if node.domain == _CONTRIB_DOMAIN and node.op_type in _CONTRIB:
            yield node, f"{_CONTRIB_DOMAIN}.{node.op_type}"
        elif node.op_type == "Attention" and node.domain == "":
            yield node, "ONNX Attention of unknown shapes"
        elif node.op_type == "Softmax" and _from_product(node) and _into_product(node):
            yield node, "softmax between two products"


def _from_product(node: ir.Node) -> bool:
    """Whether a product leads to the node, through what may stand between."""
    reached = [node]
    for _ in range(_STEPS):
        producers = [value.producer() for at in reached for value in at.inputs if value is not None]
        reached = [producer for producer in producers if producer is not None]
        if any(at.op_type in ("MatMul", "Einsum") for at in reached):
            return True
        reached = [at for at in reached if at.op_type in _SEEN_THROUGH]
    return False


def _into_product(node: ir.Node) -> bool:
    reached = [node]
    for _ in range(_STEPS):
        reached = [user for at in reached for value in at.outputs for user in value.consumers()]
        if any(at.op_type in ("MatMul", "Einsum") for at in reached):
            return True
        reached = [at for at in reached if at.op_type in _SEEN_THROUGH]
    return False
