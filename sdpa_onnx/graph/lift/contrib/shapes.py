"""Shape inference through onnxruntime's own operators, for which ONNX infers nothing.

Without it, only the first of many attentions in a file optimised by onnxruntime could be read. Each such operator is
inferred as a standard operator whose output has the same shape. Operators without such an equivalent are not inferred.

Source: onnxruntime docs/ContribOperators.md, com.microsoft version 1.
"""

from collections.abc import Callable

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from sdpa_onnx.graph.domains import CONTRIB_DOMAIN
from sdpa_onnx.graph.nodes import Nodes
from sdpa_onnx.graph.quiet import quiet_ir

__all__ = ["infer_shapes"]

# Operators whose output has the type and shape of the first input; some have a further output, the sum of their inputs.
_LIKE_FIRST = (
    *("BiasAdd", "BiasGelu", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding"),
    *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
)
# The same, but onnxruntime defines these in the default domain, the second one below opset 17.
_LIKE_FIRST_STANDARD = ("SimplifiedLayerNormalization", "LayerNormalization")
_SUM_OUTPUT = 3

# Builds a value that has the shape of one output of a node; None if the shape is unknown.
_Substitute = Callable[[ir.Node, int, Nodes], "ir.Value | None"]


def infer_shapes(model: ir.Model) -> None:
    """Infer types and shapes of a model's values, in place, without reading tensor contents."""
    if any((node.domain, node.op_type) in _SUBSTITUTES for node in model.graph if node.op_type != "LayerNormalization"):
        standard_model = model.clone()
        for node in list(standard_model.graph):
            _replace(standard_model.graph, node)
        _infer(standard_model)
        _copy_shapes(model.graph, standard_model.graph)
    _infer(model)


def _infer(model: ir.Model) -> None:
    with quiet_ir():
        ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)


def _replace(graph: ir.Graph, node: ir.Node) -> None:
    """Replace an operator by standard nodes of the same shape, in a copy used only for shape inference."""
    write = _SUBSTITUTES.get((node.domain, node.op_type))
    if write is None or not node.outputs or not node.inputs or node.inputs[0] is None:
        return
    nodes = Nodes(f"{node.outputs[0].name}/stand")
    for place, old in enumerate(node.outputs):
        new = write(node, place, nodes) if old.name else None
        if new is not None:
            new.name, old.name = old.name, f"{old.name}/old"
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    for value in (made for one in nodes.written for made in one.outputs):
        value.type = None  # the builder guesses it if the input has none; inference finds it in order
    graph.insert_before(node, nodes.written)


def _like_first(node: ir.Node, place: int, nodes: Nodes) -> ir.Value | None:
    return nodes("Identity", node.inputs[0]) if place in (0, _SUM_OUTPUT) else None


def _embedding(node: ir.Node, place: int, nodes: Nodes) -> ir.Value | None:
    """`EmbedLayerNormalization`: rows of the embedding table, and one number per sample."""
    if place == 0:
        return nodes("Gather", node.inputs[2], node.inputs[0], axis=0) if len(node.inputs) > 2 else None
    if place != 1 or _integer(node, "mask_index_type", 1) != 1:
        return None
    return nodes("ReduceMax", nodes("Cast", node.inputs[0], to=int(ir.DataType.INT32)), axes=[1], keepdims=0)


def _integer(node: ir.Node, name: str, default: int | None) -> int | None:
    attribute = node.attributes.get(name)
    if attribute is None:
        return default
    return attribute.as_int() if attribute.type is ir.AttributeType.INT else None


def _product(node: ir.Node, place: int, nodes: Nodes) -> ir.Value | None:
    """`FusedMatMul`; unknown if an operand is transposed."""
    transposed = any(attribute.value for name, attribute in node.attributes.items() if name.startswith("trans"))
    return None if transposed or place else nodes("MatMul", *node.inputs[:2])


def _last_axis(node: ir.Node, nodes: Nodes, width: int | None) -> ir.Value | None:
    """The first input, of rank 3, with another size of its last axis."""
    return None if width is None else nodes("Reshape", node.inputs[0], nodes.integers(0, 0, width))


def _quantised_product(node: ir.Node, place: int, nodes: Nodes) -> ir.Value | None:
    return None if place else _last_axis(node, nodes, _integer(node, "N", None))


def _attention(node: ir.Node, place: int, nodes: Nodes) -> ir.Value | None:
    """As wide as the value: a third of the weights' columns, unless qkv_hidden_sizes states it."""
    if place:
        return None
    widths = node.attributes.get("qkv_hidden_sizes")
    if widths is not None:
        known = list(widths.as_ints()) if widths.type is ir.AttributeType.INTS else []
        return _last_axis(node, nodes, known[-1] if known else None)
    weights = node.inputs[1].shape if len(node.inputs) > 1 and node.inputs[1] is not None else None
    columns = weights[-1] if weights is not None and len(weights) == 2 else None
    return _last_axis(node, nodes, columns // 3 if isinstance(columns, int) else None)


def _separate(node: ir.Node, place: int, nodes: Nodes) -> ir.Value | None:
    """`GroupQueryAttention` with separate inputs has the shape of its query; with packed inputs it is unknown."""
    is_present = [value is not None for value in node.inputs[1:3]]
    return nodes("Identity", node.inputs[0]) if is_present == [True, True] and place == 0 else None


def _multi_head(node: ir.Node, place: int, nodes: Nodes) -> ir.Value | None:
    """As long as the query and as wide as the value, if both have rank 3."""
    if place or len(node.inputs) < 3 or None in node.inputs[:3]:
        return None
    length = nodes("Slice", nodes("Shape", node.inputs[0]), nodes.integers(0), nodes.integers(2))
    width = nodes("Slice", nodes("Shape", node.inputs[2]), nodes.integers(2), nodes.integers(3))
    return nodes("Reshape", node.inputs[0], nodes("Concat", length, width, axis=0))


_SUBSTITUTES: dict[tuple[str, str], _Substitute] = {
    **{(CONTRIB_DOMAIN, name): _like_first for name in _LIKE_FIRST},
    **{("", name): _like_first for name in _LIKE_FIRST_STANDARD},
    (CONTRIB_DOMAIN, "Attention"): _attention,
    (CONTRIB_DOMAIN, "EmbedLayerNormalization"): _embedding,
    (CONTRIB_DOMAIN, "FusedMatMul"): _product,
    (CONTRIB_DOMAIN, "GroupQueryAttention"): _separate,
    (CONTRIB_DOMAIN, "MatMulNBits"): _quantised_product,
    (CONTRIB_DOMAIN, "MultiHeadAttention"): _multi_head,
}


def _copy_shapes(graph: ir.Graph, inferred: ir.Graph) -> None:
    """Copy types and shapes by value name where the graph has none."""
    known = {value.name: value for node in inferred for value in node.outputs if value.name}
    for node in graph:
        for value in node.outputs:
            found = known.get(value.name or "")
            if found is None:
                continue
            value.type = value.type if value.type is not None else found.type
            if value.shape is None and found.shape is not None:
                value.shape = ir.Shape(list(found.shape))
