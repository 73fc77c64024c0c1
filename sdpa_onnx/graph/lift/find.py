"""Find every attention of a model, in any dialect, and read it into the canonical form.

Does not change the model: returns an equivalent copy. A dialect is a module with a function `read(search)` that yields
the attentions it recognises; add one by a line in `READERS`.
"""

from collections.abc import Callable, Iterator

import onnx_ir as ir

from sdpa_onnx.graph.lift import in_functions, other_softmax, standard, written_out
from sdpa_onnx.graph.lift.contrib import attention as contrib_attention
from sdpa_onnx.graph.lift.contrib import gqa as contrib_gqa
from sdpa_onnx.graph.lift.contrib import mha as contrib_mha
from sdpa_onnx.graph.lift.contrib import other as contrib_other
from sdpa_onnx.graph.lift.found import FoundAttention, FoundAttentions
from sdpa_onnx.graph.lift.graph_facts import GraphFacts
from sdpa_onnx.graph.lift.masks.mask_bands import MaskBands
from sdpa_onnx.graph.lift.normalise import normalise_attention

__all__ = ["READERS", "find_attentions"]

Reader = Callable[[GraphFacts], Iterator[FoundAttention]]

READERS: tuple[Reader, ...] = (
    standard.read,
    contrib_mha.read,
    contrib_gqa.read,
    contrib_attention.read,
    contrib_other.read,
    written_out.read,
    other_softmax.read,
    in_functions.read,
)


def find_attentions(model: ir.Model, *, rows_may_be_empty: bool = True, keeps_outputs: bool = False) -> FoundAttentions:
    """Find every attention in graph order, including those that cannot be read.

    The copy shares the model's tensors; external data files are not read.

    Args:
        model: The model; not changed.
        rows_may_be_empty: Whether padding may hide every key of a query, see `normalise_attention`.
        keeps_outputs: Whether to judge the operators' own outputs (see `GraphFacts`), not to rewrite the attentions.
    """
    search = GraphFacts(model, keeps_outputs=keeps_outputs)
    read_ones = [attention for read in READERS for attention in read(search)]
    bands = MaskBands(search)
    found = [
        normalise_attention(search, bands, attention, rows_may_be_empty=rows_may_be_empty) for attention in read_ones
    ]
    places = {node.name: place for place, node in enumerate(search.nodes)}
    found.sort(key=lambda attention: places.get(attention.node, len(places)))
    return FoundAttentions(model=search.model, found=tuple(found))
