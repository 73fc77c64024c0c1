"""Add real extra work to an attention graph: a slow-down of a roughly known share, to test whether it is detected.

The scores of the first query rows are computed again and summed into a second output, so that no optimiser
can remove the work and the first output is unchanged. The real slow-down must be measured: reading the
keys again and three more nodes have their own cost.
"""

import onnx_ir as ir

from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.graph.nodes import Nodes

__all__ = ["with_extra_work"]

_EXTRA = "extra_work"


def with_extra_work(model: OnnxModel, *, rows: int) -> OnnxModel:
    """A copy of bare attention (inputs Q and K) that computes the scores of some query rows again.

    Args:
        model: From `export sdpa`, float32.
        rows: Number of rows of Q; the share of extra multiplications is rows / (2 q_seq_len).
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
