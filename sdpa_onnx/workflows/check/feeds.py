"""Inputs of a graph, and of the module that it came from: shapes from its symbolic axes, numbers by seed.

A check runs them in steps: the ladder of logit spreads, the structural probes, or given arrays. Inputs of
one attention are drawn by `core.attention.inputs` and `core.attention.probes`; here a module's inputs are.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.core.attention.axis_limits import read_expression
from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.oracle import split_heads
from sdpa_onnx.core.attention.probes import probes_for
from sdpa_onnx.core.attention.spec import AttentionCase, Dtype, MaskKind
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.runtimes.base import Session
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.integer_draws import draw_integers

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "GIVEN",
    "Feeds",
    "InputStep",
    "arguments_of",
    "bare_case",
    "draw_feeds",
    "feeds_of",
    "ladder",
    "logit_spread",
    "probe_steps",
    "refusal_of_module",
    "resolve_shape",
    "runs_at",
]

Feeds = dict[str, NDArray[np.generic]]
Sizes = Mapping[str, int]

GIVEN = "given"
_OWN = "the module's own spread"
# Queries used to measure the logit spread of an attention in a module.
_SPREAD_ROWS = 32
# Faults of structure show at small sizes: a prime above the usual tile of 64 needs a second, ragged tile.
_PROBE_LENGTH = 67


@dataclass(frozen=True, slots=True, kw_only=True)
class InputStep:
    """One set of inputs of a model.

    Args:
        word: Its name in the record: "spread 1", "probe poison", "given".
        spread: Standard deviation of the logits that was requested, or None.
        check: The check, with the sizes of this step.
        feeds: Arrays by graph input name.
    """

    word: str
    spread: float | None
    check: CheckOptions
    feeds: Feeds


def bare_case(model: OnnxModel, sizes: Sizes, dtype: Dtype | None = None) -> AttentionCase | None:
    """The case at these sizes if the model is one bare attention, else None."""
    if not model.is_bare_attention:
        return None
    site = model.sites[0]
    shapes = {field: resolve_shape(model.input_value(name), sizes) for field, name in site.inputs.items()}
    axis = 2 if len(shapes["query"]) == 4 else 1
    case = AttentionCase(
        spec=site.spec,
        dtype=dtype or model.facts.dtype,
        batch_size=shapes["query"][0],
        q_seq_len=shapes["query"][axis],
        kv_seq_len=shapes["key"][axis],
        past_seq_len=shapes["past_key"][2] if "past_key" in shapes else 0,
    )
    if site.attn_mask is None:
        return case
    mask = model.input_value(site.attn_mask)
    kind = MaskKind.BOOL if mask.dtype is ir.DataType.BOOL else MaskKind.FLOAT
    extra = kind if site.spec.mask is MaskKind.LENGTHS else MaskKind.NONE
    return replace(case, mask_shape=shapes["attn_mask"], extra_mask=extra)


def draw_feeds(model: OnnxModel, sizes: Sizes, *, spread: float, seed: int, gain: float = 1.0) -> Feeds:
    """Draw every input of a graph.

    A bare attention gets the requested logit spread. A module gets N(0, gain^2)
    on its floating-point inputs: its weights decide the spread, and the
    caller chooses the gain. Boolean inputs are True three times out of four and
    always at position 0 of the last axis; integers are drawn by what they mean, see `integer_draws`.

    Args:
        model: The graph.
        sizes: Size of every named axis.
        spread: Standard deviation of the logits of a bare attention.
        seed: Same seed, same arrays.
        gain: Standard deviation of a module's inputs.

    Raises:
        IllegalSizesError: If no integers are legal at these sizes.
        ModelError: If an axis has no size, or an input is of a type that cannot be drawn.
    """
    case = bare_case(model, sizes)
    if case is not None:
        return feeds_of(model, case, draw_inputs(case, spread=spread, seed=seed), sizes)
    rng = np.random.default_rng(seed)
    shapes = {value.name or "": resolve_shape(value, sizes) for value in model.ir.graph.inputs}
    # Lengths differ from step to step of a ladder, so that several are tried.
    integers = draw_integers(model.ir, shapes, sizes, np.random.default_rng((seed, int(1000 * spread))))
    return {
        name: integers[name] if name in integers else _draw(model.input_value(name), shape, rng, gain)
        for name, shape in shapes.items()
    }


def feeds_of(model: OnnxModel, case: AttentionCase, inputs: AttentionInputs, sizes: Sizes) -> Feeds:
    """The inputs of a bare attention by the names of the graph.

    Args:
        model: The attention.
        case: From `bare_case`.
        inputs: Drawn for that case.
        sizes: Size of every named axis.

    Raises:
        ModelError: If the graph declares other shapes.
    """
    site, drawn = model.sites[0], inputs.named()
    for field, name in site.inputs.items():
        if field == "attn_mask":
            _require_mask(case, name)
        else:
            _require_shape(name, resolve_shape(model.input_value(name), sizes), drawn[field].shape)
    return {name: drawn[field] for field, name in site.inputs.items()}


def ladder(model: OnnxModel, session: Session, check: CheckOptions) -> Iterator[InputStep]:
    """Every step of the ladder; the inputs of a module are scaled until its attention has the requested spread."""
    if check.inputs is not None:
        yield InputStep(word=GIVEN, spread=None, check=check, feeds=dict(check.inputs))
        return
    if model.is_bare_attention:
        for spread in check.spreads:
            feeds = draw_feeds(model, check.sizes, spread=spread, seed=check.seed)
            yield InputStep(word=f"spread {spread:g}", spread=spread, check=check, feeds=feeds)
        return
    first = draw_feeds(model, check.sizes, spread=1.0, seed=check.seed)
    if not model.sites:
        # No spread can be measured: wider inputs at least leave the flat part of the softmax.
        for spread in check.spreads:
            wide = draw_feeds(model, check.sizes, spread=1.0, seed=check.seed, gain=max(1.0, spread))
            yield InputStep(word=_OWN, spread=None, check=check, feeds=wide)
        return
    own = _measured_spread(model, {**model.constants(), **first, **session.run(first)})
    if not own > 0.0 or not any(array.dtype.kind not in "bui" for array in first.values()):
        yield InputStep(word=_OWN, spread=None, check=check, feeds=first)
        return
    for spread in check.spreads:
        wide = draw_feeds(model, check.sizes, spread=spread, seed=check.seed, gain=(spread / own) ** 0.5)
        yield InputStep(word=f"spread {spread:g}", spread=spread, check=check, feeds=wide)


def probe_steps(model: OnnxModel, check: CheckOptions) -> Iterator[InputStep]:
    """Every structural probe of a bare attention, at small lengths."""
    sizes = {axis: min(size, _PROBE_LENGTH) for axis, size in check.sizes.items()}
    case = bare_case(model, sizes)
    if case is None:
        return
    small = replace(check, sizes=sizes)
    for probe in probes_for(case.spec):
        feeds = feeds_of(model, case, probe.draw(case, check.seed), sizes)
        yield InputStep(word=f"probe {probe.name}", spread=None, check=small, feeds=feeds)


def arguments_of(
    model: OnnxModel, feeds: Mapping[str, NDArray[np.generic]]
) -> tuple[tuple[Any, ...], dict[str, object]]:
    """The arguments of the module of a model for these inputs of its graph."""
    import torch

    tensors = [torch.from_numpy(array.copy()) for array in feeds.values()]
    return (tuple(tensors), {}) if model.bind is None else model.bind(tensors)


def runs_at(model: OnnxModel, feeds: Mapping[str, NDArray[np.generic]]) -> bool:
    """Whether the module runs on these arrays; True if the model has no module."""
    return not refusal_of_module(model, feeds)


def refusal_of_module(model: OnnxModel, feeds: Mapping[str, NDArray[np.generic]]) -> str:
    """The error that the module itself raises on these arrays; "" if it runs, or if the model has no module."""
    if model.source is None or model.bind is None:
        return ""
    from sdpa_onnx.torch_export.capture import eval_mode
    from sdpa_onnx.torch_export.quiet import quiet
    from sdpa_onnx.torch_export.source_line import raised_words

    module = cast("nn.Module", model.source)
    args, kwargs = arguments_of(model, feeds)
    try:
        with eval_mode(module), quiet():
            module(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  # a module may raise anything at sizes that do not fit
        return raised_words(error)
    return ""


def logit_spread(site: AttentionSite, inputs: AttentionInputs) -> float:
    """Root mean square, over some queries, of the standard deviation of their scaled logits."""
    query, key, _ = split_heads(site.spec, inputs)
    if key.shape[2] < 2 or not query.size:
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # of infinite inputs
        scores = site.spec.scale_value * (query[:, :1, :_SPREAD_ROWS] @ key[:, :1].transpose(0, 1, 3, 2))
        spread = float(np.sqrt(np.mean(np.var(scores, axis=-1))))
    return spread if np.isfinite(spread) else 0.0


def _measured_spread(model: OnnxModel, arrays: Mapping[str, NDArray[np.generic]]) -> float:
    """Median over the attentions of the standard deviation of a row of logits; 0 without any."""
    spreads = [logit_spread(site, site.arrays_in(arrays)) for site in model.sites]
    return float(np.median(spreads)) if spreads else 0.0


def resolve_shape(value: ir.Value, sizes: Sizes) -> tuple[int, ...]:
    """The shape of a graph input at these sizes.

    Raises:
        ModelError: If the shape is unknown or an axis has no size.
    """
    if value.shape is None:
        raise ModelError(f"Input '{value.name}' has no shape.", hint="Run shape inference on the model first.")
    return tuple(_size(size, sizes, value.name or "") for size in value.shape)


def _size(size: int | ir.SymbolicDim, sizes: Sizes, where: str) -> int:
    if isinstance(size, int):
        return size
    text = str(size.value)
    if text == "total_seq_len" and text not in sizes:
        return sizes.get("past_seq_len", 0) + sizes.get("kv_seq_len", 0)
    if size.value is None:
        raise ModelError(f"Input '{where}' has an axis without a name.", hint="Name its dynamic axes.")
    expression = read_expression(text)
    missing = next((name for name in expression.names if name not in sizes), None)
    if missing is not None:
        raise ModelError(f"Axis '{missing}' of input '{where}' has no size.", hint=f"Known: {', '.join(sizes)}.")
    found = expression.at(sizes)
    if found < 0:
        at = ", ".join(f"{name} {sizes[name]}" for name in expression.names)
        raise ModelError(f"Axis '{text}' of input '{where}' would have the size {found} at {at}.")
    return found


def _require_mask(case: AttentionCase, name: str) -> None:
    """Refuse a mask that does not broadcast to the scores; its last axis may be shorter."""
    shape = case.mask_shape or ()
    full = (case.batch_size, case.spec.q_num_heads, case.q_seq_len, case.total_seq_len)[4 - min(4, len(shape)) :]
    pairs = list(zip(shape, full, strict=False))
    if len(shape) > 4 or any(has not in (1, wanted) for has, wanted in pairs[:-1]) or shape[-1:] > full[-1:]:
        _require_shape(name, shape, full)


def _require_shape(name: str, declared: tuple[int, ...], described: tuple[int, ...]) -> None:
    """Refuse a graph whose input does not have the shape that the attention has there."""
    if declared != described:
        raise ModelError(
            f"Input '{name}' has shape {declared}, but the attention that is described has {described} there.",
            hint="The metadata does not belong to this graph; export it again.",
        )


def _draw(value: ir.Value, shape: tuple[int, ...], rng: np.random.Generator, gain: float) -> NDArray[np.generic]:
    if value.dtype is None:
        raise ModelError(f"Input '{value.name}' has no element type.")
    kind = value.dtype.numpy()
    if value.dtype is ir.DataType.BOOL:
        mask = np.asarray(rng.random(shape) < 0.75)
        if mask.ndim:  # a single one is a choice, not a mask
            mask[..., :1] = True
        return mask
    if value.dtype.is_floating_point():
        return (gain * rng.standard_normal(shape, dtype=np.float32)).astype(kind)
    raise ModelError(f"Input '{value.name}' is of type {value.dtype}, for which no inputs can be drawn.")
