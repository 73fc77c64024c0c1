"""Whether a graph is whole: every value made once and before it is read, names, attributes and types in order.

Looks at messages as they were read; runs nothing, infers nothing. Tensors and
operators' own rules are looked at by `structure_tensors` and `structure_nodes`.
"""

from collections.abc import Iterable, Sequence

import onnx

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.structure_nodes import Opsets, attribute_fault, operator_fault, opsets_of
from sdpa_onnx.graph.structure_tensors import tensor_fault, type_fault
from sdpa_onnx.graph.structure_texts import text_fault

__all__ = ["check_structure"]

_HINT = "It may be damaged, or hold what is not read here."

Names = frozenset[str]


class _UnsoundError(Exception):
    """What is wrong, to be told with the name of the file."""


def check_structure(proto: onnx.ModelProto, *, who: str) -> bool:
    """Refuse a graph that is not whole.

    Args:
        proto: The model. Numbers in other files are not looked at.
        who: How an error begins: "m.onnx".

    Returns:
        Whether every node stands behind those that it reads from; else it is to be sorted.

    Raises:
        ModelError: The first fault found.
    """
    try:
        return _checked_model(proto)
    except _UnsoundError as fault:
        raise ModelError(f"{who} is no sound model: {fault}.", hint=_HINT) from None


def _checked_model(proto: onnx.ModelProto) -> bool:
    if fault := text_fault(proto):
        raise _UnsoundError(fault)
    functions = [(function.domain, function.name, function.overload) for function in proto.functions]
    if len(functions) != len(set(functions)):
        raise _UnsoundError("it has two functions of one name")
    _check_calls(proto)
    scope = _Scope(opsets=_opsets(proto.opset_import), own=frozenset((domain, name) for domain, name, _ in functions))
    in_order = _check_graph(proto.graph, scope, everything=frozenset(), seen=frozenset())
    for function in proto.functions:
        in_order &= _check_function(function, scope)
    return in_order


def _opsets(imports: Iterable[onnx.OperatorSetIdProto]) -> Opsets:
    found = opsets_of(imports)
    if isinstance(found, str):
        raise _UnsoundError(found)
    return found


class _Scope:
    """What nodes of a body may use: operator sets, the model's functions, attributes of the function around them."""

    __slots__ = ("attributes", "opsets", "own")

    def __init__(self, *, opsets: Opsets, own: frozenset[tuple[str, str]], attributes: Names | None = None) -> None:
        self.opsets = opsets
        self.own = own
        self.attributes = attributes  # None: not in a function


def _check_graph(graph: onnx.GraphProto, scope: _Scope, *, everything: Names, seen: Names) -> bool:
    where = f"graph '{graph.name}'"
    if graph.sparse_initializer:
        raise _UnsoundError(f"{where} has sparse tensors, which are not read here")
    for value in (*graph.input, *graph.output, *graph.value_info):
        _raise(type_fault(value.type), f"value '{value.name}'")
    for tensor in graph.initializer:
        _raise(tensor_fault(tensor), f"tensor '{tensor.name}'")
    inputs = _once([value.name for value in graph.input], f"the inputs of {where}")
    constants = _once([tensor.name for tensor in graph.initializer], f"the tensors of {where}")
    begun = inputs | constants
    made, in_order = _check_nodes(graph.node, scope, begun=begun, everything=everything, seen=seen)
    for value in graph.output:
        if value.name not in begun and value.name not in made:
            raise _UnsoundError(f"nothing in {where} makes its output '{value.name}'")
    return in_order


def _check_function(function: onnx.FunctionProto, scope: _Scope) -> bool:
    where = f"function '{function.name}'"
    inputs = _once(list(function.input), f"the inputs of {where}")
    attributes = [*function.attribute, *(attribute.name for attribute in function.attribute_proto)]
    named = _once(attributes, f"the attributes of {where}")
    inner = _Scope(opsets=_opsets(function.opset_import), own=scope.own, attributes=named)
    for attribute in function.attribute_proto:
        _check_attribute(attribute, inner, where)
    nothing: Names = frozenset()
    made, in_order = _check_nodes(function.node, inner, begun=inputs, everything=nothing, seen=nothing)
    for name in function.output:
        if name not in inputs and name not in made:
            raise _UnsoundError(f"nothing in {where} makes its output '{name}'")
    return in_order


def _check_nodes(
    nodes: Sequence[onnx.NodeProto], scope: _Scope, *, begun: Names, everything: Names, seen: Names
) -> tuple[Names, bool]:
    """What the nodes make, and whether they stand in order.

    Args:
        nodes: The nodes of one body.
        scope: What they may use.
        begun: Inputs and tensors of the body.
        everything: Values of the bodies around it.
        seen: Those of them that are made before it.
    """
    made = _once([name for node in nodes for name in node.output if name], "the values that are made", taken=begun)
    known = everything | begun | made
    before = set(seen | begun)
    in_order = True
    for node in nodes:
        where = _where(node)
        for name in node.input:
            if name and name not in known:
                raise _UnsoundError(f"{where} reads '{name}', which nothing makes")
        in_order &= all(name in before for name in node.input if name)
        graphs = _subgraphs(node, scope, where)
        _raise(operator_fault(node, scope.opsets, scope.own), where)
        for graph in graphs:
            in_order &= _check_graph(graph, scope, everything=known, seen=frozenset(before))
        before.update(node.output)
    return made, in_order


def _subgraphs(node: onnx.NodeProto, scope: _Scope, where: str) -> list[onnx.GraphProto]:
    _once([attribute.name for attribute in node.attribute], f"the attributes of {where}")
    for attribute in node.attribute:
        _check_attribute(attribute, scope, where)
    single = [attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]
    return single + [graph for attribute in node.attribute for graph in attribute.graphs]


def _check_attribute(attribute: onnx.AttributeProto, scope: _Scope, where: str) -> None:
    _raise(attribute_fault(attribute, scope.attributes), f"attribute '{attribute.name}' of {where}")
    for tensor in (*((attribute.t,) if attribute.HasField("t") else ()), *attribute.tensors):
        _raise(tensor_fault(tensor), f"the tensor in '{attribute.name}' of {where}")


def _check_calls(proto: onnx.ModelProto) -> None:
    """No function may call itself, through others or not: it would never end."""
    bodies = {(function.domain, function.name): function.node for function in proto.functions}
    done: set[tuple[str, str]] = set()
    for root, nodes in bodies.items():
        # One step of the walk: a function, and those of its calls that are still to be followed.
        path = [(root, iter(_calls(nodes)))]
        while path:
            name, calls = path[-1]
            call = next((call for call in calls if call in bodies and call not in done), None)
            if call is None:
                done.add(name)
                path.pop()
            elif any(call == above for above, _ in path):
                raise _UnsoundError(f"function '{call[1]}' calls itself")
            else:
                path.append((call, iter(_calls(bodies[call]))))


def _calls(nodes: Iterable[onnx.NodeProto]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for node in nodes:
        found.append((node.domain, node.op_type))
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                found += _calls(graph.node)
    return found


def _once(names: Sequence[str], what: str, *, taken: Names = frozenset()) -> Names:
    """The names, each given once and none of them empty.

    Raises:
        _UnsoundError: If not.
    """
    known = set(taken)
    for name in names:
        if not name:
            raise _UnsoundError(f"a name is missing among {what}")
        if name in known:
            raise _UnsoundError(f"'{name}' stands twice among {what}")
        known.add(name)
    return frozenset(names)


def _where(node: onnx.NodeProto) -> str:
    return f"node '{node.name or next(iter(node.output), '')}' ({node.op_type})"


def _raise(fault: str | None, where: str) -> None:
    if fault is not None:
        raise _UnsoundError(f"{where} {fault}")
