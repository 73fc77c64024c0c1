"""Remove names, texts, metadata and weights from an ONNX graph; keep its operators, attributes and shapes.

Keeps single numbers and short integer tensors: they are factors, sizes and axes, and
without them the graph is a different one. Does not run the graph.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from sdpa_onnx.graph.model import SITES_KEY, OnnxModel, load_model
from sdpa_onnx.graph.site import AttentionSite, encode_sites

__all__ = ["generic_model", "random_like"]

Array = NDArray[np.generic]

# Integer tensors of at most this many elements hold sizes, axes and indices.
_STRUCTURE_ELEMENTS = 8


# Domain, name and overload of a function of the model.
_Key = tuple[str, str, str]
# Functions of the model, each with those attributes that its nodes pass to an operator. They are part of the case.
_Local = Mapping[_Key, frozenset[str]]


@dataclass(slots=True)
class _Names:
    """Maps old names to new ones and numbers each kind separately. "" stays: it marks an omitted input or output."""

    values: dict[str, str] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)
    functions: dict[_Key, str] = field(default_factory=dict)
    attributes: dict[tuple[str, ...], str] = field(default_factory=dict)
    nodes: int = 0

    def value(self, name: str) -> str:
        return self.values.setdefault(name, f"v{len(self.values)}") if name else ""

    def axis(self, name: str) -> str:
        return self.axes.setdefault(name, f"axis{len(self.axes)}") if name else ""

    def function(self, key: _Key) -> str:
        return self.functions.setdefault(key, f"f{len(self.functions)}")

    def attribute(self, key: _Key, name: str) -> str:
        return self.attributes.setdefault((*key, name), f"a{len(self.attributes)}")

    def node(self) -> str:
        self.nodes += 1
        return f"n{self.nodes - 1}"


def generic_model(model: OnnxModel, rng: np.random.Generator) -> tuple[OnnxModel, dict[str, str]]:
    """Copy a model without names, texts, metadata and weights.

    Args:
        model: The model. It is not changed.
        rng: Generator of the new weights.

    Returns:
        The copy, and a mapping from the old name of every value to its new name.
    """
    old = model.to_proto()
    names = _Names()
    local = {(one.domain, one.name, one.overload): _operator_attributes(one.node) for one in old.functions}
    proto = onnx.ModelProto(ir_version=old.ir_version)
    used = {"", *(node.domain for node in model.ir.graph.all_nodes())}
    used |= {node.domain for function in model.ir.functions.values() for node in function.all_nodes()}
    imports = [one for one in old.opset_import if one.domain in used]
    proto.opset_import.extend(_anonymous_imports(imports, local))
    proto.graph.CopyFrom(old.graph)
    _anonymise_graph(proto.graph, names, local, rng)
    for function in old.functions:
        _anonymise_function(proto.functions.add(), function, names, local, rng)
    sites = tuple(_renamed(site, names, number) for number, site in enumerate(model.sites))
    if sites:
        proto.metadata_props.add(key=SITES_KEY, value=encode_sites(sites))
    return load_model(proto), dict(names.values)


def random_like(array: Array, rng: np.random.Generator) -> Array:
    """Draw random numbers of the same shape, type and scale.

    NaN and infinity keep their positions. An array of only zeros or only ones is returned unchanged.
    """
    if array.dtype == np.bool_:
        return rng.random(array.shape) < float(array.mean()) if array.size else array
    if array.dtype.kind in "iu":
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        return rng.integers(low, high, array.shape, dtype=array.dtype, endpoint=True)
    if array.dtype.kind not in "fV":  # the types of ml_dtypes have kind V
        return array
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    mean, spread = (float(finite.mean()), float(finite.std())) if finite.size else (0.0, 0.0)
    if spread == 0.0 and mean not in (0.0, 1.0):
        spread = abs(mean)
    drawn = np.where(np.isfinite(wide), mean + spread * rng.standard_normal(array.shape), wide)
    return drawn.astype(array.dtype)


def _anonymous_imports(imports: Iterable[onnx.OperatorSetIdProto], local: _Local) -> Iterator[onnx.OperatorSetIdProto]:
    own = {domain for domain, _, _ in local}
    for one in imports:
        yield onnx.OperatorSetIdProto(domain="local" if one.domain in own else one.domain, version=one.version)


def _anonymise_graph(
    graph: onnx.GraphProto, names: _Names, local: _Local, rng: np.random.Generator, *, inside: _Key | None = None
) -> None:
    graph.name = "graph"
    graph.ClearField("doc_string")
    graph.ClearField("metadata_props")
    graph.ClearField("value_info")
    graph.ClearField("quantization_annotation")
    for value in (*graph.input, *graph.output):
        _anonymise_value(value, names)
    for tensor in graph.initializer:
        name = names.value(tensor.name)
        tensor.CopyFrom(_random_tensor(tensor, rng))
        tensor.name = name
    for node in graph.node:
        _anonymise_node(node, names, local, rng, inside=inside)


def _anonymise_function(
    plain: onnx.FunctionProto,
    function: onnx.FunctionProto,
    names: _Names,
    local: _Local,
    rng: np.random.Generator,
) -> None:
    key = (function.domain, function.name, function.overload)
    plain.name, plain.domain = names.function(key), "local"
    plain.input.extend(names.value(name) for name in function.input)
    plain.output.extend(names.value(name) for name in function.output)
    plain.attribute.extend(names.attribute(key, name) for name in function.attribute)
    for attribute in function.attribute_proto:
        copy_of = plain.attribute_proto.add()
        copy_of.CopyFrom(attribute)
        _anonymise_attribute(copy_of, names, local, rng, is_content=attribute.name not in local[key])
        copy_of.name = names.attribute(key, attribute.name)
    plain.opset_import.extend(_anonymous_imports(function.opset_import, local))
    for node in function.node:
        copy = plain.node.add()
        copy.CopyFrom(node)
        _anonymise_node(copy, names, local, rng, inside=key)


def _operator_attributes(nodes: Iterable[onnx.NodeProto]) -> frozenset[str]:
    """Attributes of a function that its nodes pass to an operator, other than as the contents of a Constant."""
    found: set[str] = set()
    for node in nodes:
        for attribute in node.attribute:
            if attribute.ref_attr_name and node.op_type != "Constant":
                found.add(attribute.ref_attr_name)
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                found |= _operator_attributes(graph.node)
    return frozenset(found)


def _anonymise_value(value: onnx.ValueInfoProto, names: _Names) -> None:
    value.name = names.value(value.name)
    value.ClearField("doc_string")
    value.ClearField("metadata_props")
    for size in value.type.tensor_type.shape.dim:
        size.ClearField("denotation")
        if size.HasField("dim_param"):
            size.dim_param = names.axis(size.dim_param)


def _anonymise_node(
    node: onnx.NodeProto, names: _Names, local: _Local, rng: np.random.Generator, *, inside: _Key | None = None
) -> None:
    """Anonymise a node. `inside` is the function that contains it, whose attributes it may read."""
    node.name = names.node()
    node.ClearField("doc_string")
    node.ClearField("metadata_props")
    node.ClearField("device_configurations")
    key = (node.domain, node.op_type, node.overload)
    is_constant = node.op_type == "Constant" and node.domain == ""
    for entries in (node.input, node.output):
        entries[:] = [names.value(name) for name in entries]
    for attribute in node.attribute:
        is_content = is_constant or (key in local and attribute.name not in local[key])
        _anonymise_attribute(attribute, names, local, rng, is_content=is_content, inside=inside)
        if key in local:
            attribute.name = names.attribute(key, attribute.name)
    if key in local:
        node.domain, node.op_type = "local", names.function(key)
        node.ClearField("overload")


def _anonymise_attribute(
    attribute: onnx.AttributeProto,
    names: _Names,
    local: _Local,
    rng: np.random.Generator,
    *,
    is_content: bool,
    inside: _Key | None = None,
) -> None:
    """Redraw tensors everywhere; redraw texts and lists of numbers only where they are contents of a constant."""
    attribute.ClearField("doc_string")
    if attribute.ref_attr_name and inside is not None:
        attribute.ref_attr_name = names.attribute(inside, attribute.ref_attr_name)
    for tensor in (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors):
        tensor.CopyFrom(_random_tensor(tensor, rng))
    for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
        _anonymise_graph(graph, names, local, rng, inside=inside)
    if is_content:
        if len(attribute.floats) > 1:
            drawn = random_like(np.asarray(attribute.floats, np.float32), rng)
            attribute.floats[:] = [float(number) for number in drawn.astype(np.float64)]
        if len(attribute.ints) > _STRUCTURE_ELEMENTS:
            attribute.ints[:] = [int(number) for number in random_like(np.asarray(attribute.ints, np.int64), rng)]
        if attribute.s:
            attribute.s = b"text"
        attribute.strings[:] = [b"text" for _ in attribute.strings]


def _random_tensor(tensor: onnx.TensorProto, rng: np.random.Generator) -> onnx.TensorProto:
    if tensor.data_type == onnx.TensorProto.STRING:
        plain = onnx.TensorProto(data_type=tensor.data_type, dims=tensor.dims)
        plain.string_data.extend([b"text"] * int(np.prod(tensor.dims)))
        return plain
    array = numpy_helper.to_array(tensor)
    few = 1 if array.dtype.kind in "fV" else _STRUCTURE_ELEMENTS
    return numpy_helper.from_array(array if array.size <= few else random_like(array, rng))


def _renamed(site: AttentionSite, names: _Names, number: int) -> AttentionSite:
    inputs: Any = {
        name: names.value(value) for name, value in site.inputs.items()
    }  # every field is the name of a value
    return replace(site, name=f"attention_{number}", output=names.value(site.output), **inputs)
