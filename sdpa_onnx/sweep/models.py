"""The graphs of a run: exported once each, on demand, and kept while the run lasts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.sweep.plan import ATTENTION_OPSET, ModelKey
from sdpa_onnx.sweep.suite import CaseKey
from sdpa_onnx.workflows.feeds import axis_names

__all__ = ["Models", "sizes_of", "traced_sizes"]


@dataclass(slots=True)
class Models:
    """Exported graphs by what they were made from."""

    made: dict[ModelKey, OnnxModel] = field(default_factory=dict)

    def get(self, key: ModelKey) -> OnnxModel:
        """Export, or take what was exported before.

        Raises:
            ExportError: If torch or onnx refuses.
            PlanError: If the target does not exist.
        """
        if key not in self.made:
            self.made[key] = _export(key)
        return self.made[key]


def sizes_of(model: OnnxModel, case: CaseKey) -> dict[str, int]:
    """The case's sizes by the names of the graph's axes.

    The first axis of lengths is the queries', a second one the keys'.
    """
    axes = axis_names(model)
    sizes = {axis: case.batch_size for axis in axes if axis.startswith("batch")}
    lengths = [axis for axis in axes if axis not in sizes]
    order = (case.q_seq_len, case.kv_seq_len)
    return sizes | {axis: order[min(position, 1)] for position, axis in enumerate(lengths)}


def traced_sizes(model: OnnxModel) -> Mapping[str, int] | None:
    """Sizes of the sample that the model was traced at, if the exporter noted them."""
    import msgspec

    text = model.ir.metadata_props.get("sdpa_onnx.traced_sizes")
    return msgspec.json.decode(text, type=dict[str, int]) if text else None


def _export(key: ModelKey) -> OnnxModel:
    import torch

    from sdpa_onnx.torch_export.exporter import export_module, export_spec
    from sdpa_onnx.torch_export.targets import resolve_target

    if key.spec is not None:
        if key.opset >= ATTENTION_OPSET:
            return export_spec(key.spec, opset=key.opset, form="attention", dtype=key.dtype)
        return export_spec(key.spec, opset=key.opset, form="decomposed", dtype=key.dtype)
    torch.manual_seed(key.seed)
    target = resolve_target(key.target)
    return export_module(target.module, target.sample_inputs, opset=key.opset)
