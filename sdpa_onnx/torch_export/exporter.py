"""Export modules and specs to ONNX models with dynamic axes and metadata.

Writes no files (`OnnxModel.save` does) and verifies nothing.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import onnx_ir as ir
import torch
from torch import nn

from sdpa_onnx.core.attention.inputs import ONNX_INPUT_NAMES
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, Layout, MaskKind
from sdpa_onnx.errors import ExportError
from sdpa_onnx.graph.attention_node import build_attention_model, default_form, minimum_opset
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.model_facts import LIMITS_KEY, TRACED_KEY
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.torch_export.bound_inputs import BoundInputs, axis_roles, bind_inputs, choose_axes
from sdpa_onnx.torch_export.capture import (
    Axes,
    capture,
    eval_mode,
    run_once,
    small_sizes_stay_dynamic,
    with_enlarged_sizes,
)
from sdpa_onnx.torch_export.fx_normalise import DynamicWidthError
from sdpa_onnx.torch_export.linked_axes import input_dims, linked_axes, named_sizes
from sdpa_onnx.torch_export.modules import ScaledDotProductAttention
from sdpa_onnx.torch_export.onnx_tidy import rename_dims, rename_value, symbol_names
from sdpa_onnx.torch_export.traced_limits import named_limits
from sdpa_onnx.torch_export.translate import Translation, translate, write_metadata

__all__ = ["HIGHEST_OPSET", "LOWEST_OPSET", "export_module", "export_spec"]

LOWEST_OPSET = 18
# torch 2.13 accepts 26 and above, but writes opset 18 into the file.
HIGHEST_OPSET = 25
# The first opset with the Attention operator; below it torch.onnx writes the decomposed formula.
_ATTENTION_OPSET = 23


def export_module(
    module: nn.Module,
    sample_inputs: object,
    *,
    opset: int = _ATTENTION_OPSET,
    dynamic_axes: Mapping[str, Sequence[int]] | None = None,
) -> OnnxModel:
    """Export a module with dynamic batch size and sequence lengths.

    Each attention becomes one `Attention` node from opset 23 on, and the
    decomposed formula below. Batch and sequence axes of every input are
    dynamic; head counts and widths are static. The module is exported in eval
    mode; its training flag stays unchanged.

    Args:
        module: Any module whose forward has tensor arguments.
        sample_inputs: A tuple of tensors, or a dict by parameter name; other
            values in it (None, flags) become constants. Optional arguments may be omitted.
        opset: 18 to 25.
        dynamic_axes: Axes by parameter name, where the defaults are wrong.

    Returns:
        The model; its sites name the inputs and the output of each attention.

    Raises:
        ExportError: If the opset is not supported, the sample does not match forward, forward
            raises, the code specialises a dynamic axis, or torch.onnx cannot translate an operator.
    """
    _check_opset(opset)
    inputs = bind_inputs(module, sample_inputs)
    axes, guesses = choose_axes(inputs, dynamic_axes)
    translation, traced = _export(module, inputs, axes, guesses, opset)
    model = translation.model
    roles = [(name, axis_roles(name, leaf)) for name, leaf in inputs.leaves().items()]
    names = symbol_names(model, roles, _aliases(module, traced, translation))
    rename_dims(model, names)
    write_metadata(model, translation.sites, from_torch=True)
    limits = named_limits(translation.limits, names)
    if limits:
        model.metadata_props[LIMITS_KEY] = msgspec.json.encode(limits).decode()
    model.metadata_props[TRACED_KEY] = msgspec.json.encode(_traced_sizes(model, traced)).decode()
    return OnnxModel(ir=model, sites=translation.sites, source=module, bind=inputs.with_tensors)


def export_spec(
    spec: AttentionSpec,
    *,
    opset: int = _ATTENTION_OPSET,
    form: Literal["attention", "decomposed"] = "attention",
    dtype: Dtype = Dtype.FLOAT32,
) -> OnnxModel:
    """Export one bare attention with dynamic batch size and lengths.

    Inputs are Q, K, V and those of attn_mask, past_key, past_value and
    nonpad_kv_seqlen that the spec has. Outputs are Y and, with a past,
    present_key and present_value.

    Args:
        spec: What the attention computes.
        opset: 18 to 25; form "attention" needs 23.
        form: "attention": one Attention node, with a computed mask for features
            that the opset's operator lacks. "decomposed": standard operators.
        dtype: Element type of query, key, value and output.

    Raises:
        ExportError: If the form cannot be written at the opset.
    """
    _check_opset(opset)
    if form == "attention" and opset < _ATTENTION_OPSET:
        raise ExportError(
            f"Form 'attention' needs opset 23 to 25, got opset {opset}.",
            hint="Use form 'decomposed', or a higher opset.",
        )
    if form == "attention" and default_form(spec, opset) != form:
        raise ExportError(
            f"The Attention operator of opset {opset} cannot express this attention.",
            hint=f"Use opset {minimum_opset(spec)}, or form 'decomposed'.",
        )
    module = ScaledDotProductAttention(spec).eval()
    native = form == "attention" and opset >= minimum_opset(spec) and not _is_native_in_torch(spec)
    if native:
        model = build_attention_model(spec, opset=opset, dtype=dtype)
    else:
        model = _traced_spec(module, form, opset, dtype)
    sites = (_spec_site(spec),)
    write_metadata(model, sites, from_torch=not native)
    return OnnxModel(ir=model, sites=sites, source=module)


def _check_opset(opset: int) -> None:
    if not LOWEST_OPSET <= opset <= HIGHEST_OPSET:
        raise ExportError(
            f"Opset {opset} cannot be exported.",
            hint=f"Use an opset from {LOWEST_OPSET} to {HIGHEST_OPSET}.",
        )


def _aliases(module: nn.Module, traced: BoundInputs, translation: Translation) -> dict[str, str]:
    """Symbols that are equal to another one: proved by the trace, or required by the module when it runs."""
    known = translation.aliases
    dims = [[known.get(str(dim), dim) for dim in axes] for axes in input_dims(translation.model)]
    links = linked_axes(copy.deepcopy(module), traced, dims)
    return {alias: links.get(first, first) for alias, first in known.items()} | links


def _traced_sizes(model: ir.Model, inputs: BoundInputs) -> dict[str, int]:
    """Size of every named axis in the traced sample; the search for a specialised axis starts from it."""
    return named_sizes(inputs, input_dims(model))


def _export(
    module: nn.Module, inputs: BoundInputs, axes: Axes, guesses: frozenset[tuple[str, int]], opset: int
) -> tuple[Translation, BoundInputs]:
    """Trace and translate; returns also the traced sample, in which sizes of 0 and 1 are enlarged."""
    with eval_mode(module):
        run_once(module, inputs)
        usual = with_enlarged_sizes(module, inputs, axes)
        try:
            return _traced(module, usual, axes, guesses, opset), usual
        except DynamicWidthError:
            if not guesses:
                raise
        certain = {name: tuple(axis for axis in kept if (name, axis) not in guesses) for name, kept in axes.items()}
        return _traced(module, usual, certain, frozenset(), opset), usual


def _traced(
    module: nn.Module, inputs: BoundInputs, axes: Axes, guesses: frozenset[tuple[str, int]], opset: int
) -> Translation:
    with small_sizes_stay_dynamic(inputs, axes):
        program, limits = capture(module, inputs, axes, guesses)
        names = list(inputs.leaves())
        return translate(program, name=type(module).__name__, opset=opset, input_names=names, limits=limits)


def _is_native_in_torch(spec: AttentionSpec) -> bool:
    """Whether torch's scaled_dot_product_attention expresses the spec without a computed mask."""
    combined = spec.is_causal and spec.mask is not MaskKind.NONE
    cached = spec.has_past or spec.mask is MaskKind.LENGTHS
    return not (spec.softcap or spec.has_window or cached or combined or spec.layout is not Layout.BNSH)


def _traced_spec(module: ScaledDotProductAttention, form: str, opset: int, dtype: Dtype) -> ir.Model:
    """Trace the bare module; above opset 22, the decomposed formula is written at 22 and converted."""
    inputs = bind_inputs(module, _spec_sample(module.spec, dtype))
    axes = {name: tuple(axis for axis, role in enumerate(roles) if role) for name, roles in _spec_roles(module.spec)}
    written_at = min(opset, _ATTENTION_OPSET - 1) if form == "decomposed" else opset
    model = _export(module, inputs, axes, frozenset(), written_at)[0].model
    if written_at != opset:
        from onnxscript import version_converter

        version_converter.convert_version(model, opset)
    _rename_like_operator(model, module.spec, dtype)
    return model


def _spec_sample(spec: AttentionSpec, dtype: Dtype) -> dict[str, object]:
    """Draw a sample whose lengths all differ, so that the trace does not merge two of them."""
    case = AttentionCase(
        spec=spec, batch_size=2, q_seq_len=3, kv_seq_len=5, past_seq_len=4 if spec.has_past else 0, dtype=dtype
    )
    generator = torch.Generator().manual_seed(0)
    element = getattr(torch, dtype.value)
    sample: dict[str, object] = {}
    for field, shape in case.input_shapes().items():
        drawn = torch.randn(shape, generator=generator).to(element)
        if field == "attn_mask" and spec.mask is MaskKind.BOOL:
            drawn = drawn > 0
        if field == "nonpad_kv_seqlen":
            drawn = torch.tensor([5, 4])
        sample[ONNX_INPUT_NAMES[field]] = drawn
    return sample


def _spec_roles(spec: AttentionSpec) -> list[tuple[str, tuple[str, ...]]]:
    """Name of each axis of each input as in `build_attention_model`; "" for static axes."""
    reference = build_attention_model(spec, opset=minimum_opset(spec), dtype=Dtype.FLOAT32)
    return [
        (value.name or "", tuple("" if isinstance(dim, int) else str(dim.value) for dim in value.shape or ()))
        for value in reference.graph.inputs
    ]


def _rename_like_operator(model: ir.Model, spec: AttentionSpec, dtype: Dtype) -> None:
    """Rename inputs, outputs and axes to the names in a one-node model of the spec."""
    reference = build_attention_model(spec, opset=minimum_opset(spec), dtype=dtype)
    symbols: dict[str, str] = {}
    for value, named in zip(model.graph.inputs, reference.graph.inputs, strict=True):
        for dim, name in zip(value.shape or (), named.shape or (), strict=True):
            if isinstance(dim, ir.SymbolicDim) and isinstance(name, ir.SymbolicDim) and str(dim.value).isalnum():
                symbols.setdefault(str(dim.value), str(name.value))
    rename_dims(model, symbols)
    for value, named in zip(list(model.graph.outputs), reference.graph.outputs, strict=True):
        rename_value(model, value, named.name or "")
    for value, named in zip(
        (*model.graph.inputs, *model.graph.outputs),
        (*reference.graph.inputs, *reference.graph.outputs),
        strict=True,
    ):
        value.shape = named.shape


def _spec_site(spec: AttentionSpec) -> AttentionSite:
    case = AttentionCase(spec=spec, q_seq_len=1)
    names: dict[str, Any] = {field: ONNX_INPUT_NAMES[field] for field in case.input_shapes()}
    return AttentionSite(name="sdpa", spec=spec, output="Y", **names)
