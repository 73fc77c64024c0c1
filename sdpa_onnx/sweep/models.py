"""The graphs of a run: each exported once, on demand, and shared by the processes of a run through a folder.

A graph is written with the module that it was exported from, which the runtime `torch` runs.
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.worker.on_sdpa_onnx import IMPORTS_SUFFIX, load_module
from sdpa_onnx.sweep.plan import ModelKey, cell_id
from sdpa_onnx.sweep.suite import CaseKey
from sdpa_onnx.workflows.export.export_target import export_target
from sdpa_onnx.workflows.timing.job_folder import write_module

__all__ = ["ModelCache", "sizes_of"]


@dataclass(slots=True)
class ModelCache:
    """Exported graphs by their key.

    Args:
        folder: Where processes of one run share graphs; None = this process only.
        made: Those that this process has.
    """

    folder: Path | None = None
    made: dict[ModelKey, OnnxModel] = field(default_factory=dict)

    def get(self, key: ModelKey) -> OnnxModel:
        """Export a graph, or return it from the cache or the folder.

        Raises:
            ExportError: If torch or onnx refuses.
            PlanError: If the target does not exist.
        """
        if key not in self.made:
            self.made[key] = self._shared(key) or _export(key)
        return self.made[key]

    def share(self, key: ModelKey) -> None:
        """Write a graph that this process has into the folder, for the other processes.

        One that cannot be written is exported again there: its module cannot be pickled, or the disk is full.
        """
        if self.folder is None or key not in self.made:
            return
        model, path = self.made[key], self.folder / f"{cell_id(msgspec.to_builtins(key))}.onnx"
        draft = path.with_suffix(f".{os.getpid()}.onnx")
        try:
            write_module(model, path.with_suffix(".pt"))
            model.save(draft)
            draft.rename(path)  # last, so that a graph that is there is complete
        except (ModelError, OSError):
            draft.unlink(missing_ok=True)

    def _shared(self, key: ModelKey) -> OnnxModel | None:
        """A graph that another process has written, or None."""
        path = self.folder / f"{cell_id(msgspec.to_builtins(key))}.onnx" if self.folder is not None else None
        if path is None or not path.exists():
            return None
        model, module = load_model(path), path.with_suffix(".pt")
        if not module.exists():
            return model
        source, bind = load_module(module, module.with_suffix(IMPORTS_SUFFIX))
        return replace(model, source=source, bind=bind)


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
