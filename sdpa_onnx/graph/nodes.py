"""Build ONNX nodes in sequence, with unique names and output types and shapes. Knows no attention form."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

__all__ = ["Nodes", "with_attributes"]

Attribute = int | float | str | Sequence[int] | ir.Graph | ir.TensorProtocol

# Operators whose second input was an attribute below opset 13.
_AXES = {"Unsqueeze": "axes", "Squeeze": "axes", "Split": "split"}
_INPUTS_OPSET = 13


class Nodes:
    """A node builder: each call appends one node and returns its output value.

    Args:
        prefix: First part of every node name; unique in the model.

    Example:
        >>> nodes = Nodes("attention_0")
        >>> scores = nodes("MatMul", ir.Value(name="Q"), ir.Value(name="K"), dtype=ir.DataType.FLOAT)
        >>> scores.name, [node.op_type for node in nodes.written]
        ('attention_0/MatMul_0', ['MatMul'])
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.written: list[ir.Node] = []

    def __call__(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        domain: str = "",
        dtype: ir.DataType | None = None,
        shape: ir.Shape | None = None,
        **attributes: Attribute,
    ) -> ir.Value:
        """Add a node with one output; without a dtype, the output has the dtype of the first input."""
        return self.many(op_type, *inputs, outputs=1, domain=domain, dtype=dtype, shape=shape, **attributes)[0]

    def many(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        outputs: int,
        domain: str = "",
        dtype: ir.DataType | None = None,
        shape: ir.Shape | None = None,
        **attributes: Attribute,
    ) -> Sequence[ir.Value]:
        """Add a node with several outputs, all of one dtype."""
        name = f"{self.prefix}/{op_type}_{len(self.written)}"
        node = ir.node(
            op_type, list(inputs), attributes=dict(attributes), domain=domain, num_outputs=outputs, name=name
        )
        first = next((value for value in inputs if value is not None), None)
        element = dtype if dtype is not None else (first.dtype if first is not None else None)
        for position, value in enumerate(node.outputs):
            value.name = name if outputs == 1 else f"{name}.{position}"
            value.type = None if element is None else ir.TensorType(element)
        if shape is not None:
            node.outputs[0].shape = shape
        self.written.append(node)
        return node.outputs

    def constant(self, array: "NDArray[np.generic] | int | float | Sequence[int]", dtype: ir.DataType) -> ir.Value:
        """Add a Constant node."""
        content = np.asarray(array).astype(dtype.numpy())
        return self("Constant", dtype=dtype, shape=ir.Shape(content.shape), value=ir.tensor(content))

    def integers(self, *numbers: int) -> ir.Value:
        """Add a 1-D int64 Constant node, such as axes or a shape."""
        return self.constant(list(numbers), ir.DataType.INT64)


def with_attributes(nodes: Sequence[ir.Node], opset: int) -> None:
    """Rewrite built nodes for a graph below opset 13: axes and sizes of a part become attributes, in place.

    Args:
        nodes: Written for opset 13, with constants for these inputs among them.
        opset: Of the graph.
    """
    if opset >= _INPUTS_OPSET:
        return
    for node in nodes:
        name = _AXES.get(node.op_type)
        constant = node.inputs[1].producer() if name is not None and len(node.inputs) > 1 and node.inputs[1] else None
        if name is not None and constant is not None and constant.op_type == "Constant":
            numbers = constant.attributes["value"].as_tensor().numpy()
            node.attributes[name] = ir.AttrInt64s(name, [int(number) for number in numbers.ravel()])
            node.resize_inputs(1)
