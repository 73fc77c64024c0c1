"""A model at given sizes, for runtimes that need every size before they build. Needs onnx, as those do.

What follows from sizes alone is computed by ONNX's reference: shapes, ranges, indices; never what depends on an input.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["fixed_sizes"]

# Larger ones, such as masks, are computed by the runtime from these.
_MOST_ELEMENTS = 2**16
_DRAWN = ("Random", "Bernoulli", "Multinomial")


def fixed_sizes(model: Any, shapes: dict[str, tuple[int, ...]]) -> Any:
    """The model at these sizes; all others follow from them, by the symbols of its axes or by the operators."""
    import onnx

    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    symbols: dict[str, int] = {}
    for value in fixed.graph.input:
        for dimension, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ())):
            if dimension.dim_param:
                symbols[dimension.dim_param] = size
            dimension.dim_value = size
    for value in (*fixed.graph.value_info, *fixed.graph.output):
        dimensions = value.type.tensor_type.shape.dim
        for dimension in dimensions:
            if dimension.dim_param in symbols:
                dimension.dim_value = symbols[dimension.dim_param]
        if not all(dimension.HasField("dim_value") for dimension in dimensions):
            value.type.tensor_type.ClearField("shape")
    return _folded(fixed)


def _folded(model: Any) -> Any:
    """Replace nodes whose result follows from sizes by constants, until nothing more follows."""
    import onnx

    known = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if np.prod(tensor.dims) <= _MOST_ELEMENTS
    }
    while True:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        sizes = _static_shapes(model.graph)
        is_done = True
        for node in model.graph.node:
            if node.domain or len(node.output) != 1 or node.output[0] in known:
                continue
            result = _result(model, node, known, sizes)
            if result is not None and result.size <= _MOST_ELEMENTS:
                known[node.output[0]] = result
                if node.op_type != "Constant":
                    is_done = False
                    value = onnx.numpy_helper.from_array(result)
                    node.CopyFrom(onnx.helper.make_node("Constant", [], list(node.output), node.name, value=value))
        if is_done:
            return model


def _static_shapes(graph: Any) -> dict[str, tuple[int, ...]]:
    found = {}
    for value in (*graph.input, *graph.value_info):
        dimensions = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(each.HasField("dim_value") for each in dimensions):
            found[value.name] = tuple(each.dim_value for each in dimensions)
    return found


def _result(model: Any, node: Any, known: dict[str, Any], sizes: dict[str, tuple[int, ...]]) -> Any:
    """What a node gives if that follows from sizes, else None."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    if node.op_type.startswith(_DRAWN) or any(each.HasField("g") or each.graphs for each in node.attribute):
        return None
    feeds = {}
    for name in filter(None, node.input):
        if name in known:
            feeds[name] = known[name]
        elif node.op_type == "Shape" and name in sizes:
            feeds[name] = np.broadcast_to(np.float32(0), sizes[name])  # of any type; it takes no memory
        else:
            return None
    untyped = {name: onnx.helper.make_value_info(name, onnx.TypeProto()) for name in (*feeds, *node.output)}
    inputs, outputs = [untyped[name] for name in feeds], [untyped[name] for name in node.output]
    graph = onnx.helper.make_graph([node], "one", inputs, outputs)
    alone = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    found: Any = ReferenceEvaluator(alone).run(list(node.output), feeds)
    return np.asarray(found[0])
