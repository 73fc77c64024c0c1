"""Attention with true extra work in its graph: a slow-down of about a known share, for trying whether it is found.

The scores of the first rows of the query are computed once more and summed into a second output, so that no optimiser
can drop the work and nothing is added to the first output. What the slow-down really is must be measured: reading the
keys again, and three more nodes, cost something of their own.
"""

import onnx_ir as ir

from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["with_extra_work"]

_EXTRA = "extra_work"


def with_extra_work(model: OnnxModel, *, rows: int) -> OnnxModel:
    """A copy of bare attention (inputs Q and K) that scores so many rows of the query once more.

    Args:
        model: As `export sdpa` writes it, float32.
        rows: Rows of Q; the share of extra multiplications is rows / (2 q_seq_len).
    """
    graph_model = ir.serde.deserialize_model(ir.serde.serialize_model(model.ir))
    graph = graph_model.graph
    query, key = (next(one for one in graph.inputs if one.name == name) for name in "QK")
    nodes = Nodes(_EXTRA)
    some = nodes("Slice", query, nodes.integers(0), nodes.integers(rows), nodes.integers(2))
    scores = nodes("MatMul", some, nodes("Transpose", key, perm=[0, 1, 3, 2]))
    total = nodes("ReduceSum", scores, keepdims=0)
    graph.extend(nodes.written)
    total.name, total.dtype, total.shape = _EXTRA, ir.DataType.FLOAT, ir.Shape(())
    graph.outputs.append(total)
    return load_model(ir.serde.serialize_model(graph_model))
