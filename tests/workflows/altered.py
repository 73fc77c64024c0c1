"""A real runtime that runs an altered graph: one node of it computes something else."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, Session, Supported, Unsupported, get_runtime

Alter = Callable[[onnx.GraphProto, onnx.NodeProto], None]


def node_named(graph: onnx.GraphProto, name: str) -> onnx.NodeProto | None:
    return next((node for node in graph.node if node.name == name), None)


def after(*added: tuple[str, dict[str, object], np.ndarray | None]) -> Alter:
    """Insert nodes after the first output: (operator, attributes, second input or None)."""

    def alter(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
        last = node.output[0]
        node.output[0] = f"{last}.right"
        current = node.output[0]
        index = list(graph.node).index(node) + 1
        for number, (operator, attributes, constant) in enumerate(added):
            inputs = [current]
            if constant is not None:
                inputs.append(f"{last}.constant{number}")
                graph.initializer.append(numpy_helper.from_array(constant, inputs[-1]))
            current = last if number == len(added) - 1 else f"{last}.{number}"
            graph.node.insert(index + number, helper.make_node(operator, inputs, [current], **attributes))

    return alter


def scaled(factor: float, dtype: str = "float32") -> Alter:
    return after(("Mul", {}, np.array(factor, dtype)))


THROUGH_FLOAT16 = after(("Cast", {"to": TensorProto.FLOAT16}, None), ("Cast", {"to": TensorProto.FLOAT}, None))


def attribute(name: str, value: object) -> Alter:
    """Set an attribute to another value."""

    def alter(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
        kept = [one for one in node.attribute if one.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])

    return alter


def weight_moved(by: float) -> Alter:
    """Change one element of the second input."""

    def alter(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
        weight = next(one for one in graph.initializer if one.name == node.input[1])
        array = numpy_helper.to_array(weight).copy()
        array[0, 0] += by
        node.input[1] = f"{weight.name}.{node.name}"
        graph.initializer.append(numpy_helper.from_array(array, node.input[1]))

    return alter


@dataclass
class Altered:
    """ONNX Runtime on a graph in which the named node is altered.

    Args:
        node: Name of the node.
        alter: The alteration.
        beside: If set, alter only graphs in which this node produces an input of the first one: a fusion.
        optimised_only: Alter only under graph optimisation.
    """

    node: str
    alter: Alter
    beside: str = ""
    optimised_only: bool = False
    name: str = "ort-cpu"
    measures_time: bool = True
    loads: int = 0
    real: Runtime = field(default_factory=lambda: get_runtime("ort-cpu"))

    def available(self) -> Supported | Unsupported:
        return Supported()

    def version(self) -> str:
        return "altered 1.0"

    def supports(self, model: OnnxModel) -> Supported | Unsupported:
        return self.real.supports(model)

    def load(self, model: OnnxModel, options: LoadOptions) -> Session:
        self.loads += 1
        proto = onnx.load_from_string(model.to_bytes())
        node = node_named(proto.graph, self.node)
        if node is not None and self._applies(proto.graph, node, options):
            self.alter(proto.graph, node)
        return self.real.load(load_model(proto), options)

    def _applies(self, graph: onnx.GraphProto, node: onnx.NodeProto, options: LoadOptions) -> bool:
        if self.optimised_only and not options.optimise:
            return False
        if not self.beside:
            return True
        other = node_named(graph, self.beside)
        return other is not None and bool(set(other.output) & set(node.input))
