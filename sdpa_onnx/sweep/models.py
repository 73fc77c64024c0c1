"""The graphs of a run: exported once each, on demand, and kept while the run lasts."""

from dataclasses import dataclass, field

from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.sweep.plan import ModelKey
from sdpa_onnx.sweep.suite import CaseKey
from sdpa_onnx.workflows.export.export_target import export_target

__all__ = ["ModelCache", "sizes_of"]


@dataclass(slots=True)
class ModelCache:
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

    The first axis of lengths is the queries', a second one the keys', the past goes by its name.
    """
    axes = model.facts.axes
    sizes = {axis: case.batch_size for axis in axes if axis.startswith("batch")}
    lengths = [axis for axis in axes if axis not in sizes]
    order = (case.q_seq_len, case.kv_seq_len)
    named = {"past_seq_len": case.past_seq_len} if "past_seq_len" in lengths else {}
    return sizes | {axis: order[min(position, 1)] for position, axis in enumerate(lengths)} | named


def _export(key: ModelKey) -> OnnxModel:
    import torch

    torch.manual_seed(key.seed)
    return export_target(key.spec or key.target, opset=key.opset, form=key.form, dtype=key.dtype)
