"""Rewrite an attention of a traced FX graph so that torch.onnx can translate it and runtimes can run it.

The result is equivalent. Changes nothing outside the attention.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]  # a dependency of torch; it ships no types
import torch
from torch.fx import Node
from torch.fx.node import map_arg

from sdpa_onnx.errors import ExportError

__all__ = ["DynamicWidthError", "NormalAttention", "normalise", "shape"]

_aten = torch.ops.aten
_FIELDS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
# From this opset on, torch.onnx writes one Attention node; below it, the decomposed formula.
_ATTENTION_OPSET = 23


class DynamicWidthError(ExportError):
    """The number or the width of heads depends on a dynamic axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalAttention:
    """An attention in the graph after the rewrite.

    Args:
        query: (batch_size, q_num_heads, q_seq_len, head_dim).
        key: (batch_size, kv_num_heads, kv_seq_len, head_dim).
        value: (batch_size, kv_num_heads, kv_seq_len, v_head_dim).
        attn_mask: None, or a boolean or float mask.
        output: (batch_size, q_num_heads, q_seq_len, v_head_dim).
        is_causal: Aligned to the upper left; never True together with a mask.
        scale: A number, or None for 1/sqrt(head_dim).
    """

    query: Node
    key: Node
    value: Node
    attn_mask: Node | None
    output: Node
    is_causal: bool
    scale: float | None


class _Writer:
    """Inserts nodes before one node, with the metadata of their results."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._fake_mode = node.meta["val"].fake_mode

    def call(self, operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        with self._node.graph.inserting_before(self._node):
            added = self._node.graph.call_function(operator, args, kwargs)
        values, named = map_arg((args, kwargs), lambda argument: argument.meta["val"])
        with self._fake_mode, torch.no_grad():
            added.meta["val"] = operator(*values, **named)
        if "nn_module_stack" in self._node.meta:
            added.meta["nn_module_stack"] = self._node.meta["nn_module_stack"]
        return added

    def size(self, node: Node, axis: int) -> Any:
        """Size of one axis: a number, or a node that computes it."""
        size = shape(node)[axis]
        return size if isinstance(size, int) else self.call(_aten.sym_size.int, node, axis % len(shape(node)))


def shape(node: Node) -> tuple[Any, ...]:
    """Sizes of the node's tensor: numbers, and torch's symbols for sizes that are really dynamic."""
    return tuple(_proven_number(size) for size in node.meta["val"].shape)


def _proven_number(size: Any) -> Any:
    """Replace an expression that the trace has proved to be a number by that number.

    torch keeps the width of a head as (4 * key_batch) // query_batch where a
    view mixes the two, together with the guard that this is 4.
    """
    if isinstance(size, int):
        return size
    expression, hint = size.node.expr, size.node.hint
    if expression.is_Symbol or hint is None:
        return size
    wanted = sympy.Eq(expression, hint)
    return int(hint) if any(guard.expr == wanted for guard in size.node.shape_env.guards) else size


def normalise(node: Node, *, opset: int) -> NormalAttention:
    """Rewrite one attention in place.

    - Tensors of rank 2, 3, 5 and more are reshaped to rank 4 and back: torch.onnx refuses them.
    - enable_gqa with equal head counts is removed (torch.onnx refuses it from opset 23 on); a
      single key/value head with several query heads gets enable_gqa (refused without it).
    - A mask together with is_causal becomes one mask: torch.onnx refuses the combination.
    - From opset 23 on, a mask that broadcasts over queries or keys is expanded:
      onnxruntime 1.32 refuses (B, 1, 1, T), and ONNX hides keys beyond a short last axis.
    - Below opset 23, fully masked rows are set to 0: torch.onnx writes a formula in which
      they are the mean of the values for boolean masks, and NaN for float masks.

    Args:
        node: A call of aten.scaled_dot_product_attention; it is replaced.
        opset: Opset of the ONNX model.

    Raises:
        DynamicWidthError: If the number of heads or their width is dynamic.
    """
    call = dict(zip(_FIELDS, node.args, strict=False)) | dict(node.kwargs)
    writer = _Writer(node)
    unfolded: Any = call["query"]
    inserted = _inserted_axes(len(shape(unfolded)), grouped=bool(call.get("enable_gqa", False)))
    query, key, value = (_to_four(writer, call[name], inserted) for name in ("query", "key", "value"))
    mask: Node | None = call.get("attn_mask")  # type: ignore[assignment]  # the schema of the operator
    is_causal = bool(call.get("is_causal", False))
    query, key, value = _aligned(writer, query, key, value)
    if mask is not None:
        mask = _mask_to_four(writer, mask, unfolded, inserted)
        mask = _full(writer, mask, query, key) if opset >= _ATTENTION_OPSET else mask
        mask = _with_causal(writer, mask, query, key) if is_causal else mask
        is_causal = False
    scale: Any = call.get("scale")
    gqa = shape(query)[1] != shape(key)[1]
    output = writer.call(
        node.target,  # type: ignore[arg-type]  # an OpOverload, chosen by the caller
        *(query, key, value, mask, 0.0, is_causal),
        scale=scale,
        enable_gqa=gqa,
    )
    if mask is not None and opset < _ATTENTION_OPSET:
        output = _hidden_rows_to_zero(writer, output, mask)
    node.replace_all_uses_with(_from_four(writer, output, unfolded, inserted))
    node.graph.erase_node(node)
    return NormalAttention(
        query=query, key=key, value=value, attn_mask=mask, output=output, is_causal=is_causal, scale=scale
    )


def _inserted_axes(rank: int, *, grouped: bool) -> tuple[int, ...]:
    """Axes to insert, in order, for rank 4; a 3-D tensor is (batch, seq, width) unless heads are grouped."""
    match rank:
        case 2:
            return (0, 0)
        case 3:
            return (0,) if grouped else (1,)
        case _:
            return ()


def _to_four(writer: _Writer, tensor: Any, inserted: tuple[int, ...]) -> Node:
    node: Node = tensor
    for axis in inserted:
        node = writer.call(_aten.unsqueeze.default, node, axis)
    rank = len(shape(node))
    return writer.call(_aten.flatten.using_ints, node, 0, rank - 4) if rank > 4 else node


def _from_four(writer: _Writer, output: Node, unfolded: Node, inserted: tuple[int, ...]) -> Node:
    for axis in reversed(inserted):
        output = writer.call(_aten.squeeze.dim, output, axis)
    rank = len(shape(unfolded))
    if rank <= 4:
        return output
    sizes = [writer.size(unfolded, axis) for axis in range(rank - 1)]
    return writer.call(_aten.reshape.default, output, [*sizes, shape(output)[-1]])


def _mask_to_four(writer: _Writer, mask: Node, unfolded: Node, inserted: tuple[int, ...]) -> Node:
    """Insert the same axes into the mask as into query, key and value; ranks up to 2 broadcast anyway."""
    rank = len(shape(unfolded))
    if rank > 4 and len(shape(mask)) > 3:
        leading = [writer.size(unfolded, axis) for axis in range(rank - 3)]
        missing = rank - len(shape(mask))
        for _ in range(missing):
            mask = writer.call(_aten.unsqueeze.default, mask, 0)
        mask = writer.call(_aten.expand.default, mask, [*leading, -1, -1, -1])
        return writer.call(_aten.flatten.using_ints, mask, 0, rank - 4)
    if rank == 3 and len(shape(mask)) == 3:
        return writer.call(_aten.unsqueeze.default, mask, inserted[0])
    while len(shape(mask)) < 2 or len(shape(mask)) == 3:
        mask = writer.call(_aten.unsqueeze.default, mask, 0)
    return mask


def _aligned(writer: _Writer, query: Node, key: Node, value: Node) -> tuple[Node, Node, Node]:
    """Expand batch and head axes of size 1, which torch broadcasts and ONNX does not."""
    for node in (query, key, value):
        if not isinstance(shape(node)[1], int) or not isinstance(shape(node)[3], int):
            raise DynamicWidthError(
                "The number or the width of the heads of an attention depends on a dynamic axis.",
                hint="Pass dynamic_axes without that axis.",
            )
    widest = max((query, key, value), key=lambda node: not _is_one(shape(node)[0]))
    kv_heads = max(shape(key)[1], shape(value)[1])
    heads = {query: max(shape(query)[1], kv_heads), key: kv_heads, value: kv_heads}
    return tuple(_expanded(writer, node, widest, heads[node]) for node in (query, key, value))  # type: ignore[return-value]  # three in, three out


def _expanded(writer: _Writer, node: Node, widest: Node, num_heads: int) -> Node:
    grow_batch = _is_one(shape(node)[0]) and not _is_one(shape(widest)[0])
    if not grow_batch and shape(node)[1] == num_heads:
        return node
    batch = writer.size(widest, 0) if grow_batch else -1
    return writer.call(_aten.expand.default, node, [batch, num_heads, -1, -1])


def _full(writer: _Writer, mask: Node, query: Node, key: Node) -> Node:
    """Expand the last two axes of a mask to queries and keys if they are 1."""
    wanted: list[Any] = [-1] * (len(shape(mask)) - 2)
    for axis, tensor in ((-2, query), (-1, key)):
        broadcast = _is_one(shape(mask)[axis]) and not _is_one(shape(tensor)[2])
        wanted.append(writer.size(tensor, 2) if broadcast else -1)
    if all(isinstance(size, int) and size == -1 for size in wanted):
        return mask
    return writer.call(_aten.expand.default, mask, wanted)


def _is_one(size: Any) -> bool:
    """Whether a size is statically 1; comparing a symbol would specialise it."""
    return isinstance(size, int) and size == 1


def _with_causal(writer: _Writer, mask: Node, query: Node, key: Node) -> Node:
    rows = writer.call(_aten.arange.default, writer.size(query, 2))
    columns = writer.call(_aten.arange.default, writer.size(key, 2))
    later = writer.call(_aten.gt.Tensor, columns, writer.call(_aten.unsqueeze.default, rows, 1))
    if mask.meta["val"].dtype == torch.bool:
        return writer.call(_aten.logical_and.default, mask, writer.call(_aten.logical_not.default, later))
    return writer.call(_aten.masked_fill.Scalar, mask, later, float("-inf"))


def _hidden_rows_to_zero(writer: _Writer, output: Node, mask: Node) -> Node:
    visible = mask
    if mask.meta["val"].dtype != torch.bool:
        visible = writer.call(_aten.gt.Scalar, mask, float("-inf"))
    attended = writer.call(_aten.any.dim, visible, -1, True)
    return writer.call(_aten.where.ScalarOther, attended, output, 0.0)
