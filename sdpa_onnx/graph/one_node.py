"""Models of one operator, of any domain: what a conformance case or a bug report consists of.

Knows the operators' input names, to separate dynamic axes from fixed widths. Checks
nothing else, so that runtimes can also be tested with models that they should refuse.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import ONNX_INPUT_NAMES
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.attention_node import find_sites
from sdpa_onnx.graph.domains import CONTRIB_DOMAIN
from sdpa_onnx.graph.ir_version import lowest_ir_version
from sdpa_onnx.graph.model import OnnxModel

__all__ = ["FORMAL_INPUTS", "OneNode", "build_one_node_model"]


Array = NDArray[np.generic]
Attribute = int | float | str | Sequence[int] | Sequence[float]

# Input names of the operators in their own order, by (domain, operator).
# Source: ONNX Attention, opset 25; onnxruntime docs/ContribOperators.md, version 1 of com.microsoft.
FORMAL_INPUTS: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "Attention"): tuple(ONNX_INPUT_NAMES.values()),
    (CONTRIB_DOMAIN, "MultiHeadAttention"): (
        "query",
        "key",
        "value",
        "bias",
        "key_padding_mask",
        "attention_bias",
        "past_key",
        "past_value",
        "past_sequence_length",
        "cache_indirection",
    ),
    (CONTRIB_DOMAIN, "GroupQueryAttention"): (
        "query",
        "key",
        "value",
        "past_key",
        "past_value",
        "seqlens_k",
        "total_sequence_length",
        "cos_cache",
        "sin_cache",
        "position_ids",
        "attention_bias",
        "head_sink",
    ),
    (CONTRIB_DOMAIN, "Attention"): (
        "input",
        "weights",
        "bias",
        "mask_index",
        "past",
        "attention_bias",
        "past_sequence_length",
    ),
}

# Ranks of their outputs, which ONNX cannot infer and onnx.checker requires.
_OUTPUT_RANKS: dict[tuple[str, str], tuple[int, ...]] = {
    (CONTRIB_DOMAIN, "MultiHeadAttention"): (3, 4, 4, 4),
    (CONTRIB_DOMAIN, "GroupQueryAttention"): (3, 4, 4, 4),
    (CONTRIB_DOMAIN, "Attention"): (3, 5),
}

# Axes of a mask that is broadcast are 1 in the model, and so are its heads; its lengths vary.
_MASKS = frozenset({"attn_mask", "key_padding_mask", "attention_bias", "mask_index"})
_FIXED = frozenset({"weights", "bias", "cos_cache", "sin_cache", "head_sink"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OneNode:
    """One operator with its attributes and the names of its values.

    Args:
        op_type: Such as "Attention".
        domain: "" or "com.microsoft".
        opset: Version of the default domain; other domains have version 1.
        attributes: By name; others keep the operator's default.
        inputs: Value names by position; "" = absent.
        outputs: Value names by position; "" = left out.
    """

    op_type: str = "Attention"
    domain: str = ""
    opset: int = 23
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    inputs: tuple[str, ...] = ("Q", "K", "V")
    outputs: tuple[str, ...] = ("Y",)


def build_one_node_model(
    node: OneNode, feeds: Mapping[str, Array], *, dynamic: bool = False, constants: Mapping[str, Array] | None = None
) -> OnnxModel:
    """Build a model whose graph is this node alone.

    Args:
        node: The operator.
        feeds: An array for each input, which gives its type and shape.
        dynamic: Make every axis dynamic but heads, widths and the ones of a
            broadcast mask; False = every size as in the feeds.
        constants: Arrays of inputs that are stored in the model, such as weights.

    Returns:
        The model, with a site if the node is a standard Attention.
        Outputs of the standard operator have their inferred shape, others their rank.

    Raises:
        ModelError: If an input has no array.

    Example:
        >>> rows = np.zeros((1, 2, 3, 4), np.float32)
        >>> model = build_one_node_model(OneNode(), {"Q": rows, "K": rows, "V": rows}, dynamic=True)
        >>> model.input_names, model.output_names
        (('Q', 'K', 'V'), ('Y',))
        >>> print(model.input_value("Q").shape)
        [Q_0,2,Q_2,4]
    """
    names = list(node.inputs)
    while names and not names[-1]:
        names.pop()
    held = constants or {}
    values = _input_values(node, names, feeds, held, dynamic=dynamic)
    written = ir.node(
        node.op_type,
        [values.get(name) for name in names],
        attributes=dict(node.attributes),
        domain=node.domain,
        num_outputs=len(node.outputs),
        name=node.op_type.lower(),
    )
    _describe_outputs(node, written, names, {**feeds, **held})
    graph = ir.Graph(
        [value for name, value in values.items() if name not in held],
        [value for value in written.outputs if value.name],
        nodes=[written],
        initializers=[values[name] for name in held if name in values],
        opset_imports={"": node.opset} | ({node.domain: 1} if node.domain else {}),
        name=node.op_type.lower(),
    )
    model = _with_shapes(ir.Model(graph, ir_version=lowest_ir_version(node.opset), producer_name="sdpa_onnx"))
    return OnnxModel(ir=model, sites=find_sites(model))


def _input_values(
    node: OneNode, names: list[str], feeds: Mapping[str, Array], held: Mapping[str, Array], *, dynamic: bool
) -> dict[str, ir.Value]:
    formal = FORMAL_INPUTS.get((node.domain, node.op_type), ())
    values: dict[str, ir.Value] = {}
    for position, name in enumerate(names):
        if not name or name in values:
            continue
        if name in held:
            values[name] = _constant(name, held[name])
        elif name in feeds:
            role = formal[position] if position < len(formal) else name
            values[name] = _graph_input(name, role, feeds[name], dynamic=dynamic)
        else:
            raise ModelError(f"There is no array for input '{name}' of {node.op_type}.")
    return values


def _describe_outputs(node: OneNode, written: ir.Node, names: list[str], arrays: Mapping[str, Array]) -> None:
    """Name the outputs and give them their element type and, for contrib operators, their rank."""
    ranks = _OUTPUT_RANKS.get((node.domain, node.op_type), ())
    for position, (name, value) in enumerate(zip(node.outputs, written.outputs, strict=True)):
        value.name = name
        if position < len(ranks):
            value.shape = ir.Shape([None] * ranks[position])
        if name:
            value.type = ir.TensorType(_element(arrays[_type_source(names, position)]))


def _graph_input(name: str, role: str, array: Array, *, dynamic: bool) -> ir.Value:
    shape: list[int | str] = list(array.shape)
    if dynamic and role not in _FIXED:
        shape = [size if axis in _kept(role, array) else f"{name}_{axis}" for axis, size in enumerate(array.shape)]
    return ir.Value(name=name, type=ir.TensorType(_element(array)), shape=ir.Shape(shape))


def _constant(name: str, array: Array) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)


def _kept(role: str, array: Array) -> set[int]:
    """Axes that are never dynamic: heads, widths, and the broadcast axes of a mask."""
    if role in _MASKS:
        ones = {axis for axis, size in enumerate(array.shape) if size == 1}
        return ones | ({1} if array.ndim == 4 else set())
    if not np.issubdtype(array.dtype, np.integer) and array.ndim >= 3:
        # (batch, length, width), (batch, heads, length, width) or, packed, (2, batch, heads, length, width).
        return {3: {2}, 4: {1, 3}, 5: {0, 2, 4}}.get(array.ndim, {array.ndim - 1})
    return set()


def _type_source(names: list[str], position: int) -> str:
    """The input whose element type an output has: the third for present_value, else the first."""
    third = position == 2 and len(names) > 2 and names[2]
    return names[2] if third else names[0]


def _element(array: Array) -> ir.DataType:
    return ir.DataType.from_numpy(array.dtype)


def _with_shapes(model: ir.Model) -> ir.Model:
    """Give the outputs the shape that ONNX infers, or their rank where it infers none."""
    if any(domain for domain in model.opset_imports):
        return model
    try:
        inferred = onnx.shape_inference.infer_shapes(ir.to_proto(model))
    except (onnx.shape_inference.InferenceError, ValueError):
        return model  # sizes that do not fit: the runtime has to refuse them
    shaped = ir.from_proto(inferred)
    for node in shaped.graph:
        for cache in node.outputs[1:3]:
            if cache.shape is None:  # none is inferred for dynamic axes, and onnx.checker requires a rank
                cache.shape = ir.Shape([None] * 4)
        for scores in node.outputs[3:]:
            # onnx 1.23.2 ignores the past, and with dynamic axes infers 0 keys.
            scores.shape = ir.Shape([None] * 4)
    return shaped
