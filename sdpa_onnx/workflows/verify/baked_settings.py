"""Settings of an attention that follow a size in the module and are fixed in its graph: scale, causality, mask.

Runs only after a judge has found the graph wrong. It reports the cause, and proves
it where the graph does not state its scale.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.core.attention.size_functions import round_to_float32, size_functions
from sdpa_onnx.core.attention.spec import AttentionSpec, MaskKind
from sdpa_onnx.core.records.records import BakedSetting
from sdpa_onnx.errors import ExportError, ModelError, SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Runtime
from sdpa_onnx.workflows.check.feeds import Feeds, arguments_of, draw_feeds
from sdpa_onnx.workflows.check.module_output_check import Float64Module
from sdpa_onnx.workflows.isolate.isolated_runtime import ProcessDiedError
from sdpa_onnx.workflows.verify.module_specs import module_settings

if TYPE_CHECKING:
    from torch import nn

    from sdpa_onnx.torch_export.attention_calls import AttentionCall

__all__ = ["baked_settings", "likely_sizes", "scalar_constants"]

Sizes = Mapping[str, int]

# Scales that are tried one by one where the graph does not state its own.
_CANDIDATES = 64
# A constant with more elements is a weight.
_SMALL = 16
_LONGEST = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heard:
    """The arguments of the module's attentions at some sizes, and the inputs of its graph there."""

    sizes: Sizes
    feeds: Feeds
    calls: "list[AttentionCall]"


def baked_settings(
    model: OnnxModel, runtime: Runtime, *, traced: Sizes | None, wrong: Sequence[Sizes], seed: int
) -> tuple[BakedSetting, ...]:
    """Compare the settings in the graph with those of its module at sizes where the graph is wrong.

    Args:
        model: The graph; without its module there is nothing to compare.
        runtime: Where the graph was wrong.
        traced: Sizes at which it was traced, if they are known.
        wrong: Sizes at which it was found wrong.
        seed: Seed of the inputs.
    """
    if model.source is None or (model.is_bare_attention and model.bind is None):
        return ()
    # Long ones first: at a length of 1 a softmax does not depend on its scale.
    by_length = sorted(wrong, key=lambda sizes: -sum(sizes.values()))
    heard = [one for sizes in by_length if (one := _heard(model, sizes, seed)) is not None]
    first = _heard(model, traced, seed) if traced else None
    found: list[BakedSetting] = []
    for one in heard:
        known = {(setting.setting, setting.site) for setting in found}
        found += [new for new in _differences(model, first, one) if (new.setting, new.site) not in known]
    if heard and not any(one.calls for one in heard):
        arguments = arguments_of(model, heard[0].feeds)
        return module_settings(model, cast("nn.Module", model.source), *arguments)
    if found or model.sites or not heard:
        return tuple(found)
    return _by_trial(model, runtime, first, heard)


def _heard(model: OnnxModel, sizes: Sizes, seed: int) -> _Heard | None:
    from sdpa_onnx.torch_export.attention_calls import attention_calls

    # A copy: what the module remembers of one call must not reach the next.
    module = copy.deepcopy(cast("nn.Module", model.source))
    try:
        feeds = draw_feeds(model, sizes, spread=1.0, seed=seed)
        args, kwargs = arguments_of(model, feeds)
        return _Heard(sizes=sizes, feeds=feeds, calls=attention_calls(module, args, kwargs))
    except (ExportError, ModelError):
        return None


def _differences(model: OnnxModel, first: _Heard | None, other: _Heard) -> list[BakedSetting]:
    """What differs between the graph, or the sizes that it was traced at, and the module at other sizes."""
    if first is not None and len(first.calls) != len(other.calls):
        counts = str(len(first.calls)), str(len(other.calls))
        text = (
            f"the module has {counts[0]} attentions at {_words(first.sizes)}, where it was traced, and {counts[1]} at "
            f"{_words(other.sizes)}"
        )
        return [BakedSetting(setting="calls", site="", fixed=counts[0], own=counts[1], evidence=text)]
    stated = model.sites if len(model.sites) == len(other.calls) else ()
    found: list[BakedSetting] = []
    for position, call in enumerate(other.calls):
        before = first.calls[position] if first is not None else None
        site = stated[position].name if stated else _place(position, len(other.calls))
        if stated:
            fixed = stated[position].spec.scale_value
            if not _was_moved(fixed, before):
                found += _scale(site, fixed, call, first, other, position)
            if before is None or before.is_causal == call.is_causal:
                found += _lost_causality(site, stated[position].spec, call)
        if before is not None:
            found += _flag(site, "is_causal", before.is_causal, call.is_causal, call, first, other)
            found += _flag(site, "attn_mask", before.has_mask, call.has_mask, call, first, other)
    return found


def _lost_causality(site: str, spec: AttentionSpec, call: "AttentionCall") -> list[BakedSetting]:
    """An attention that hides nothing, where the module's own call is causal."""
    if not call.is_causal or spec.is_causal or spec.has_window or spec.mask is not MaskKind.NONE:
        return []
    evidence = f"attention '{site}' is not causal; the module's attention is{_where(call)}"
    return [BakedSetting(setting="is_causal", site=site, fixed="it is False", own="it is True", evidence=evidence)]


def _place(position: int, count: int) -> str:
    return "sdpa" if count == 1 else f"attention {position + 1}"


def _was_moved(fixed: float, before: "AttentionCall | None") -> bool:
    """Whether the graph's scale is 1 because the exporter moved the module's own onto the query."""
    return fixed == 1.0 and before is not None and round_to_float32(before.scale) != 1.0


def _scale(
    site: str, fixed: float, call: "AttentionCall", first: _Heard | None, other: _Heard, position: int
) -> list[BakedSetting]:
    if round_to_float32(fixed) == round_to_float32(call.scale):
        return []
    traced = (
        first
        if first is not None and round_to_float32(first.calls[position].scale) == round_to_float32(fixed)
        else None
    )
    formula = _formula(call, other.sizes, fixed, traced)
    if traced is None and not formula:  # no sign that it is a size's: the file has another constant than the module
        more = f" ({100 * (fixed / call.scale - 1):+.2g} %)" if call.scale else ""
        evidence = f"the scale of '{site}' is {fixed:.6g}{more}; the module's is {call.scale:.6g}{_where(call)}"
        return [
            BakedSetting(setting="scale", site=site, fixed=f"{fixed:.6g}", own=f"{call.scale:.6g}", evidence=evidence)
        ]
    at = f" = {formula}" if formula and traced is not None else ""
    at += f", the module's own at {_words(traced.sizes)}" if traced is not None else ""
    evidence = (
        f"the scale of '{site}' is fixed at {fixed:.6g}{at}; at {_words(other.sizes)} the module's own is "
        f"{call.scale:.6g}{f' = {formula}' if formula else ''}{_where(call)}"
    )
    return [BakedSetting(setting="scale", site=site, fixed=f"{fixed:.6g}", own=f"{call.scale:.6g}", evidence=evidence)]


def _formula(call: "AttentionCall", sizes: Sizes, fixed: float, traced: _Heard | None) -> str:
    """The simple function of one axis that the module's scale is at both sizes; "" if none is."""
    for axis, size in sizes.items():
        for formula, value in size_functions(size, call.head_dim).items():
            if round_to_float32(value) != round_to_float32(call.scale):
                continue
            before = size_functions(traced.sizes[axis], call.head_dim) if traced and axis in traced.sizes else None
            if before is None or round_to_float32(before.get(formula, fixed)) == round_to_float32(fixed):
                return formula.replace("(n", f"({axis}").replace("/n", f"/{axis}")
    return ""


def _flag(
    site: str,
    setting: str,
    before: bool,  # noqa: FBT001  # the two values of one flag
    now: bool,  # noqa: FBT001
    call: "AttentionCall",
    first: _Heard | None,
    other: _Heard,
) -> list[BakedSetting]:
    if before == now or first is None:
        return []
    words = ("none is given", "a mask is given") if setting == "attn_mask" else ("it is False", "it is True")
    evidence = (
        f"{setting} of '{site}' is fixed: at {_words(first.sizes)}, where the module was traced, {words[before]}; "
        f"at {_words(other.sizes)} {words[now]}{_where(call)}"
    )
    return [BakedSetting(setting=setting, site=site, fixed=words[before], own=words[now], evidence=evidence)]


def _by_trial(
    model: OnnxModel, runtime: Runtime, first: _Heard | None, heard: Sequence[_Heard]
) -> tuple[BakedSetting, ...]:
    """Find the scales with which the module returns what the graph returns, where the graph does not state its own."""
    ran = next((found for one in heard if (found := _ran(model, runtime, one)) is not None), None)
    if ran is None:
        return ()
    one, outputs = ran
    own = tuple(call.scale for call in one.calls)
    for scales in _candidates(model, first, heard):
        if len(scales) != len(own) or all(map(_same, scales, own)):
            continue
        if _module_gives(model, scales, one.feeds, outputs):
            return tuple(
                setting
                for position, (fixed, call) in enumerate(zip(scales, one.calls, strict=True))
                for setting in _scale(_place(position, len(own)), fixed, call, first, one, position)
            )
    return ()


def _same(one: float, other: float) -> bool:
    return round_to_float32(one) == round_to_float32(other)


def _ran(model: OnnxModel, runtime: Runtime, one: _Heard) -> tuple[_Heard, list[NDArray[np.generic]]] | None:
    try:
        with runtime.load(model, LoadOptions()) as session:
            outputs = session.run(one.feeds)
    except ProcessDiedError:
        raise
    except SessionError:
        return None
    returned = [outputs[name] for name in model.output_names]
    # An infinite scale would explain any output that is not finite.
    is_finite = all(np.isfinite(array.astype(np.float64)).all() for array in returned if array.dtype.kind not in "bui")
    return (one, returned) if is_finite else None


def _candidates(model: OnnxModel, first: _Heard | None, heard: Sequence[_Heard]) -> list[tuple[float, ...]]:
    """The module's scales at the sizes that are known, then every number in the graph that may be one."""
    found = [tuple(call.scale for call in one.calls) for one in (first, *heard) if one is not None]
    count = len(heard[0].calls)
    numbers = [number for number in scalar_constants(model) if 0.0 < abs(number) < np.inf]
    # Exporters write the scale, its root on query and key each, or what the scores are divided by.
    found += [(abs(power),) * count for number in numbers for power in (number, number**2, 1 / number, number**-2)]
    return list(dict.fromkeys(found))[:_CANDIDATES]


def _module_gives(
    model: OnnxModel,
    scales: Sequence[float],
    feeds: Mapping[str, NDArray[np.generic]],
    outputs: list[NDArray[np.generic]],
) -> bool:
    """Whether the module with these scales returns what the graph returned, by the rule for outputs of a module."""
    from sdpa_onnx.torch_export.attention_calls import ModuleWithScales

    module = ModuleWithScales(copy.deepcopy(cast("nn.Module", model.source)), scales)
    truth = Float64Module.of(module, model.facts.dtype.value, model.bind)
    try:
        agreements = truth.judge(feeds, outputs)
    except ExportError:
        return False
    return bool(agreements) and all(agreement.verdict.is_right for agreement in agreements)


def _where(call: "AttentionCall") -> str:
    return f" ({call.where})" if call.where else ""


def _words(sizes: Sizes) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items())


def scalar_constants(model: OnnxModel) -> list[float]:
    """Every constant that is a single floating-point number, each once."""
    found = (float(array.reshape(-1)[0]) for array in _constants(model) if array.dtype.kind == "f" and array.size == 1)
    return list(dict.fromkeys(found))


def likely_sizes(model: OnnxModel) -> list[int]:
    """Whole numbers from 2 on in small constants, and the last axes of constants that may be masks."""
    found: list[int] = []
    for array in _constants(model):
        if array.dtype.kind in "iu" and array.size <= _SMALL:
            found += [int(number) for number in array.reshape(-1)]
        elif array.ndim >= 2:
            found += array.shape[-2:]
    return [size for size in dict.fromkeys(found) if 1 < size <= _LONGEST]


def _constants(model: OnnxModel) -> Iterator[NDArray[np.generic]]:
    for value in model.ir.graph.initializers.values():
        if value.const_value is not None and value.const_value.dtype is not ir.DataType.STRING:
            yield value.const_value.numpy()
    for node in model.ir.graph.all_nodes():
        if node.op_type == "Constant" and node.domain == "":
            yield from _of_node(node)


def _of_node(node: ir.Node) -> Iterator[NDArray[np.generic]]:
    for attribute in node.attributes.values():
        match attribute.type:
            case ir.AttributeType.TENSOR:
                yield attribute.as_tensor().numpy()
            case ir.AttributeType.FLOAT | ir.AttributeType.INT | ir.AttributeType.INTS | ir.AttributeType.FLOATS:
                yield np.asarray(attribute.value)
            case _:
                continue
