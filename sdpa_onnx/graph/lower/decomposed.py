"""Write attention decomposed into standard operators, from opset 13 on: softmax(scale Q K^T + bias) V.

Lengths are computed from the inputs at run time. Does not depend on any runtime.
"""

import onnx_ir as ir

from sdpa_onnx.core.attention.forms import LowerOptions, ScalePlacement
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lower.form_outputs import FormOutputs
from sdpa_onnx.graph.lower.mask_nodes import attn_bias, may_have_empty_rows, rows_with_keys, unknown_rank
from sdpa_onnx.graph.lower.operands import (
    AttentionLengths,
    FormOperands,
    element_type,
    is_exact,
    join_operands,
    restore_layout,
    roots,
    scaled,
)
from sdpa_onnx.graph.lower.score_pairs import PAIRS_OF_BFLOAT16, pairs_refusal, with_pairs
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["build", "capped_scores", "needed_opset", "refusal"]


def needed_opset(attention: GraphAttention, options: LowerOptions) -> int:  # noqa: ARG001  # one signature for all forms
    """13, since when Softmax works on one axis; 16 for bfloat16, which Where supports from there on; 19 with pairs."""
    if attention.dtype is not Dtype.BFLOAT16:
        return 13
    return PAIRS_OF_BFLOAT16 if attention.quantisers else 16


def refusal(attention: GraphAttention, *, opset: int, options: LowerOptions) -> str | None:  # noqa: ARG001
    """Why the form cannot be written: the rank of the mask is unknown, or the options contradict quantised scores."""
    if attention.quantisers.product and options.scale_placement not in (None, ScalePlacement.SCORES):
        return (
            "The product of query and key is quantized before it is scaled, so the scale has to stay on the scores: "
            f"leave out --scale-placement, or use --scale-placement {ScalePlacement.SCORES}."
        )
    return unknown_rank(attention) or pairs_refusal(attention)


def build(nodes: Nodes, attention: GraphAttention, *, opset: int, options: LowerOptions) -> FormOutputs:
    """Write the formula.

    Fully masked rows are set to zero in the output, not in the scores; they
    are recognised by the bias alone. Query heads that share a key head are
    rows of one matrix product, so no key is repeated. The Reshape for this
    uses -1, which runtimes refuse for an empty batch or no keys.
    Pairs that round scores or weights stay at the same stages; after one that rounds masked scores, no row is empty.

    Source: ONNX Attention, opset 25.
    """
    lengths = AttentionLengths(nodes, attention)
    joined = join_operands(nodes, attention)
    pairs = attention.quantisers
    scores = _scores(nodes, attention, joined, options.scale_placement, opset=opset)
    capped = capped_scores(nodes, scores, attention)
    bias = attn_bias(nodes, attention, lengths)
    logits = capped if bias is None else nodes("Add", capped, bias)
    logits = with_pairs(nodes, logits, pairs.masked, attention, opset=opset)
    weights = nodes("Softmax", logits, axis=-1)
    with_keys = None
    if bias is not None and may_have_empty_rows(attention) and not pairs.masked:
        with_keys = rows_with_keys(nodes, attention, bias, opset=opset)
    # Next to the product: onnxruntime 1.32 cannot load a Reshape after int8 at opset 21.
    summed = with_pairs(nodes, _grouped(nodes, attention, weights), pairs.weights, attention, opset=opset)
    output = _guarded(nodes, _split(nodes, attention, nodes("MatMul", summed, joined.value)), with_keys)
    if attention.scores is not None and attention.scores_mode == QkOutputMode.WEIGHTS:
        weights = _guarded(nodes, weights, with_keys)
    stages = (scores, capped, logits, weights)
    return FormOutputs(
        output=restore_layout(nodes, attention, output),
        present_key=None if attention.present_key is None else joined.key,
        present_value=None if attention.present_value is None else joined.value,
        scores=None if attention.scores is None else stages[attention.scores_mode],
    )


def _scores(
    nodes: Nodes, attention: GraphAttention, joined: FormOperands, placement: ScalePlacement | None, *, opset: int
) -> ir.Value:
    """Scaled scores, scale * Q K^T: (batch, q heads, queries, keys)."""
    spec, dtype, pairs = attention.spec, attention.dtype, attention.quantisers
    query, key = joined.query, joined.key
    placement = placement or (ScalePlacement.SCORES if pairs.product else ScalePlacement.QUERY)
    match placement:
        case ScalePlacement.QUERY:
            query = scaled(nodes, query, spec.scale_value, dtype)
        case ScalePlacement.BOTH:
            on_query, on_key = roots(spec.scale_value)
            query, key = scaled(nodes, query, on_query, dtype), scaled(nodes, key, on_key, dtype)
        case ScalePlacement.SCORES:
            pass
    turned = nodes("Transpose", key, perm=[0, 1, 3, 2])
    scores = _split(nodes, attention, nodes("MatMul", _grouped(nodes, attention, query), turned))
    scores = with_pairs(nodes, scores, pairs.product, attention, opset=opset)
    if placement is ScalePlacement.SCORES:
        scores = scaled(nodes, scores, spec.scale_value, dtype)
    return with_pairs(nodes, scores, pairs.scaled, attention, opset=opset)


def _grouped(nodes: Nodes, attention: GraphAttention, value: ir.Value) -> ir.Value:
    """Stack the rows of all heads that share a key head: (batch, kv heads, heads * rows, width)."""
    spec = attention.spec
    if spec.heads_per_kv == 1:
        return value
    return nodes("Reshape", value, nodes.integers(0, spec.kv_num_heads, -1, 0))


def _split(nodes: Nodes, attention: GraphAttention, value: ir.Value) -> ir.Value:
    """Undo `_grouped`: (batch, q heads, rows, width)."""
    if attention.spec.heads_per_kv == 1:
        return value
    return nodes("Reshape", value, nodes.integers(0, attention.spec.q_num_heads, -1, 0))


def capped_scores(nodes: Nodes, scores: ir.Value, attention: GraphAttention) -> ir.Value:
    """Softcap * tanh(scores / softcap); in float32 if the element type cannot represent the softcap exactly."""
    cap = attention.spec.softcap
    if not cap:
        return scores
    element = element_type(attention.dtype)
    working = element if is_exact(cap, attention.dtype) else ir.DataType.FLOAT
    wide = scores if working is element else nodes("Cast", scores, dtype=working, to=int(working))
    number = nodes.constant(cap, working)
    capped = nodes("Mul", nodes("Tanh", nodes("Div", wide, number)), number)
    return capped if working is element else nodes("Cast", capped, dtype=element, to=int(element))


def _guarded(nodes: Nodes, rows: ir.Value, with_keys: ir.Value | None) -> ir.Value:
    """Set fully masked rows to zero."""
    if with_keys is None:
        return rows
    return nodes("Where", with_keys, rows, nodes.constant(0.0, rows.dtype or ir.DataType.FLOAT), dtype=rows.dtype)
