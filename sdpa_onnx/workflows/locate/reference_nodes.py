"""Evaluate single nodes with ONNX's reference evaluator: in float64, and in the model's own types.

The float64 values are the expected outputs of a node; the others show how much error its types cause.
Does not run a runtime and does not judge.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.core.judge.node_rule import format_of
from sdpa_onnx.graph.domains import CONTRIB_DOMAIN, is_standard
from sdpa_onnx.graph.nodes_apart import captured_values
from sdpa_onnx.graph.widen import widened_node

__all__ = ["NoReference", "NodeReference", "moved", "node_label", "read_names", "rounded", "widened"]

Array = NDArray[np.generic]
Float64 = NDArray[np.float64]

# Errors of numpy code on operands that do not match. NotImplementedError is a RuntimeError.
_FAILURES = (RuntimeError, TypeError, ValueError, LookupError, AssertionError, AttributeError, ArithmeticError)
_RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
_STANDARD = ("", "ai.onnx", "ai.onnx.ml")
# numpy has no fast product of these types; kernels accumulate in float32 and round once (METHOD A.2).
_PRODUCTS = frozenset({"MatMul", "Gemm"})
# The evaluator has them from opset 19 on, with int16 from 21 on; what they compute is the same in every opset, and in
# onnxruntime's operators of these names.
_PAIRS = frozenset({"QuantizeLinear", "DequantizeLinear"})
_PAIRS_OPSET = 21
_HALVES = frozenset({"float16", "bfloat16"})


@dataclass(frozen=True, slots=True)
class NoReference:
    """The reason why the evaluator cannot compute a node."""

    reason: str


def node_label(node: ir.Node) -> str:
    """Name of a node; if it has none, its operator and its first output."""
    output = next((value.name for value in node.outputs if value.name), "nothing")
    return node.name or f"{node.op_type} -> {output}"


class NodeReference:
    """Evaluates nodes of one model.

    Args:
        model: The model that contains them, without functions.
    """

    def __init__(self, model: ir.Model) -> None:
        self._opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
        self.opset = model.opset_imports.get("", 0)
        self._ir_version = model.ir_version

    def exact(self, node: ir.Node, arrays: Mapping[str, Array]) -> dict[str, Array] | NoReference:
        """Every output in float64 from the inputs as they are; integers and booleans keep their type."""
        formula = _FORMULAS.get(node.op_type) if node.domain == "" else None
        wide = {name: widened(array) for name, array in arrays.items()}
        if formula is not None and len(node.inputs) == 1:
            result = formula(node, wide[_name(node.inputs[0])])
            return {_name(node.outputs[0]): result}
        found = self._run(widened_node(ir.to_proto(node)), node, wide)
        return found if isinstance(found, NoReference) else {name: widened(array) for name, array in found.items()}

    def own(self, node: ir.Node, arrays: Mapping[str, Array]) -> dict[str, Array] | NoReference:
        """Every output in the model's own types."""
        kinds = {array.dtype.name for array in arrays.values()}
        if node.op_type in _PRODUCTS and kinds <= _HALVES:
            dtype = next(iter(arrays.values())).dtype
            single = {name: array.astype(np.float32) for name, array in arrays.items()}
            found = self._run(ir.to_proto(node), node, single)
            return found if isinstance(found, NoReference) else {n: array.astype(dtype) for n, array in found.items()}
        return self._run(ir.to_proto(node), node, arrays)

    def _run(self, proto: onnx.NodeProto, node: ir.Node, arrays: Mapping[str, Array]) -> dict[str, Array] | NoReference:
        from onnx.reference import ReferenceEvaluator

        reason = _unsupported_reason(node)
        if reason is not None:
            return NoReference(reason)
        names = [name for name in dict.fromkeys(proto.output) if name]
        try:
            inputs = [_value_info(name, array) for name, array in arrays.items()]
            outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in names]
            graph = onnx.helper.make_graph([proto], "node", inputs, outputs)
            opsets = self._opsets
            if _is_pair(node):
                graph.node[0].domain, opsets = "", [onnx.helper.make_opsetid("", max(_PAIRS_OPSET, self.opset))]
            model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=self._ir_version)
            # It computes what the graph does not read, such as the mean of an empty batch.
            with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore", category=RuntimeWarning):
                results = ReferenceEvaluator(model).run(None, dict(arrays))
        except _FAILURES as error:
            text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            return NoReference(f"onnx.reference failed on it: {text[:200]}")
        if not all(isinstance(result, np.ndarray | np.generic) for result in results):
            return NoReference("it returns something other than a tensor")
        return {name: np.asarray(result) for name, result in zip(names, results, strict=True)}


def read_names(node: ir.Node) -> list[str]:
    """Names of all values that a node reads, with those that its subgraphs capture, each once."""
    values = [*(value for value in node.inputs if value is not None), *captured_values(node)]
    return list(dict.fromkeys(_name(value) for value in values))


def widened(array: Array) -> Array:
    """Convert a floating-point array to float64; return others unchanged."""
    return array.astype(np.float64, copy=False) if format_of(array.dtype) is not None else array


def rounded(exact: Array, dtype: np.dtype[np.generic]) -> Array:
    """Round to the nearest values of a type; overflow gives infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        return exact.astype(dtype)


def moved(arrays: Mapping[str, Array], unit: float) -> dict[str, Array]:
    """Perturb every floating-point element by one unit roundoff, randomly up or down, in float64."""
    rng = np.random.default_rng(0)
    return {
        name: array.astype(np.float64) * (1.0 + unit * rng.choice([-1.0, 1.0], array.shape))
        if format_of(array.dtype) is not None
        else array
        for name, array in arrays.items()
    }


def _is_pair(node: ir.Node) -> bool:
    return node.op_type in _PAIRS and (is_standard(node) or node.domain == CONTRIB_DOMAIN)


def _unsupported_reason(node: ir.Node) -> str | None:
    if node.domain not in _STANDARD and not _is_pair(node):
        return f"onnx.reference has no operator {node.op_type} of domain {node.domain}"
    if node.op_type in _RANDOM:
        return "it draws random numbers"
    if node.op_type == "Loop" and (len(node.inputs) < 2 or node.inputs[1] is None):
        return "onnx.reference runs zero iterations of a Loop whose cond input is omitted"
    if node.op_type == "Loop" and len(node.outputs) > len(node.inputs) - 2:
        return "onnx.reference joins the scan outputs of a Loop along their first axis instead of stacking them"
    return None


def _name(value: ir.Value | None) -> str:
    return "" if value is None else value.name or ""


def _value_info(name: str, array: Array) -> onnx.ValueInfoProto:
    element = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_value_info(name, element, list(array.shape))


def _erf(array: Array) -> Float64:
    result: Float64 = np.vectorize(math.erf, otypes=[np.float64])(array) if array.size else array.astype(np.float64)
    return result


def _gelu(node: ir.Node, array: Array) -> Array:
    x = array.astype(np.float64)
    attribute = node.attributes.get("approximate")
    if attribute is not None and attribute.as_string() == "tanh":
        inner: Float64 = 1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))
    else:
        inner = 1.0 + _erf(x / math.sqrt(2.0))
    return 0.5 * x * inner


# The evaluator of onnx 1.23.2 computes erf in float32 for every input type, so these replace it.
_FORMULAS: dict[str, Callable[[ir.Node, Array], Array]] = {"Erf": lambda _, array: _erf(array), "Gelu": _gelu}
