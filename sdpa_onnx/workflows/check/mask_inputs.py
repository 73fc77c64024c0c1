"""Inputs of a graph that are masks of its attentions: found, and drawn as masks are; draws nothing else.

Numbers of a normal distribution are no mask: -inf and the lowest number of the type are what real ones hold.
"""

from collections.abc import Iterator, Mapping, Sequence

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sdpa_onnx.graph.element_types import DTYPES
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.check.feeds import Feeds

__all__ = ["drawn_as_masks", "mask_only_axes", "visible_keys", "with_hidden_row"]

# Operators between an input and the mask of an attention that keep -inf and lowest numbers.
_KEEPS_NUMBERS = frozenset(
    ["Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Expand", "Slice", "Transpose", "Add", "Where", "Flatten"]
)
_KEEPS_AXES = _KEEPS_NUMBERS | {"And", "Or", "Not", "Equal", "Greater", "Less", "Sub", "Mul"}
_HIDDEN = 0.25
# What hides a key in a mask of integers; in one of floating-point numbers it is -inf.
_HIDES = {"i": 0.0, "u": 0.0}


def mask_only_axes(model: OnnxModel) -> tuple[str, ...]:
    """Names of axes that only masks have: the source may broadcast there, so that one entry is used for all."""
    masks = {value.name for value in _behind_masks(model, _KEEPS_AXES)}
    names: dict[bool, dict[str, None]] = {True: {}, False: {}}
    for value in model.ir.graph.inputs:
        for size in value.shape or ():
            if isinstance(size, ir.SymbolicDim) and size.value is not None:
                names[value.name in masks][str(size.value)] = None
    return tuple(name for name in names[True] if name.isidentifier() and name not in names[False])


def visible_keys(model: OnnxModel) -> slice:
    """Keys of which every query sees one, if positions alone hide others: the first, and one in each window."""
    windows = [site.spec.left_window + 1 for site in (*model.sites, *model.body_sites) if site.spec.left_window >= 0]
    return slice(None, None, min(windows)) if windows else slice(1)


def drawn_as_masks(model: OnnxModel, feeds: Feeds, *, keep_visible: bool, seed: int) -> Iterator[Feeds]:
    """The inputs with -inf in a quarter of each float mask, and with the lowest number there; nothing without any.

    The first key stays visible; by the lowest number, the last row (of the last sample, if a mask has one row) is
    hidden as a whole, in which the source averages. What several masks add up to is the lowest number, not -inf.

    Args:
        model: Whose inputs they are, with the attentions read.
        feeds: The inputs.
        keep_visible: Leave some keys of every row visible, see `visible_keys`.
        seed: Which entries.
    """
    masks = [
        value
        for value in _behind_masks(model, _KEEPS_NUMBERS)
        if value.dtype in DTYPES and feeds[value.name or ""].ndim and feeds[value.name or ""].size
    ]
    if not masks:
        return
    rng = np.random.default_rng(seed)
    hides = {value.name or "": rng.random(feeds[value.name or ""].shape) < _HIDDEN for value in masks}
    kept = visible_keys(model) if keep_visible else slice(1)
    for hidden in hides.values():
        hidden[..., kept] = False
    yield _filled(feeds, hides, dict.fromkeys(hides, -np.inf))
    for hidden in hides.values():
        row = (-1,) if hidden.ndim < 2 or hidden.shape[-2] == 1 else (..., -1, slice(None))
        if hidden.ndim > 1:
            hidden[row] = True
        if keep_visible:
            hidden[..., kept] = False
    yield _filled(feeds, hides, {value.name or "": _lowest(value, masks) for value in masks})


def with_hidden_row(model: OnnxModel, feeds: Feeds) -> Iterator[Feeds]:
    """The inputs with masks that hide every key of the first query of the first sample; nothing without a mask.

    A float mask holds -inf there and an integer one 0. Of a boolean one it is not known what hides: twice, with False
    and with True.

    Args:
        model: Whose inputs they are, with the attentions read.
        feeds: The inputs.
    """
    masks = [value for value in _behind_masks(model, _KEEPS_AXES) if feeds[value.name or ""].size]
    hides: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]] = {}
    for value in masks:
        hidden = np.zeros(feeds[value.name or ""].shape, bool)
        hidden[(0,) * (hidden.ndim - 1)] = True
        hides[value.name or ""] = hidden
    has_flags = any(feeds[name].dtype.kind == "b" for name in hides)
    for flag in (False, True)[: (bool(hides) + has_flags)]:
        by = {name: flag if (kind := feeds[name].dtype.kind) == "b" else _HIDES.get(kind, -np.inf) for name in hides}
        yield _filled(feeds, hides, by)


def _lowest(value: ir.Value, masks: Sequence[ir.Value]) -> float:
    kind = ir.DataType.FLOAT.numpy() if value.dtype is None else value.dtype.numpy()
    lowest = float(ml_dtypes.finfo(kind).min)  # type: ignore[no-untyped-call]  # it has no types
    # A score may move the lowest number of float16, and another mask that of any type, to -inf.
    return lowest / (len(masks) + (kind == np.float16))


def _filled(
    feeds: Feeds, hides: Mapping[str, "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]"], by: Mapping[str, float]
) -> Feeds:
    filled = {
        name: np.where(hidden, np.asarray(by[name], feeds[name].dtype), feeds[name]) for name, hidden in hides.items()
    }
    return {**feeds, **filled}


def _behind_masks(model: OnnxModel, operators: frozenset[str]) -> Iterator[ir.Value]:
    """Inputs of the graph that reach an attention's mask through some operators only, each once."""
    values = {value.name: value for value in model.ir.graph.inputs}
    values |= {value.name: value for node in model.ir.graph for value in node.outputs}
    reached = [values[site.attn_mask] for site in model.sites if site.attn_mask in values]
    seen = set(reached)
    while reached:
        value = reached.pop()
        node = value.producer()
        if value.is_graph_input():
            yield value
        elif node is not None and node.op_type in operators:
            entered = node.inputs if node.op_type in ("Add", "Where", "And", "Or", "Mul", "Sub") else node.inputs[:1]
            new = [one for one in entered if one is not None and one not in seen]
            seen.update(new)
            reached += new
