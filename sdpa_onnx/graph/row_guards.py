"""Find attentions whose graph gives NaN in a row without a visible key: a softmax in plain operators without a guard.

Reads the nodes only, whatever the metadata states. Whether a key is visible depends on the inputs; see
`core.judge.nan_places`.
"""

from collections.abc import Iterable

import onnx_ir as ir

from sdpa_onnx.graph.domains import is_standard
from sdpa_onnx.graph.site import AttentionSite

__all__ = ["sites_without_row_guard"]

# Operators between the softmax and the output of an attention that keep a NaN. Any other, such as Where, may guard.
_KEEPS_NAN = frozenset(
    ["Cast", "Dropout", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"]
)
_PRODUCTS = frozenset(["Einsum", "Gemm", "MatMul"])


def sites_without_row_guard(graph: ir.Graph, sites: Iterable[AttentionSite]) -> frozenset[str]:
    """Names of the attentions in which nothing follows the softmax but the product with the values.

    Args:
        graph: The main graph; not changed.
        sites: Its attentions. Of one inside a subgraph nothing is known, so it counts as guarded.
    """
    named = {site.output: site for site in sites}
    if not named:
        return frozenset()
    values = (value for node in graph for value in node.outputs if value.name in named)
    return frozenset(named[value.name or ""].name for value in values if _is_bare(value, named[value.name or ""]))


def _is_bare(output: ir.Value, site: AttentionSite) -> bool:
    """Whether the weights of a softmax reach the output through one product, and through nothing that may guard."""
    ends = set(site.inputs.values())
    waiting = [(output, 1)]
    while waiting:
        value, products = waiting.pop()
        node = value.producer()
        if node is None or not is_standard(node) or value.name in ends:
            continue
        if node.op_type == "Softmax" and not products:
            return True
        if node.op_type in _PRODUCTS and products:
            waiting += [(read, products - 1) for read in node.inputs if read is not None]
        elif node.op_type in _KEEPS_NAN and node.inputs[0] is not None:
            waiting.append((node.inputs[0], products))
    return False
