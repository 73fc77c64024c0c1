"""Count the operations and bytes of a graph at given sizes: its attentions and its matrix products with weights.

Counts from shapes alone; runs nothing. Returns None where a shape is unknown, and never guesses.
"""

from collections.abc import Mapping

import onnx_ir as ir

from sdpa_onnx.core.attention.roofline import AttentionWork, attention_work
from sdpa_onnx.core.attention.spec import AttentionCase
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.workflows.check.feeds import bare_case, resolve_shape

__all__ = ["model_work", "site_case"]

Sizes = Mapping[str, int]


def model_work(model: OnnxModel, sizes: Sizes) -> AttentionWork | None:
    """Work of one call, or None where a shape is not known.

    Attention is counted by `attention_work`; every MatMul and Gemm with a
    constant weight by 2 rows K N. Other nodes (norms, activations) are not counted.

    Source: METHOD C.1.
    """
    try:
        cases = [site_case(model, site, sizes) for site in model.sites]
        weights = _weight_flops(model, sizes)
    except ModelError:
        return None
    works = [attention_work(case) for case in cases]
    return AttentionWork(
        useful_flops=weights + sum(work.useful_flops for work in works),
        executed_flops=weights + sum(work.executed_flops for work in works),
        exps=sum(work.exps for work in works),
        bytes_moved=sum(work.bytes_moved for work in works),
    )


def site_case(model: OnnxModel, site: AttentionSite, sizes: Sizes) -> AttentionCase:
    """Sizes of one attention inside a graph.

    Raises:
        ModelError: If the graph does not state the shapes of its query and key.
    """
    bare = bare_case(model, sizes)
    if bare is not None:
        return bare
    values = _values(model)
    query, key = (_shape(values, name, sizes) for name in (site.query, site.key))
    axis = 2 if len(query) == 4 else 1
    past = _shape(values, site.past_key, sizes)[2] if site.past_key else 0
    return AttentionCase(
        spec=site.spec,
        batch_size=query[0],
        q_seq_len=query[axis],
        kv_seq_len=key[axis],
        past_seq_len=past,
        dtype=model.facts.dtype,
    )


def _weight_flops(model: OnnxModel, sizes: Sizes) -> int:
    total = 0
    for node in model.ir.graph:
        if node.op_type not in ("MatMul", "Gemm") or len(node.inputs) < 2:
            continue
        data, weight = node.inputs[0], node.inputs[1]
        if data is None or weight is None or weight.const_value is None or weight.shape is None:
            continue
        rows = 1
        for size in resolve_shape(data, sizes)[:-1]:
            rows *= size
        elements = 1
        for size in weight.shape.numpy():
            elements *= size
        total += 2 * rows * elements
    return total


def _values(model: OnnxModel) -> dict[str, ir.Value]:
    values = {value.name or "": value for value in model.ir.graph.inputs}
    return values | {value.name or "": value for node in model.ir.graph for value in node.outputs}


def _shape(values: Mapping[str, ir.Value], name: str, sizes: Sizes) -> tuple[int, ...]:
    if name not in values:
        raise ModelError(f"Value '{name}' is not in the graph.")
    return resolve_shape(values[name], sizes)
