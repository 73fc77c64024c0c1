"""Refuse a damaged model when it is read: what onnx.checker refuses in a node, and what our own code cannot handle.

`onnx.checker.check_model` is not asked: it refuses models that onnxruntime runs
(outputs without a shape, nodes out of order, operators of other domains that
are not imported, tensor names given twice), and it holds at most 2 GiB. So each
node is checked alone, without tensors and subgraphs, and onnx_ir resolves the names.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice

import onnx
import onnx_ir as ir

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.files.external_data import tensors_of
from sdpa_onnx.graph.function_calls import MOST_NODES, call_fault, inlined_nodes
from sdpa_onnx.graph.quiet import quiet_ir
from sdpa_onnx.graph.structure_texts import text_fault

__all__ = ["read_message"]

_HINT = "It may be damaged, or use what this version cannot read."

# A domain without operators in onnx: it then checks only what holds for any node.
_UNKNOWN_DOMAIN = "sdpa_onnx.unknown"

Functions = frozenset[tuple[str, str]]


def read_message(proto: onnx.ModelProto, *, who: str) -> ir.Model:
    """Read a message into onnx_ir, its nodes sorted; files of tensors are not opened.

    Args:
        proto: The model.
        who: How an error begins: "m.onnx".

    Raises:
        ModelError: The first fault found.
    """
    written = (proto.graph.node, *(function.node for function in proto.functions))
    if next(islice(chain.from_iterable(map(_nodes_of, written)), MOST_NODES, None), None) is not None:
        raise ModelError(
            f"{who} is too large: it has more than {MOST_NODES:,} nodes, and at most these are read.",
            hint="Export the part of the model that has the attention.",
        )
    found = _checked(proto)
    if isinstance(found, str):
        raise ModelError(f"{who} is not a valid model: {found}.", hint=_HINT)
    if (nodes := inlined_nodes(found)) > MOST_NODES:
        raise ModelError(
            f"{who} is too large: its functions are {nodes:,} nodes when they are inlined, "
            f"and at most {MOST_NODES:,} are read.",
            hint="Simplify the functions, which call each other.",
        )
    return found


def _checked(proto: onnx.ModelProto) -> ir.Model | str:
    """The model, or what is wrong with it as a sentence without its full stop."""
    if fault := _message_fault(proto):
        return fault
    try:
        with quiet_ir():
            model = ir.from_proto(proto)
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            graph.sort()
    except (ir.serde.SerdeError, ValueError) as error:
        return _first_cause(error)
    if fault := _name_fault(model) or call_fault(model) or _tensors_fault(model):
        return fault
    _open_unknown_axes(model)
    return model


def _first_cause(error: BaseException) -> str:
    """The error that onnx_ir wrapped, in one line."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return f"onnx_ir cannot read it ({type(error).__name__}: {' '.join(str(error).split()).rstrip('.')})"


def _graphs(model: ir.Model) -> list[ir.Graph]:
    """The main graph, those of functions, and all subgraphs."""
    bodies = [model.graph, *(function.graph for function in model.functions.values())]
    return [*bodies, *(inner for body in bodies for inner in body.subgraphs())]


def _open_unknown_axes(model: ir.Model) -> None:
    """Take a size of -1, as onnxruntime does, and the name "?" of paddle2onnx as an axis of any size."""
    for graph in _graphs(model):
        for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
            if value.shape is not None and any(_is_unknown(size) for size in value.shape):
                value.shape = ir.Shape([None if _is_unknown(size) else size for size in value.shape])


def _is_unknown(size: int | ir.SymbolicDim) -> bool:
    return size < 0 if isinstance(size, int) else size.value in ("?", "")


def _message_fault(proto: onnx.ModelProto) -> str | None:
    if fault := text_fault(proto):
        return fault
    functions = [(function.domain, function.name, function.overload) for function in proto.functions]
    if len(functions) != len(set(functions)):
        return "it has two functions of one name"
    own = frozenset((domain, name) for domain, name, _ in functions)
    bodies = [(proto.graph.node, proto.opset_import), *((one.node, one.opset_import) for one in proto.functions)]
    for place, (nodes, imports) in enumerate(bodies):
        opsets = {_domain(entry.domain): entry.version for entry in imports}
        for node in _nodes_of(nodes):
            if fault := _node_fault(node, opsets, own, in_function=place > 0):
                return fault
    return None


def _nodes_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes and those of their subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _nodes_of(graph.node)


def _node_fault(node: onnx.NodeProto, opsets: Mapping[str, int], own: Functions, *, in_function: bool) -> str | None:
    where = f"node '{node.name or next(iter(node.output), '')}' ({node.op_type})"
    if not in_function and any(attribute.ref_attr_name for attribute in node.attribute):
        return f"{where} refers to an attribute of a function, and is in none"
    is_own = (node.domain, node.op_type) in own
    domain = _domain(node.domain)
    version = opsets.get(domain, 0)
    if not domain and version < 1 and not is_own:
        return f"{where} is a standard operator, and the model imports no version of them"
    if is_own or not _has_schema(node.op_type, version, domain):
        domain, version = _UNKNOWN_DOMAIN, 1
    context = onnx.checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = {domain: version}
    try:
        onnx.checker.check_node(_without_content(node, domain), context)
    except onnx.checker.ValidationError as error:
        return f"{where}: {_first_line(error)}"
    return None


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _has_schema(op_type: str, version: int, domain: str) -> bool:
    """Whether the installed onnx knows the operator in this version; onnxruntime also runs deprecated ones."""
    if not domain and version > onnx.defs.onnx_opset_version():
        return False
    try:
        return not onnx.defs.get_schema(op_type, version, domain).deprecated
    except (onnx.defs.SchemaError, TypeError):  # TypeError: a version above 32 bits
        return False


def _without_content(node: onnx.NodeProto, domain: str) -> onnx.NodeProto:
    """A copy whose subgraphs and tensors are minimal: they are checked elsewhere, and external ones cannot be here."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.domain = domain
    for attribute in copy.attribute:
        for graph in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
            graph.CopyFrom(onnx.GraphProto(name="body"))
        for tensor in (*((attribute.t,) if attribute.HasField("t") else ()), *attribute.tensors):
            tensor.CopyFrom(onnx.TensorProto(data_type=onnx.TensorProto.FLOAT, float_data=[0.0]))
    return copy


def _name_fault(model: ir.Model) -> str | None:
    for graph in _graphs(model):
        names = [value.name for value in graph.inputs]
        if len(names) != len(set(names)):
            return f"two inputs of graph '{graph.name}' have one name"
        for node in graph:
            for value in node.inputs:
                if value is not None and not _has_source(value):
                    return f"node '{node.name}' ({node.op_type}) reads '{value.name}', which nothing computes"
        for value in graph.outputs:
            if value.graph is not graph or not _has_source(value):
                return f"nothing in graph '{graph.name}' computes its output '{value.name}'"
    return None


def _has_source(value: ir.Value) -> bool:
    return value.producer() is not None or value.is_graph_input() or value.is_initializer()


def _tensors_fault(model: ir.Model) -> str | None:
    return next((f"tensor '{one.name}' {fault}" for one in tensors_of(model) if (fault := _tensor_fault(one))), None)


def _tensor_fault(tensor: ir.TensorProtocol) -> str | None:
    """What is wrong with a tensor; onnx.checker allows more bytes than the shape needs, which numpy refuses."""
    shape = list(tensor.shape.numpy())
    if tensor.dtype is ir.DataType.UNDEFINED:
        return "has no element type"
    if any(size < 0 for size in shape):
        return f"has a negative size: {shape}"
    if isinstance(tensor, ir.ExternalTensor):
        return None  # compared with its file when that is opened
    message = tensor.raw if isinstance(tensor, ir.serde.TensorProtoTensor) else None
    if message is not None and message.HasField("raw_data"):
        found = len(message.raw_data)
        return None if found == tensor.nbytes else f"has {found} bytes, but its shape {shape} needs {tensor.nbytes}"
    try:
        if message is not None:
            onnx.checker.check_tensor(message)  # onnx_ir reads a tensor without numbers as zeros
        tensor.numpy()
    except (onnx.checker.ValidationError, ValueError) as error:
        return f"cannot be read: {_first_line(error)}"
    return None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(". ")
