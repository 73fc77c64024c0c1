"""Find every attention of a traced FX graph: normalise it, derive its spec, and add its values as outputs.

The added outputs are temporary: `translate` removes them from the ONNX graph. Does not translate to ONNX.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec, TensorArgument
from torch.fx import Node
from torch.utils import _pytree as pytree

from sdpa_onnx.core.attention.spec import AttentionSpec, MaskKind, ScaleRule
from sdpa_onnx.torch_export.fx_normalise import NormalAttention, normalise, shape

__all__ = ["Taps", "TracedAttention", "normalise_attentions", "tap"]

_SDPA = torch.ops.aten.scaled_dot_product_attention.default


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedAttention:
    """One attention of the traced graph.

    Args:
        name: Module path, unique in the graph; "sdpa" for an attention outside any submodule.
        spec: What it computes from these values.
        nodes: The FX node of each value, by the field names of `AttentionSite`.
    """

    name: str
    spec: AttentionSpec
    nodes: dict[str, Node]


@dataclass(frozen=True, slots=True, kw_only=True)
class Taps:
    """Position of each attention value in the ONNX graph.

    Args:
        inputs: Position among the graph inputs, by node name.
        outputs: Position among the graph outputs, including added ones, by node name.
        num_outputs: Number of the module's own outputs; the others are added.
    """

    inputs: dict[str, int]
    outputs: dict[str, int]
    num_outputs: int


def equal_lengths(attentions: Sequence[TracedAttention]) -> dict[str, str]:
    """Symbols that attention requires to be equal: maps the length of each value to that of its key.

    torch's shape rule for attention does not require it, so two inputs keep two symbols.
    """
    pairs = ([str(one.nodes[field].meta["val"].shape[2]) for field in ("key", "value")] for one in attentions)
    return {value: key for key, value in pairs if key != value and key.isidentifier() and value.isidentifier()}


def normalise_attentions(program: ExportedProgram, *, opset: int) -> tuple[TracedAttention, ...]:
    """Normalise and describe every attention, in graph order.

    Args:
        program: Changed in place.
        opset: Opset of the ONNX model.

    Raises:
        DynamicWidthError: If the number of heads or their width is dynamic.
    """
    found: list[TracedAttention] = []
    taken: set[str] = set()
    for node in [node for node in program.graph.nodes if node.target is _SDPA]:
        name = _unique(_module_path(node), taken)
        normal = normalise(node, opset=opset)
        nodes = {"query": normal.query, "key": normal.key, "value": normal.value, "output": normal.output}
        if normal.attn_mask is not None:
            nodes["attn_mask"] = normal.attn_mask
        found.append(TracedAttention(name=name, spec=_spec(normal), nodes=nodes))
    if found:
        program.graph.lint()
        program.graph_module.recompile()
        _repair_output_names(program)
    return tuple(found)


def tap(program: ExportedProgram, attentions: Sequence[TracedAttention]) -> Taps:
    """Add every value of the attentions that is not an input or output yet to the outputs."""
    signature = program.graph_signature
    user_inputs = [
        spec.arg.name
        for spec in signature.input_specs
        if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
    ]
    outputs = [
        getattr(spec.arg, "name", "")
        for spec in signature.output_specs
        if spec.kind is OutputKind.USER_OUTPUT and type(spec.arg).__name__ != "ConstantArgument"
    ]
    num_outputs = len(outputs)
    wanted = {node.name: node for attention in attentions for node in attention.nodes.values()}
    added = [node for name, node in wanted.items() if name not in user_inputs and name not in outputs]
    if added:
        _append_outputs(program, added)
    names = [*outputs, *(node.name for node in added)]
    return Taps(
        inputs={name: position for position, name in enumerate(user_inputs)},
        outputs={name: names.index(name) for name in names},
        num_outputs=num_outputs,
    )


def _append_outputs(program: ExportedProgram, nodes: Sequence[Node]) -> None:
    """Extend the output node, the signature and the tree of the call, which torch.onnx compares."""
    output = program.graph.output_node()
    output.args = ((*output.args[0], *nodes),)
    program.graph_signature.output_specs.extend(
        OutputSpec(kind=OutputKind.USER_OUTPUT, arg=TensorArgument(name=node.name), target=None) for node in nodes
    )
    # The outputs of the call itself stay unchanged: torch checks their names again after it renames nodes.
    call = program.module_call_graph[0].signature
    if call is not None:
        user = sum(spec.kind is OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs)
        call.out_spec = pytree.tree_structure(tuple(range(user)))
    program.graph_module.recompile()


def _repair_output_names(program: ExportedProgram) -> None:
    """Update the signature with the new names of outputs that were attention nodes."""
    nodes = program.graph.output_node().args[0]
    call = program.module_call_graph[0].signature
    user = iter(call.outputs if call is not None else ())
    for spec, node in zip(program.graph_signature.output_specs, nodes, strict=True):
        argument = next(user, None) if spec.kind is OutputKind.USER_OUTPUT else None
        if isinstance(node, Node):
            for target in (spec.arg, argument):
                if isinstance(target, TensorArgument):
                    target.name = node.name


def _spec(normal: NormalAttention) -> AttentionSpec:
    _, q_num_heads, _, head_dim = shape(normal.query)
    kv_num_heads, v_head_dim = shape(normal.value)[1], shape(normal.value)[3]
    mask = MaskKind.NONE
    if normal.attn_mask is not None:
        mask = MaskKind.BOOL if normal.attn_mask.meta["val"].dtype == torch.bool else MaskKind.FLOAT
    return AttentionSpec(
        q_num_heads=int(q_num_heads),
        kv_num_heads=int(kv_num_heads),
        head_dim=int(head_dim),
        v_head_dim=int(v_head_dim),
        is_causal=normal.is_causal,
        mask=mask,
        scale=ScaleRule.INVERSE_SQRT if normal.scale is None else float(normal.scale),
    )


def _module_path(node: Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return (paths[-1] if paths else "") or "sdpa"


def _unique(name: str, taken: set[str]) -> str:
    count, candidate = 1, name
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    taken.add(candidate)
    return candidate
