"""Translate a traced module to ONNX: normalise its attentions, run torch.onnx, clean up the graph.

Does not trace and does not choose dynamic axes; the caller has traced already.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import onnx_ir as ir
import torch
from torch.export import ExportedProgram

from sdpa_onnx.core.attention.axis_limits import AxisLimit
from sdpa_onnx.errors import ExportError
from sdpa_onnx.graph.model import SITES_KEY, SPEC_KEY
from sdpa_onnx.graph.site import AttentionSite, encode_sites
from sdpa_onnx.torch_export.capture import equal_symbols
from sdpa_onnx.torch_export.failures import complex_error, translation_error
from sdpa_onnx.torch_export.fx_attention import Taps, TracedAttention, equal_lengths, normalise_attentions, tap
from sdpa_onnx.torch_export.kept_torchlib import kept_torchlib
from sdpa_onnx.torch_export.onnx_tidy import detach_tensors, remove_taps, rename_value, strip_metadata
from sdpa_onnx.torch_export.quiet import quiet
from sdpa_onnx.version import __version__

__all__ = ["Translation", "translate", "write_metadata"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The cleaned-up graph of torch.onnx, and its attentions.

    Args:
        model: Inputs and outputs have their final names; axes still have torch's symbols.
        sites: Every attention, in graph order.
        aliases: Symbols that are equal to another symbol.
        limits: The sizes that the trace allows, in its symbols.
    """

    model: ir.Model
    sites: tuple[AttentionSite, ...]
    aliases: dict[str, str]
    limits: tuple[AxisLimit, ...]


def translate(
    program: ExportedProgram,
    *,
    name: str,
    opset: int,
    input_names: Sequence[str],
    limits: tuple[AxisLimit, ...] = (),
) -> Translation:
    """Translate the traced module to ONNX.

    Args:
        program: Changed in place.
        name: Name of the module, for errors.
        opset: 18 to 25.
        input_names: Names of the graph inputs, in order.
        limits: The sizes that the trace allows.

    Raises:
        ExportError: If torch.onnx cannot translate an operator.
    """
    attentions = normalise_attentions(program, opset=opset)
    taps = tap(program, attentions)
    aliases = equal_symbols(program) | equal_lengths(attentions)
    try:
        with quiet(), kept_torchlib():
            written = torch.onnx.export(program, (), dynamo=True, opset_version=opset, verbose=False)
    except Exception as error:  # torch.onnx wraps whatever its translation raises
        raise complex_error(program, error, name, opset) or translation_error(error, name, opset) from error
    if written is None:
        raise ExportError(f"torch.onnx wrote nothing for {name} at opset {opset}.")
    model: ir.Model = written.model
    strip_metadata(model)
    detach_tensors(model)
    outputs = remove_taps(model, taps.num_outputs)
    for value, input_name in zip(list(model.graph.inputs), input_names, strict=True):
        rename_value(model, value, input_name)
    if not model.graph.outputs:
        raise ExportError(f"{name}.forward returns no tensor, so there is nothing to export.")
    _name_outputs(model)
    sites = tuple(_site(attention, taps, list(model.graph.inputs), outputs) for attention in attentions)
    return Translation(model=model, sites=sites, aliases=aliases, limits=limits)


def write_metadata(model: ir.Model, sites: Sequence[AttentionSite], *, from_torch: bool) -> None:
    """Write the metadata: version, exporter, opset, and the sites and spec of the attentions."""
    model.metadata_props["sdpa_onnx.version"] = __version__
    model.metadata_props["sdpa_onnx.exporter"] = (
        f"torch {torch.__version__.split('+')[0]}" if from_torch else "sdpa_onnx"
    )
    model.metadata_props["sdpa_onnx.opset"] = str(model.opset_imports[""])
    model.metadata_props[SITES_KEY] = encode_sites(sites)
    if len(sites) == 1:
        model.metadata_props[SPEC_KEY] = msgspec.json.encode(sites[0].spec).decode()


def _name_outputs(model: ir.Model) -> None:
    """Name the outputs output, or output_0, output_1, ...; inputs keep their names even if they are outputs."""
    outputs = list(model.graph.outputs)
    taken = {value.name for value in model.graph.inputs}
    for position, value in enumerate(outputs):
        if value.is_graph_input() or value in outputs[:position]:
            continue
        name = "output" if len(outputs) == 1 else f"output_{position}"
        rename_value(model, value, f"{name}_value" if name in taken else name)


def _site(
    attention: TracedAttention, taps: Taps, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
) -> AttentionSite:
    names: dict[str, Any] = {}
    for field, node in attention.nodes.items():
        known = node.name in taps.inputs
        value = inputs[taps.inputs[node.name]] if known else outputs[taps.outputs[node.name]]
        names[field] = value.name or ""
    return AttentionSite(name=attention.name, spec=attention.spec, **names)
