"""Assemble a canonical attention from its matched parts: both matrix products, the score chain and the weights.

Matches no pattern itself.
"""

from dataclasses import dataclass, replace

import onnx_ir as ir

from sdpa_onnx.core.attention.score_quantisers import ScoreQuantisers
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.errors import CaseError
from sdpa_onnx.graph.attention_node import mask_kind_of
from sdpa_onnx.graph.element_types import DTYPES
from sdpa_onnx.graph.given_numbers import deciding_inputs, is_single
from sdpa_onnx.graph.graph_attention import GraphAttention
from sdpa_onnx.graph.lift.batch_heads import find_head_count, merge_heads, split_heads
from sdpa_onnx.graph.lift.factors import scale_of, scaled_query
from sdpa_onnx.graph.lift.found import GIVE_IT
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.masks.masks_read import as_one_mask
from sdpa_onnx.graph.lift.operands import as_dtype, transposed, ungrouped
from sdpa_onnx.graph.lift.products import ScoresProduct, ValuesProduct
from sdpa_onnx.graph.lift.refused import UnreadReason
from sdpa_onnx.graph.lift.softmax.score_chain import ScoreChain
from sdpa_onnx.graph.lift.softmax.sinks import mask_with_sink, with_zero_key
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["AttentionParts", "assemble"]

_Dims = tuple[int | None, ...]
_OPEN = "the number or the width of the heads is not static"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionParts:
    """The matched parts of one attention.

    Args:
        scores: The product of query and key.
        chain: The nodes between that product and the softmax: scale, softcap, masks.
        values: The product of weights and values.
        weights_rank: Rank of the weights at that product.
    """

    scores: ScoresProduct
    chain: ScoreChain
    values: ValuesProduct
    weights_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operands:
    query: ir.Value
    key: ir.Value
    value: ir.Value
    dtype: ir.DataType
    heads: int | None  # head count if batch and heads shared an axis that had to be split


def assemble(
    search: GraphFacts, nodes: Nodes, softmax: ir.Node, parts: AttentionParts
) -> tuple[GraphAttention, tuple[str, ...]] | UnreadReason:
    """Build the attention and its warnings, and insert the new nodes that it needs into the graph.

    Args:
        search: The graph.
        nodes: New nodes; inserted only if the attention can be read.
        softmax: The softmax that the pattern match started from.
        parts: The matched parts.
    """
    operands = _operands(search, nodes, parts)
    if isinstance(operands, UnreadReason):
        return operands
    operands, own_key = _with_sink(search, nodes, parts, operands), operands.key
    spec = _spec(search, operands, parts)
    if isinstance(spec, UnreadReason):
        return spec
    rank = 4 if spec.layout is Layout.BNSH else 3
    mask = as_one_mask(
        search, nodes, parts.chain.masks, dtype=operands.dtype, key=own_key, heads=operands.heads, rank=rank
    )
    if isinstance(mask, UnreadReason):
        return mask
    sink = parts.chain.sink
    if sink is not None:
        mask = mask_with_sink(nodes, sink, mask, query=operands.query, key=own_key, dtype=operands.dtype)
    output = _output(search, nodes, parts, operands)
    spec = replace(spec, mask=mask_kind_of(mask))
    quantisers = _quantisers(search, parts)
    if isinstance(quantisers, UnreadReason):
        return quantisers
    attention = GraphAttention(
        name=search.attention_name(softmax),
        spec=spec,
        dtype=DTYPES[operands.dtype],
        query=operands.query,
        key=operands.key,
        value=operands.value,
        attn_mask=mask,
        output=output,
        quantisers=quantisers,
    )
    return attention, (*parts.chain.warnings, *parts.chain.pairs.warnings)


def _quantisers(search: GraphFacts, parts: AttentionParts) -> ScoreQuantisers | UnreadReason:
    """The pairs between the products; those of a product of scaled operands round scaled scores."""
    pairs, is_folded = parts.chain.pairs, parts.scores.factor.number != 1.0
    if "product" in pairs.found and is_folded and parts.chain.is_scaled:
        name = search.name_of(parts.scores.node)
        return UnreadReason(f"the scores are quantized between two scales: node {name}")
    return pairs.quantisers(before_mask="scaled" if is_folded else "product")


def _operands(search: GraphFacts, nodes: Nodes, parts: AttentionParts) -> _Operands | UnreadReason:
    name = search.name_of(parts.values.node)
    dtype = parts.values.node.outputs[0].dtype
    if dtype not in DTYPES or dtype is None:
        return UnreadReason(
            f"the element type of node {name} is {dtype.name if dtype else 'unknown'}, which is not read"
        )
    narrowed = [as_dtype(value, dtype) for value in (parts.scores.query, parts.scores.key)]
    query, key, value = *narrowed, parts.values.value
    if query is None or key is None:
        kinds = [value.dtype.name if value.dtype else "unknown" for value in (parts.scores.query, parts.scores.key)]
        return UnreadReason(f"query and key are {' and '.join(kinds)}, the output is {dtype.name}: node {name}")
    operands = _Operands(query=query, key=key, value=value, dtype=dtype, heads=None)
    ranks, scales = {parts.scores.rank, parts.chain.rank, parts.weights_rank}, parts.chain.head_scales
    heads = None if ranks in ({2}, {4}) else _heads(search, parts, operands)
    split = [scale for scale in scales if scale.rank == 4] if parts.scores.rank == 3 and heads is not None else []
    joint = [scale for scale in scales if scale not in split]
    misplaced = next((search.name_of(scale.node) for scale in joint if scale.rank != parts.scores.rank), None)
    if misplaced is not None:
        return UnreadReason(f"the scale of one value a head follows a Reshape that is not read: node {misplaced}")
    query = scaled_query(nodes, query, joint)
    if ranks == {2}:
        query, key, value = (nodes("Unsqueeze", operand, nodes.integers(0)) for operand in (query, key, value))
    if heads is None:
        return replace(operands, query=query, key=key, value=value)
    if parts.scores.rank == 3:
        query, key = split_heads(search, nodes, query, heads), split_heads(search, nodes, key, heads)
    if parts.weights_rank == 3:
        value = split_heads(search, nodes, value, heads)
    query = scaled_query(nodes, query, split)
    return _Operands(query=query, key=key, value=value, dtype=dtype, heads=heads)


def _with_sink(search: GraphFacts, nodes: Nodes, parts: AttentionParts, operands: _Operands) -> _Operands:
    """The operands with one more key and value of zeros if the softmax has a sink."""
    if parts.chain.sink is None:
        return operands
    # Here, since repeated heads are not recognised behind the new nodes.
    (key, times), (value, again) = ungrouped(search, operands.key), ungrouped(search, operands.value)
    if times != again:
        key, value = operands.key, operands.value
    return replace(operands, key=with_zero_key(nodes, key), value=with_zero_key(nodes, value))


def _heads(search: GraphFacts, parts: AttentionParts, operands: _Operands) -> int | None:
    """Head count where batch and heads share an axis in at least one product; None if the graph does not show it."""
    for value, rank in ((operands.query, parts.scores.rank), (operands.value, parts.weights_rank)):
        dims = search.dims_of(value)
        if rank == 4 and dims is not None and len(dims) == 4:
            return dims[1]
    return parts.chain.heads or find_head_count(search, operands.query) or find_head_count(search, operands.key)


def _spec(search: GraphFacts, operands: _Operands, parts: AttentionParts) -> AttentionSpec | UnreadReason:
    name = search.name_of(parts.scores.node)
    query, key, value = (search.dims_of(one) for one in (operands.query, operands.key, operands.value))
    if query is None or key is None or value is None:
        return UnreadReason(f"the rank of query, key or value is unknown: node {name}")
    mismatch = _shape_mismatch(query, key, value)
    if mismatch:
        return UnreadReason(f"{mismatch}: node {name}{_how_to_give(search, operands) if mismatch == _OPEN else ''}")
    is_split = len(query) == 4
    head_dim = query[-1] or key[-1] or 0
    try:
        return AttentionSpec(
            q_num_heads=(query[1] or 0) if is_split else 1,
            kv_num_heads=(key[1] or 0) if is_split else 1,
            head_dim=head_dim,
            v_head_dim=value[-1] or 0,
            softcap=parts.chain.softcap,
            scale=scale_of(parts.scores.factor * parts.chain.factor, head_dim),
            layout=Layout.BNSH if is_split else Layout.BSH,
        )
    except CaseError as error:
        return UnreadReason(f"{error.args[0].rstrip('.')}: node {name}")


def _shape_mismatch(query: _Dims, key: _Dims, value: _Dims) -> str:
    """The reason why shapes of query, key and value do not form an attention that can be read, or ""."""
    if not len(query) == len(key) == len(value) or len(query) not in (3, 4):
        return f"query, key and value have {len(query)}, {len(key)} and {len(value)} axes"
    if any(1 in (query[0], other[0]) and query[0] != other[0] for other in (key, value)):
        return "query, key and value have different batch sizes, which broadcast"
    heads = [] if len(query) == 3 else [query[1], key[1], value[1]]
    if None in heads or value[-1] is None or (query[-1] or key[-1]) is None:
        return _OPEN
    return f"key has {heads[1]} heads and value {heads[2]}" if heads and heads[1] != heads[2] else ""


def _how_to_give(search: GraphFacts, operands: _Operands) -> str:
    """How to give the sizes of open axes of heads and widths; "" if no axis of the inputs determines them."""
    shapes = [search.sizes_of(one) or () for one in (operands.query, operands.key, operands.value)]
    open_sizes = [size for sizes in shapes for size in (sizes[-1], *sizes[1:-2]) if not isinstance(size, int)]
    own = {str(size) for one in search.graph.inputs for size in one.shape or () if isinstance(size, ir.SymbolicDim)}
    names = sorted({name for size in open_sizes for name in size.names if name in own})
    if names:
        return f" ({GIVE_IT} {' '.join(f'--size {name}=SIZE' for name in names)})"
    operand = next((one for one in (operands.query, operands.key, operands.value) if _is_open(search, one)), None)
    inputs = [] if operand is None else list(deciding_inputs(search.graph, operand))
    if not inputs:
        return ""
    contents = " and ".join(f"'{one.name}'" for one in inputs)
    options = [f"--size {one.name}=NUMBER" for one in inputs] if all(map(is_single, inputs)) else ["--inputs F.npz"]
    return f" (it is the contents of the input {contents}; {GIVE_IT} {' '.join(options)})"


def _is_open(search: GraphFacts, operand: ir.Value) -> bool:
    sizes = search.sizes_of(operand) or ()
    return any(not isinstance(size, int) for size in (*sizes[-1:], *sizes[1:-2]))


def _output(search: GraphFacts, nodes: Nodes, parts: AttentionParts, operands: _Operands) -> ir.Value:
    """The output in the axis order of the operator: that of the product, or of a new product that replaces it."""
    values, node = parts.values, parts.values.node
    weights, value = values.weights, values.value
    if operands.heads is not None and parts.weights_rank == 3:
        weights = split_heads(search, nodes, weights, operands.heads)
        output = nodes("MatMul", weights, operands.value)
        restored = merge_heads(nodes, output)
    elif parts.weights_rank == 2:
        output = nodes("MatMul", nodes("Unsqueeze", weights, nodes.integers(0)), operands.value)
        restored = nodes("Squeeze", output, nodes.integers(0))
    elif values.order is not None:
        output = restored = nodes("MatMul", weights, value)
    else:
        search.insert_before(node, nodes)
        return node.outputs[0]
    restored = restored if values.order is None else transposed(nodes, restored, list(values.order))
    search.insert_before(node, nodes)
    search.replace_output(node, restored)
    return output
