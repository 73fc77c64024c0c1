"""Settings of attentions that a module writes out itself, read from an export of it, next to those of a file.

For modules that call no scaled_dot_product_attention, whose arguments could be heard. Runs after a judge has found the
file wrong, and decides no verdict.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sdpa_onnx.core.attention.spec import AttentionSpec, MaskKind
from sdpa_onnx.core.records.records import BakedSetting
from sdpa_onnx.errors import ExportError, ModelError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.check.lifted_model import lift

if TYPE_CHECKING:
    from torch import nn

__all__ = ["module_settings"]

# Scales closer than this are equal. An export folds and splits constants in float32: twice its rounding for each of
# two roots and their product, with one more for the constant itself. Source: IEEE 754, 24 bits.
_SCALE_STEP = 8 * 2.0**-24


def module_settings(
    model: OnnxModel, module: "nn.Module", args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[BakedSetting, ...]:
    """Compare scale and causality of the attentions of a file with those of an export of its module.

    Args:
        model: The file.
        module: Its module.
        args, kwargs: One call of the module, of which only one may be non-empty.

    Returns:
        What differs; () where the module cannot be exported or has another number of attentions that can be read.
    """
    from sdpa_onnx.torch_export.exporter import export_module

    if args and kwargs:
        return ()
    try:
        exported = export_module(copy.deepcopy(module), tuple(args) if args else dict(kwargs))
        own, here = lift(exported), lift(model)
    except (ExportError, ModelError):
        return ()
    if not len(own.found) == len(own.read) == len(here.read) == len(here.found):
        return ()
    pairs = zip(here.read, own.read, strict=True)
    return tuple(found for one, other in pairs for found in _differences(one.name, one.spec, other.spec))


def _differences(site: str, here: AttentionSpec, own: AttentionSpec) -> list[BakedSetting]:
    found = []
    if abs(here.scale_value - own.scale_value) > _SCALE_STEP * abs(own.scale_value):
        fixed, other = f"{here.scale_value:.6g}", f"{own.scale_value:.6g}"
        more = f" ({100 * (here.scale_value / own.scale_value - 1):+.2g} %)" if own.scale_value else ""
        evidence = f"the scale of '{site}' is {fixed}{more}; the module's is {other}"
        found.append(BakedSetting(setting="scale", site=site, fixed=fixed, own=other, evidence=evidence))
    is_plain = not any(one.has_window or one.mask is not MaskKind.NONE for one in (here, own))
    if is_plain and here.is_causal != own.is_causal:
        words = ("is causal", "is not causal")
        first, second = words if here.is_causal else words[::-1]
        evidence = f"attention '{site}' {first}; the module's attention {second.removesuffix(' causal')}"
        values = [f"it is {one.is_causal}" for one in (here, own)]
        found.append(BakedSetting(setting="is_causal", site=site, fixed=values[0], own=values[1], evidence=evidence))
    return found
