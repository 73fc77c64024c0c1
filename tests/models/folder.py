"""The committed models folder, and the structure of a graph that does not depend on the version of torch."""

from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.export.models_folder import ManifestRow, read_manifest

FOLDER = Path(__file__).resolve().parents[2] / "models"
ROWS = {row.file.removesuffix(".onnx"): row for row in read_manifest(FOLDER)}

Value = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Structure:
    """A graph without inner names."""

    opset: int
    nodes: dict[str, int]
    attributes: tuple[tuple[str, str], ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    specs: tuple[AttentionSpec, ...]


def structure_of(model: OnnxModel) -> Structure:
    """Operators, inputs and outputs with names, types and shapes, attributes of Attention nodes, and specs."""
    attentions = [node for node in model.ir.graph if node.op_type == "Attention"]
    return Structure(
        opset=model.opset,
        nodes=dict(sorted(model.node_counts().items())),
        attributes=tuple(
            (name, f"{attribute.value:.6g}")
            for node in attentions
            for name, attribute in sorted(node.attributes.items())
        ),
        inputs=tuple(_value(value) for value in model.ir.graph.inputs),
        outputs=tuple(_value(value) for value in model.ir.graph.outputs),
        specs=tuple(site.spec for site in model.sites),
    )


def asked_form(row: ManifestRow) -> Form | None:
    """The form in the file name; None = the default of its opset."""
    name = Path(row.file).stem.partition("-")[2]
    return Form(name) if name else None


def is_quick(row: ManifestRow) -> bool:
    """Whether the graph is built without torch, or is one of a few traced ones."""
    return row.exporter == "sdpa_onnx" or row.file in ("gpt2/self/18.onnx", "mistral-7b/self/23.onnx")


def _value(value: ir.Value) -> Value:
    return (value.name or "", str(value.dtype), tuple(str(dim) for dim in value.shape or ()))
