"""The graphs of a run: each exported once, on demand, and kept for the whole run."""

from dataclasses import dataclass, field

from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.sweep.plan import ModelKey
from sdpa_onnx.sweep.suite import CaseKey
from sdpa_onnx.workflows.export.export_target import export_target

__all__ = ["ModelCache", "sizes_of"]


@dataclass(slots=True)
class ModelCache:
    """Exported graphs by their key."""

    made: dict[ModelKey, OnnxModel] = field(default_factory=dict)

    def get(self, key: ModelKey) -> OnnxModel:
        """Export a graph, or return it from the cache.

        Raises:
            ExportError: If torch or onnx refuses.
            PlanError: If the target does not exist.
        """
        if key not in self.made:
            self.made[key] = _export(key)
        return self.made[key]


def sizes_of(model: OnnxModel, case: CaseKey) -> dict[str, int]:
    """Sizes of a case by the names of the axes of a graph.

    The first length axis is that of the queries, the second that of the keys; the past is found by name.
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
