"""Cut a part out of a graph: the model between named values, or one attention as a bare model.

Works on copies; the tensors themselves are shared, not copied. Runs nothing and judges nothing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir
from onnx_ir.convenience import create_value_mapping

from sdpa_onnx.core.attention.inputs import ONNX_INPUT_NAMES
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.inferred_shapes import infer_shapes
from sdpa_onnx.graph.model import BODY_SITES_KEY, SITES_KEY, SPEC_KEY, SPECS_KEY, OnnxModel
from sdpa_onnx.graph.model_facts import TRACED_KEY
from sdpa_onnx.graph.site import AttentionSite, encode_sites
from sdpa_onnx.graph.subgraphs import subgraphs_of

__all__ = ["cut_out", "cut_site"]

# Metadata of ours that describes the whole model, and so no part of it.
_OF_THE_WHOLE = (SITES_KEY, BODY_SITES_KEY, SPEC_KEY, SPECS_KEY, TRACED_KEY)
# A name. A sum (past and new keys that were joined before) is one length for the part, so it gets one name.
_USABLE_AXIS = re.compile(r"[A-Za-z_]\w*")
# What onnx's shape inference calls an axis that it knows nothing of; two such names may mean one size.
_INFERRED_AXIS = "unk__"


class _NotClosedError(ModelError):
    """The outputs depend on a graph input that is not named."""


def cut_out(model: OnnxModel, *, inputs: Sequence[str], outputs: Sequence[str]) -> OnnxModel:
    """Build the model that computes some values from others.

    It includes initializers, nodes that depend on them alone, functions, and the
    sites that lie completely inside the part.

    Args:
        model: The model; not changed.
        inputs: Names of values of the main graph that become graph inputs, with
            their types and shapes; an initializer among them loses its content.
        outputs: Names of values that become graph outputs.

    Raises:
        ModelError: If a value does not exist, lies inside a subgraph or has no
            known type, or if the outputs need a graph input that is not among `inputs`.
    """
    copy = model.ir.clone()
    taken, wanted = _look_up(copy, inputs), _look_up(copy, outputs)
    if not wanted:
        raise ModelError("A part of a model needs at least one output.", hint="Name a value that it computes.")
    _give_types(copy, [*taken, *wanted])
    nodes, initializers = _needed(copy.graph, taken, wanted)
    view = ir.GraphView(
        taken,
        wanted,
        nodes=nodes,
        initializers=initializers,
        opset_imports=copy.graph.opset_imports,
        name=copy.graph.name,
    )
    graph = view.clone()
    _detach_inputs(graph)
    part = ir.Model(
        graph,
        ir_version=copy.ir_version,
        producer_name=copy.producer_name,
        producer_version=copy.producer_version,
        functions=list(copy.functions.values()),
        metadata_props={key: text for key, text in copy.metadata_props.items() if key not in _OF_THE_WHOLE},
    )
    names = create_value_mapping(graph, include_subgraphs=False)
    return _with_sites(part, [site for site in model.sites if {*site.inputs.values(), site.output} <= names.keys()])


def cut_site(model: OnnxModel, site: AttentionSite) -> OnnxModel | None:
    """Extract one attention as a model, whose inputs are the site's values in the order of the operator.

    Axes without a name, or named by an expression, get the names of a bare attention.

    Returns:
        A model whose `is_bare_attention` holds; None where the attention is not
        closed: it reads other values of the model (the shape of a module's
        input, say), or it is no single node and one value stands for two of its inputs.

    Raises:
        ModelError: If a value of the site does not exist or has no known type.
    """
    try:
        part = cut_out(model, inputs=list(site.inputs.values()), outputs=list(site.outputs.values()))
    except _NotClosedError:
        return None
    graph = part.ir.graph
    fields = _one_input_each(graph, site)
    if fields is None:
        return None
    named = {value.name: value for value in graph.inputs}
    _name_axes(site.spec, {field: named[name] for field, name in fields.items()}, graph.outputs[0])
    own: Any = fields  # names of values, all of them text
    return _with_sites(part.ir, [replace(site, **own)])


def _with_sites(part: ir.Model, sites: Sequence[AttentionSite]) -> OnnxModel:
    if sites:
        part.metadata_props[SITES_KEY] = encode_sites(sites)
    return OnnxModel(ir=part, sites=tuple(sites))


def _look_up(model: ir.Model, names: Sequence[str]) -> list[ir.Value]:
    """The values of the main graph by these names, each once."""
    known = create_value_mapping(model.graph, include_subgraphs=False)
    for name in names:
        if name not in known:
            raise ModelError(f"The model has no value '{name}'{_elsewhere(model, name)}")
    return [known[name] for name in dict.fromkeys(names)]


def _elsewhere(model: ir.Model, name: str) -> str:
    """The rest of a sentence: where else a value of that name is."""
    if name in create_value_mapping(model.graph):
        return ": it lies inside a subgraph (of a Loop, If or Scan), and a part is cut out of the main graph only."
    if any(name in create_value_mapping(function) for function in model.functions.values()):
        return ": it lies inside a function, and a part is cut out of the main graph only."
    return "."


def _give_types(model: ir.Model, values: Sequence[ir.Value]) -> None:
    """Infer missing types and shapes; the model is our own copy."""
    for value in values:
        if value.const_value is not None:
            value.type = value.type or ir.TensorType(value.const_value.dtype)
            value.shape = value.shape or ir.Shape(value.const_value.numpy().shape)
    if any(value.type is None or value.shape is None for value in values):
        infer_shapes(model)
    for value in values:
        if value.type is None:
            raise ModelError(
                f"The type of the value '{value.name}' is not known.",
                hint="Shape inference does not know the operator that makes it; cut at another value.",
            )


def _needed(
    graph: ir.Graph, taken: Sequence[ir.Value], wanted: Sequence[ir.Value]
) -> tuple[list[ir.Node], list[ir.Value]]:
    """Nodes, in graph order, and initializers that the wanted values are computed by.

    `onnx_ir.convenience.extract` orders initializers by chance, so that the hash of a part would change from run to
    run, and fails in its own words where a subgraph or an output needs an input that is not named.
    """
    seen, stack = set(taken), list(wanted)
    nodes: set[ir.Node] = set()
    initializers: dict[ir.Value, None] = {}
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        producer = value.producer()
        if producer is not None:
            nodes.add(producer)
            stack += _reads(producer, graph)
        elif value.is_initializer():
            initializers[value] = None
        else:
            listed = ", ".join(f"'{one.name}'" for one in taken) or "nothing"
            raise _NotClosedError(
                f"'{wanted[0].name}' cannot be computed from {listed} alone: it also needs the input '{value.name}'.",
                hint="Name that value as an input too.",
            )
    return [node for node in graph if node in nodes], list(initializers)


def _reads(node: ir.Node, graph: ir.Graph) -> list[ir.Value]:
    """Values of the graph that a node reads, those that its subgraphs capture included."""
    read = [value for value in node.inputs if value is not None]
    for subgraph in subgraphs_of(node):
        inner = (value for one in subgraph.all_nodes() for value in one.inputs)
        read += [value for value in (*inner, *subgraph.outputs) if value is not None and value.graph is graph]
    return read


def _detach_inputs(graph: ir.Graph) -> None:
    """Make the inputs plain inputs: no content, and no node that computes a value of the same name.

    A node that is needed for another output may also compute a value that is named as an input.
    """
    for value in graph.inputs:
        value.const_value = None
        value.metadata_props.clear()
        twin = next((made for node in graph for made in node.outputs if made.name == value.name), None)
        if twin is not None:
            ir.convenience.replace_all_uses_with(twin, value)
            twin.name = f"{value.name}_not_used"
    for value in graph.outputs:
        value.metadata_props.clear()


def _one_input_each(graph: ir.Graph, site: AttentionSite) -> dict[str, str] | None:
    """Value name by field, each name once; a value that an Attention node reads twice becomes two inputs."""
    fields = dict(site.inputs)
    node = graph.outputs[0].producer()
    order = list(ONNX_INPUT_NAMES)
    seen: set[str] = set()
    for field, name in site.inputs.items():
        if name not in seen:
            seen.add(name)
            continue
        if node is None or node.op_type != "Attention" or len(graph) != 1:
            return None
        source = next(value for value in graph.inputs if value.name == name)
        shape = None if source.shape is None else source.shape.copy()
        twin = ir.Value(name=f"{name}_as_{field}", type=source.type, shape=shape)
        graph.inputs.append(twin)
        node.replace_input_with(order.index(field), twin)
        fields[field] = twin.name or ""
    return fields


def _name_axes(spec: AttentionSpec, values: Mapping[str, ir.Value], output: ir.Value) -> None:
    """Give every axis of the site's values a size or a usable name, the same where it is the same axis."""
    length = spec.layout.length_axis
    sources = {
        "batch_size": ("query", 0),
        "q_seq_len": ("query", length),
        "kv_seq_len": ("key", length),
        "past_seq_len": ("past_key", 2),
    }
    axes: dict[str, int | str] = {}
    for role, (field, axis) in sources.items():
        size = _usable(values[field], axis) if field in values else None
        axes[role] = role if size is None else size
    for field, value in values.items():
        _fill(value, _expected(spec, field, axes))
    _fill(output, _expected(spec, "output", axes))


def _expected(spec: AttentionSpec, field: str, axes: Mapping[str, int | str]) -> tuple[int | str, ...]:
    batch, queries, keys, past = axes.values()
    total = keys
    if spec.has_past:
        total = past + keys if isinstance(past, int) and isinstance(keys, int) else f"{past} + {keys}"

    def tensor(heads: int, length: int | str, width: int) -> tuple[int | str, ...]:
        return (batch, heads, length, width) if spec.layout is Layout.BNSH else (batch, length, heads * width)

    shapes: dict[str, tuple[int | str, ...]] = {
        "query": tensor(spec.q_num_heads, queries, spec.head_dim),
        "key": tensor(spec.kv_num_heads, keys, spec.head_dim),
        "value": tensor(spec.kv_num_heads, keys, spec.v_head_dim),
        "output": tensor(spec.q_num_heads, queries, spec.v_head_dim),
        "attn_mask": (batch, 1, queries, total),
        "past_key": (batch, spec.kv_num_heads, past, spec.head_dim),
        "past_value": (batch, spec.kv_num_heads, past, spec.v_head_dim),
        "nonpad_kv_seqlen": (batch,),
    }
    return shapes[field]


def _usable(value: ir.Value, axis: int) -> int | str | None:
    """The size or name of an axis; None if it is unknown or an expression that no size can be chosen for."""
    if value.shape is None or axis >= len(value.shape):
        return None
    size = value.shape[axis]
    if isinstance(size, int):
        return size
    text = str(size.value or "")
    return text if _USABLE_AXIS.fullmatch(text) and not text.startswith(_INFERRED_AXIS) else None


def _fill(value: ir.Value, expected: tuple[int | str, ...]) -> None:
    """Keep known sizes; name other axes like the expected ones, aligned at the right (a mask may have fewer)."""
    rank = len(expected) if value.shape is None else len(value.shape)
    shape: list[int | str] = []
    for axis, role in enumerate(expected[len(expected) - rank :]):
        has = _usable(value, axis)
        keeps = isinstance(has, int) or (has is not None and isinstance(role, int))
        shape.append(has if keeps and has is not None else role)
    value.shape = ir.Shape(shape)
