"""Evaluate a model node by node with the reference: the inputs of every node and its expected outputs.

Each node reads the float64 results of the nodes before it, rounded to the model's types, so that an
error of a runtime on one step is the error of that node. Does not run the runtime under test.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import InlinePass

from sdpa_onnx.core.attention.inputs import ONNX_INPUT_NAMES, AttentionInputs
from sdpa_onnx.core.attention.mask_rule import full_mask, mask_rule_of
from sdpa_onnx.core.attention.precision import Precision
from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.judge.attention_outputs import oracle_outputs
from sdpa_onnx.core.judge.node_rule import (
    NodeExpectation,
    NodeRule,
    format_of,
    product_bound,
    rule_of,
    sum_bound,
    working_unit,
)
from sdpa_onnx.errors import CaseError
from sdpa_onnx.graph.attention_node import spec_of_node
from sdpa_onnx.graph.inferred_shapes import infer_shapes
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.site_outputs import outputs_of, scores_stages
from sdpa_onnx.workflows.locate.reference_nodes import (
    NodeReference,
    NoReference,
    moved,
    read_names,
    rounded,
    widened,
)

__all__ = ["NodeStep", "NodeWalk", "flat_model"]

Array = NDArray[np.generic]
Float64 = NDArray[np.float64]
# Computes a node that the reference cannot evaluate: (node, values, constants) -> outputs, or the reason why not.
StandIn = Callable[[ir.Node, Mapping[str, Array], Mapping[str, Array]], "dict[str, Array] | NoReference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStep:
    """One node of the walk.

    Args:
        node: The node.
        reads: Arrays that it reads, by value name.
        truths: Its expected outputs, by value name; empty if it cannot be judged.
        attention: Spec and inputs if it is an attention whose outputs the oracle judges.
        reason: Why it cannot be judged; "" otherwise.
    """

    node: ir.Node
    reads: dict[str, Array]
    truths: dict[str, NodeExpectation] = field(default_factory=dict)
    attention: tuple[AttentionSpec, AttentionInputs] | None = None
    reason: str = ""

    @property
    def size_bytes(self) -> int:
        """Bytes of its inputs and its expected outputs."""
        arrays = [*self.reads.values(), *(truth.exact for truth in self.truths.values())]
        return sum(array.nbytes for array in arrays)


def flat_model(model: OnnxModel) -> OnnxModel:
    """Copy a model with its functions inlined and with the types and shapes from shape inference."""
    copy = model.ir.clone()
    if copy.functions:
        InlinePass()(copy)
    infer_shapes(copy)
    return OnnxModel(ir=copy, sites=model.sites, path=model.path)


class NodeWalk:
    """One walk through a flat model.

    Args:
        model: See `flat_model`.
        feeds: Arrays by input name.
        precision: The declared arithmetic of the runtime to judge.
        stand_in: Computes the values of nodes that the reference cannot evaluate.

    Attributes:
        reference: The evaluator of single nodes.
        read_names: Names of all values that each node reads, see `reference_nodes.read_names`.
        unit: Unit roundoff of the arithmetic of the runtime.
        constants: Values that do not depend on the inputs, by name; the walk adds to them.
        values: All other values that a later node reads, by name, in the types of the model.
    """

    def __init__(self, model: OnnxModel, feeds: Mapping[str, Array], precision: Precision, stand_in: StandIn) -> None:
        self._graph, self._opset = model.ir.graph, model.opset
        self.reference = NodeReference(model.ir)
        self.read_names = {node: read_names(node) for node in self._graph}
        self._precision = precision
        self.unit = working_unit(precision)
        self._stand_in = stand_in
        self.constants: dict[str, Array] = {
            name: value.const_value.numpy()
            for name, value in self._graph.initializers.items()
            if value.const_value is not None and name not in feeds
        }
        self.values: dict[str, Array] = dict(feeds)
        self._pending_reads = self._count_reads()

    def steps(self, *, keep: bool = False) -> Iterator[NodeStep]:
        """Walk in topological order; a Constant node is not a step.

        Args:
            keep: Keep every value in `values`, not only those that a later node reads.
        """
        for node in self._graph:
            if node.op_type == "Constant" and node.domain == "":
                self._add_constant(node)
                continue
            yield self._step(node)
            if not keep:
                self._drop_unread(node)

    def _count_reads(self) -> dict[str, int]:
        reads: dict[str, int] = {}
        for names in self.read_names.values():
            for name in names:
                reads[name] = reads.get(name, 0) + 1
        return reads

    def _drop_unread(self, node: ir.Node) -> None:
        for name in self.read_names[node]:
            self._pending_reads[name] -= 1
            if not self._pending_reads[name]:
                self.values.pop(name, None)
        for value in node.outputs:
            if not self._pending_reads.get(value.name or ""):
                self.values.pop(value.name or "", None)

    def _add_constant(self, node: ir.Node) -> None:
        found = self.reference.own(node, {})
        if not isinstance(found, NoReference):
            self.constants |= found

    def _step(self, node: ir.Node) -> NodeStep:
        names = self.read_names[node]
        missing = [name for name in names if name not in self.values and name not in self.constants]
        if missing:
            return NodeStep(node=node, reads={}, reason=f"its input '{missing[0]}' has no reference value")
        reads = {name: self.constants[name] if name in self.constants else self.values[name] for name in names}
        attention = self._attention(node, reads)
        exact = self.exact(node, reads)
        if isinstance(exact, NoReference):
            stand_in = self._stand_in(node, self.values, self.constants)
            if not isinstance(stand_in, NoReference):
                self.values |= stand_in
            return NodeStep(node=node, reads=reads, reason=exact.reason)
        own = NoReference("the oracle judges it") if attention is not None else self.reference.own(node, reads)
        truths = self._truths(node, reads, exact, {} if isinstance(own, NoReference) else own)
        results = {name: rounded(truth.exact, truth.dtype) for name, truth in truths.items()}
        if names and all(name in self.constants for name in names):
            self.constants |= results
        else:
            self.values |= results
        return NodeStep(node=node, reads=reads, truths=truths, attention=attention)

    def _attention(self, node: ir.Node, reads: Mapping[str, Array]) -> tuple[AttentionSpec, AttentionInputs] | None:
        if node.op_type != "Attention" or node.domain != "":
            return None
        fields = dict(zip(ONNX_INPUT_NAMES, node.inputs, strict=False))
        arrays = {field: reads[value.name or ""] for field, value in fields.items() if value is not None}
        spec = spec_of_node(_with_shapes(node, reads))
        if spec is None or not {"query", "key", "value"} <= set(arrays):
            return None
        inputs = AttentionInputs(**arrays, quantisers=None)
        return spec, full_mask(inputs, mask_rule_of(self._opset), layout=spec.layout)

    def exact(self, node: ir.Node, reads: Mapping[str, Array]) -> dict[str, Array] | NoReference:
        """Every output in float64; the oracle computes those of an attention."""
        attention = self._attention(node, reads)
        if attention is None:
            return self.reference.exact(node, reads)
        mode, *_ = scores_stages(node) or (None,)
        try:
            known = oracle_outputs(*attention, qk_mode=mode)
        except (CaseError, ValueError, IndexError) as error:
            return NoReference(f"the oracle cannot compute it: {error}")
        return {name: known[role] for role, name in outputs_of(node).items() if role in known}

    def _truths(
        self, node: ir.Node, reads: Mapping[str, Array], exact: Mapping[str, Array], own: Mapping[str, Array]
    ) -> dict[str, NodeExpectation]:
        rule = rule_of(node.domain, node.op_type)
        perturbed: Mapping[str, Array] = {}
        bound = self._bound(node, reads) if rule is NodeRule.PRODUCT else None
        if rule in (NodeRule.OTHER, NodeRule.PRODUCT) and bound is None and node.op_type != "Attention":
            found = self.reference.exact(node, moved(reads, self.unit))
            perturbed = {} if isinstance(found, NoReference) else found
        truths: dict[str, NodeExpectation] = {}
        for value in node.outputs:
            name = value.name or ""
            if name not in exact:
                continue
            fallback = next(iter(reads.values())) if node.op_type == "Attention" else exact[name]
            dtype = _dtype(value, own.get(name), fallback)
            is_float = format_of(dtype) is not None
            changed = perturbed.get(name)
            truths[name] = NodeExpectation(
                rule=rule,
                exact=widened(exact[name]) if is_float else own.get(name, exact[name]),
                own=own.get(name),
                moved=None if changed is None else changed.astype(np.float64) if is_float else changed,
                bound=bound if is_float else None,
                dtype=dtype,
            )
        return truths

    def _bound(self, node: ir.Node, reads: Mapping[str, Array]) -> Float64 | None:
        """The proven bound of a sum of products or of elements; None if there is none."""
        if node.op_type in ("MatMul", "Gemm"):
            return _product_bound(node, reads, self._precision)
        magnitudes = self.reference.exact(node, {name: _magnitude(array) for name, array in reads.items()})
        counted = _terms(node, [reads[value.name or ""] for value in node.inputs if value is not None], magnitudes)
        if isinstance(magnitudes, NoReference) or counted is None:
            return None
        terms, roundings = counted
        (sums,) = magnitudes.values()
        return sum_bound(sums.astype(np.float64), terms, self._precision, roundings=roundings)


def _magnitude(array: Array) -> Array:
    return array if format_of(array.dtype) is None else np.abs(widened(array))


def _terms(node: ir.Node, arrays: Sequence[Array], result: Mapping[str, Array] | NoReference) -> tuple[int, int] | None:
    """Terms of each sum of a node, and roundings besides; None if unknown."""
    if isinstance(result, NoReference) or not arrays:
        return None
    (total,) = result.values()
    match node.op_type:
        case "Sum":
            return len(arrays), 0
        case "CumSum":
            return max(arrays[0].shape, default=1), 0
        case "ReduceSum" | "ReduceMean":
            return -(-arrays[0].size // max(total.size, 1)), 1
        case "Einsum":
            sizes = _letters(node, arrays)
            return None if sizes is None else (math.prod(sizes.values()) // max(total.size, 1), len(arrays))
        case _:
            return None


def _letters(node: ir.Node, arrays: Sequence[Array]) -> dict[str, int] | None:
    """Size of each letter of an Einsum's equation; None with an ellipsis."""
    equation = node.attributes["equation"].as_string().replace(" ", "")
    operands = equation.partition("->")[0].split(",")
    if "." in equation or [len(one) for one in operands] != [array.ndim for array in arrays]:
        return None
    sizes: dict[str, int] = {}
    for letters, array in zip(operands, arrays, strict=True):
        for letter, size in zip(letters, array.shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    return sizes


def _dtype(value: ir.Value, own: Array | None, fallback: Array) -> np.dtype[np.generic]:
    if value.dtype is not None and value.dtype not in (ir.DataType.UNDEFINED, ir.DataType.STRING):
        declared: np.dtype[np.generic] = value.dtype.numpy()
        return declared
    return fallback.dtype if own is None else own.dtype


def _product_bound(node: ir.Node, reads: Mapping[str, Array], precision: Precision) -> Float64 | None:
    arrays = [None if value is None else widened(reads[value.name or ""]) for value in node.inputs]
    left, right = arrays[0], arrays[1]
    if left is None or right is None or not left.ndim or not right.ndim:
        return None
    bias = None
    if node.op_type != "MatMul":
        left = left.T if _number(node, "transA", 0.0) else left
        right = right.T if _number(node, "transB", 0.0) else right
        addend = arrays[2] if len(arrays) > 2 else None
        bias = np.zeros(()) if addend is None else _number(node, "beta", 1.0) * addend.astype(np.float64)
        left = _number(node, "alpha", 1.0) * left.astype(np.float64)
    return product_bound(left, right, bias, precision)


def _number(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else float(attribute.value)


def _with_shapes(node: ir.Node, reads: Mapping[str, Array]) -> ir.Node:
    """A copy of the node whose inputs have the types and shapes of the arrays."""
    inputs = [
        None
        if value is None
        else ir.Value(
            name=value.name,
            shape=ir.Shape(list(reads[value.name or ""].shape)),
            type=ir.TensorType(ir.DataType.from_numpy(reads[value.name or ""].dtype)),
        )
        for value in node.inputs
    ]
    outputs = [ir.Value(name=value.name or "") for value in node.outputs]
    return ir.Node(node.domain, node.op_type, inputs, node.attributes.values(), outputs=outputs, name=node.name)
