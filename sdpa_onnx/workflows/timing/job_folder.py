"""Write the models and inputs of a comparison to a temporary folder, once, as jobs for worker processes.

Starts no process; see `measure.schedule`.
"""

import errno
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.errors import FolderError, ModelError
from sdpa_onnx.graph.files.held_folder import HeldFolder, remove_left_over
from sdpa_onnx.graph.files.large import number_bytes
from sdpa_onnx.graph.files.saved_files import LinkedFiles
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.measure.arm_settings import arm_settings, place_of
from sdpa_onnx.runtimes.arm_job import ArmJob
from sdpa_onnx.runtimes.array_files import write_arrays
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.runtimes.engine_runtime import graph_names
from sdpa_onnx.runtimes.worker.on_sdpa_onnx import IMPORTS_SUFFIX
from sdpa_onnx.torch_export.target_text import TARGET_MODULE
from sdpa_onnx.workflows.check.lifted_model import LiftedModel, with_lifted_sites
from sdpa_onnx.workflows.check.run_context import runs_module

__all__ = ["Arm", "JobFolder", "longer", "write_module"]

Feeds = Mapping[str, NDArray[np.generic]]
# The lowest with names of classes that are not ASCII.
_PICKLE_PROTOCOL = 4
_FULL_HINT = "Free some space, or name another folder in the environment variable TMPDIR."


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One arm of a comparison: a model on a runtime.

    Args:
        name: Unique in the comparison.
        model: The model.
        runtime: The runtime.
        threads: Threads inside one operator; None = those of the comparison.
        options: Settings of the runtime that differ from the default, see `measure.arm_settings`.
        python: Interpreter of another environment that has the runtime; None = ours.
        environment: Label of that environment for the record.
        lifted: The model with every attention that can be read, where it was read before; None = it was not.
    """

    name: str
    model: OnnxModel
    runtime: Runtime
    threads: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    python: Path | None = None
    environment: str = ""
    lifted: LiftedModel | None = None

    @property
    def read(self) -> OnnxModel:
        """The model with its attentions: those that its metadata lists, else every one that can be read."""
        if self.lifted is not None:
            return self.lifted.model
        return self.model if self.model.sites else with_lifted_sites(self.model).model

    @property
    def form(self) -> str:
        return "" if runs_module(self.runtime.name) else self.model.facts.form.value

    @property
    def opset(self) -> int:
        return 0 if runs_module(self.runtime.name) else self.model.opset


@dataclass(slots=True)
class JobFolder:
    """A temporary folder of models and inputs; a context manager that removes it."""

    _folder: HeldFolder = field(init=False)
    _models: dict[int, tuple[OnnxModel, LinkedFiles, Path]] = field(default_factory=dict, init=False)
    _inputs: list[tuple[Feeds, Path]] = field(default_factory=list, init=False)

    def __enter__(self) -> Self:
        remove_left_over()
        self._folder = HeldFolder("bench")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def job(
        self,
        arm: Arm,
        feeds: Feeds,
        *,
        threads: int,
        new_length: Feeds | None = None,
        copies: int = 1,
        model: OnnxModel | None = None,
    ) -> ArmJob:
        """Write the files of an arm; models and inputs that are already written are shared.

        Args:
            arm: The arm.
            feeds: Arrays by input name.
            threads: Threads inside one operator, if the arm does not set its own.
            new_length: The same at other sizes.
            copies: Sets of inputs that calls use in turn.
            model: Another model than the arm's, such as one with more outputs.

        Raises:
            ModelError: If the model cannot be written.
            PlanError: If the arm's options are wrong.
            FolderError: If the disk is full.
        """
        own = arm.model if model is None else model
        count, engine = arm.threads or threads, place_of(arm.runtime.name)
        settings = arm_settings(arm.runtime.name, threads=count, options=arm.options)
        try:
            path, linked = self._model(own)
            if not engine:
                write_module(own, path.with_suffix(".pt"))
            inputs = self._arrays(feeds)
            longer_inputs = None if new_length is None else self._arrays(new_length)
        except OSError as error:
            hint = _FULL_HINT if error.errno == errno.ENOSPC else None
            raise FolderError(f"Cannot write {self._folder.name}: {error.strerror or error}.", hint=hint) from error
        return ArmJob(
            runtime=arm.runtime.name,
            engine=engine,
            model=path,
            folder=linked.folder,
            inputs=inputs,
            new_length_inputs=longer_inputs,
            threads=count,
            names=graph_names(own),
            settings=settings,
            python=arm.python,
            copies=copies,
        )

    def model_bytes(self, arm: Arm) -> int | None:
        """Size of the arm's model, external tensors included; None if it was not written."""
        if id(arm.model) not in self._models:
            return None
        model, linked, path = self._models[id(arm.model)]
        return path.stat().st_size + (number_bytes(model.ir) if linked.folder is not None else 0)

    def _model(self, model: OnnxModel) -> tuple[Path, LinkedFiles]:
        if id(model) not in self._models:
            linked = model.linked()  # kept: it may own a folder that the worker reads from
            path = Path(self._folder.name) / f"model{len(self._models)}.onnx"
            path.write_bytes(linked.message)
            self._models[id(model)] = model, linked, path
        _, linked, path = self._models[id(model)]
        return path, linked

    def _arrays(self, feeds: Feeds) -> Path:
        for known, folder in self._inputs:
            if list(known) == list(feeds) and all(_same(known[name], feeds[name]) for name in feeds):
                return folder
        folder = write_arrays(Path(self._folder.name) / f"inputs{len(self._inputs)}", feeds)
        self._inputs.append((feeds, folder))
        return folder


def longer(sizes: Mapping[str, int]) -> dict[str, int]:
    """Other sizes to time the first run at a new length: each is the next prime, except 1 and batch sizes.

    Axes of equal size stay equal. Primes, so that kernels that are tuned for multiples have no advantage.
    """
    return {axis: size if axis.startswith("batch") or size < 2 else _next_prime(size) for axis, size in sizes.items()}


def _next_prime(number: int) -> int:
    while True:
        number += 1
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            return number


def _same(one: NDArray[np.generic], other: NDArray[np.generic]) -> bool:
    return one is other or (one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())


def write_module(model: OnnxModel, path: Path) -> None:
    """Write the module that a graph was exported from, which the runtime `torch` runs; nothing if it has none.

    Twin: `load_module` in runtimes/worker/on_sdpa_onnx.py.

    Raises:
        ModelError: If it cannot be pickled.
    """
    if model.source is None or path.exists():
        return
    import torch

    try:
        path.with_suffix(IMPORTS_SUFFIX).write_text(json.dumps(_imports_of(model.source)), encoding="utf-8")
        torch.save((model.source, model.bind), path, pickle_protocol=_PICKLE_PROTOCOL)
    except Exception as error:
        path.unlink(missing_ok=True)  # another arm must not read an incomplete file
        raise ModelError(f"The module of the model cannot be sent to another process: {error}.") from error


def _imports_of(source: object) -> dict[str, object]:
    """Where another process finds the classes of a module: files by module name, and folders to import others from.

    A target such as FILE.py:Class is imported under a name that no path leads to, and its file may import others of its
    folder. Twin: runtimes/worker/on_sdpa_onnx.py, which imports them.
    """
    import torch

    parts = source.modules() if isinstance(source, torch.nn.Module) else (source,)
    names = sorted({type(part).__module__ for part in parts})
    found = {name: sys.modules[name].__file__ for name in names if getattr(sys.modules.get(name), "__file__", None)}
    files = {name: str(Path(file).resolve()) for name, file in found.items() if file is not None}
    packages = {name: Path(file).parents[_depth(name, Path(file))] for name, file in files.items()}
    return {
        "files": {name: file for name, file in files.items() if name.startswith(TARGET_MODULE)},
        "folders": list(dict.fromkeys(map(str, packages.values()))),
    }


def _depth(name: str, file: Path) -> int:
    """How many folders the file of a module is below the folder that its package is imported from."""
    return name.count(".") + (file.name == "__init__.py")
