"""Clean up a graph written by torch.onnx: metadata, temporary outputs, shared tensors, names of values and axes.

Does not change the nodes.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir
from onnx_ir.traversal import RecursiveGraphIterator

__all__ = [
    "detach_tensors",
    "remove_taps",
    "rename_dims",
    "rename_value",
    "strip_metadata",
    "symbol_names",
]

# torch's symbols of sizes: s70 (from an input), u3 (from data).
_SYMBOL = re.compile(r"\b[su]\d+\b")


def strip_metadata(model: ir.Model) -> None:
    """Clear all metadata and doc strings: torch.onnx writes stack traces with absolute paths into them."""
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    holders: list[ir.Model | ir.Graph | ir.Function | ir.Node | ir.Value] = [model, *graphs]
    for graph in graphs:
        holders.extend(_values(graph))
        for node in RecursiveGraphIterator(graph):
            holders.append(node)
            for attribute in node.attributes.values():
                attribute.doc_string = None
                if attribute.type is ir.AttributeType.GRAPH:
                    holders.append(attribute.as_graph())
    for holder in holders:
        holder.metadata_props.clear()
        holder.doc_string = None


def detach_tensors(model: ir.Model) -> None:
    """Copy the initializers, so that training the module later does not change the model."""
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and not isinstance(tensor, ir.StringTensor):
            value.const_value = ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)


def remove_taps(model: ir.Model, num_outputs: int) -> list[ir.Value]:
    """Remove the outputs after the module's own, and return all former outputs.

    A removed output that is an initializer gets an Identity node, so that it
    can be read as a value of the graph later.
    """
    outputs = list(model.graph.outputs)
    for position in range(num_outputs, len(outputs)):
        if outputs[position].is_initializer():
            outputs[position] = _behind_identity(model, outputs[position])
    del model.graph.outputs[num_outputs:]
    return outputs


def _behind_identity(model: ir.Model, constant: ir.Value) -> ir.Value:
    users = list(constant.uses())
    node = ir.node("Identity", [constant], name=f"node_{constant.name}_tap")
    tapped = node.outputs[0]
    tapped.name, tapped.type, tapped.shape = f"{constant.name}_tap", constant.type, constant.shape
    for use in users:
        use.node.replace_input_with(use.idx, tapped)
    model.graph.insert_before(model.graph[0], node)
    return tapped


def rename_value(model: ir.Model, value: ir.Value, name: str) -> None:
    """Rename a graph input or output; another value with that name is renamed first."""
    for other in _values(model.graph):
        if other is not value and other.name == name:
            other.name = _free(model, f"{name}_inner")
    value.name = name


def rename_dims(model: ir.Model, names: Mapping[str, str]) -> None:
    """Replace torch's symbols in every shape, also inside expressions such as "s27 + s98".

    Args:
        model: Changed in place.
        names: Readable name by symbol; other symbols become dim_0, dim_1, ...
    """
    known = dict(names)

    def readable(match: re.Match[str]) -> str:
        return known.setdefault(match.group(), f"dim_{len(known) - len(names)}")

    for value in _values(model.graph):
        if value.shape is None or value.shape.is_static():
            continue
        value.shape = ir.Shape(
            [
                _SYMBOL.sub(readable, str(dim.value)) if isinstance(dim, ir.SymbolicDim) and dim.value else dim
                for dim in value.shape
            ]
        )


def symbol_names(
    model: ir.Model, roles: Sequence[tuple[str, Sequence[str]]], aliases: Mapping[str, str]
) -> dict[str, str]:
    """Choose a readable name for every symbol of the graph inputs.

    Args:
        model: Its inputs are read.
        roles: For each graph input, in order, its name and one role per axis;
            a symbol is named after the first input that has it.
        aliases: Symbols that are equal to another symbol.
    """
    names: dict[str, str] = {}
    for value, (name, axes) in zip(model.graph.inputs, roles, strict=True):
        for dim, role in zip(value.shape or (), axes, strict=True):
            text = str(dim.value) if isinstance(dim, ir.SymbolicDim) else ""
            text = aliases.get(text, text)
            if _SYMBOL.fullmatch(text) and text not in names:
                plain = role if role == "batch_size" else f"{name}_{role}"
                names[text] = f"{name}_{role}" if plain in names.values() else plain
    return names | {alias: names[symbol] for alias, symbol in aliases.items() if symbol in names}


def _values(graph: ir.Graph | ir.Function) -> Iterator[ir.Value]:
    """Inputs, initializers and node outputs, including those of subgraphs, each once."""
    seen: set[int] = set()
    for value in _all_values(graph):
        if id(value) not in seen:
            seen.add(id(value))
            yield value


def _all_values(graph: ir.Graph | ir.Function) -> Iterator[ir.Value]:
    yield from graph.inputs
    if isinstance(graph, ir.Graph):
        yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
        for attribute in node.attributes.values():
            if attribute.type is ir.AttributeType.GRAPH:
                yield from _all_values(attribute.as_graph())


def _free(model: ir.Model, wanted: str) -> str:
    taken = {value.name for value in _values(model.graph)}
    count, candidate = 1, wanted
    while candidate in taken:
        count += 1
        candidate = f"{wanted}_{count}"
    return candidate
