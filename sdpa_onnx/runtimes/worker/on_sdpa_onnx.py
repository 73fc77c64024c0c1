"""Arms on any runtime that is registered with us. Runs in our own environment only.

Times what the runtime's own `bind` gives; the first run is part of that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sdpa_onnx.graph.late_imports import defer_slow_imports
from sdpa_onnx.runtimes.base import LoadOptions, Purpose

from .arrays import Bits
from .own_errors import reported_errors
from .pipe import RefusalError
from .timing import TimingService

__all__ = ["IMPORTS_SUFFIX", "RegisteredArms", "load_module", "open_service"]

# Of the file next to a module that says where its classes are imported from.
IMPORTS_SUFFIX = ".imports.json"


class RegisteredArms:
    """Opens arms."""

    _runtime: Any = None

    def version(self) -> str:
        """Of the runtime of the last job."""
        return str(self._runtime.version())

    def import_for(self, runtime: str) -> None:
        """Import the package of a runtime."""
        from sdpa_onnx.runtimes.torch_compiled import module_runtime

        with reported_errors():
            module_runtime(runtime).version()

    def open(self, job: dict[str, Any]) -> _Arm:
        """Load a job in its runtime; see `arm_job.ArmJob`."""
        from sdpa_onnx.runtimes.torch_compiled import module_runtime

        with reported_errors():
            self._runtime = module_runtime(job["runtime"])
            return _Arm(job, self._runtime)


class _Prepared:
    def __init__(self, session: Any, feeds: dict[str, Any]) -> None:
        self.session = session
        self.feeds = feeds
        self.bound: Any = None

    def first_run(self) -> Callable[[], object]:
        with reported_errors():
            self.bound = self.session.bind(self.feeds)
        call: Callable[[], object] = self.bound
        return call

    def outputs(self) -> dict[str, Bits]:
        """What the bound run wrote; those of one more run, where the runtime's bound run does not keep them."""
        from sdpa_onnx.runtimes.array_files import to_bits

        read = getattr(self.bound, "outputs", None)
        return to_bits(read() if read is not None else self.session.run(self.feeds))


class _Arm:
    def __init__(self, job: dict[str, Any], runtime: Any) -> None:
        from sdpa_onnx.graph.model import load_model
        from sdpa_onnx.runtimes.torch_compiled import TORCH_COMPILE, use_compile_cache

        if job["settings"]:
            raise RefusalError(f"takes no setting '{min(job['settings'])}'")
        if job["folder"] is not None:
            import onnx

            message = onnx.load_from_string(Path(job["model"]).read_bytes())
            model = load_model(message, folder=Path(job["folder"]))
        else:
            model = load_model(job["model"])
        module = Path(job["model"]).with_suffix(".pt")
        if module.exists():  # what the graph was exported from; `workflows.timing.job_folder` writes it
            source, bind = load_module(module, module.with_suffix(IMPORTS_SUFFIX))
            model = dataclasses.replace(model, source=source, bind=bind)
        if job["runtime"] == TORCH_COMPILE:
            use_compile_cache(Path(job["model"]).parent)
        options = LoadOptions(threads=job["threads"], purpose=Purpose.TIMING)
        self._session = runtime.load(model, options).__enter__()
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(job["threads"])

    def prepare(self, feeds: dict[str, Bits]) -> _Prepared:
        from sdpa_onnx.runtimes.array_files import from_bits

        return _Prepared(self._session, from_bits(feeds))

    def ran(self, folder: str, *, with_graph: bool) -> dict[str, Any]:
        """The runtime's own report."""
        with reported_errors():
            return {"report": dataclasses.asdict(self._session.ran())}

    def close(self) -> None:
        """Free the session."""
        self._session.__exit__(None, None, None)


def load_module(path: Path, places: Path) -> tuple[Any, Any]:
    """Read what a graph was exported from, and how it is called; see `workflows.timing.job_folder.write_module`."""
    import torch

    _import_classes(places)
    source, bind = torch.load(path, weights_only=False)
    source.eval()  # as it is exported
    return source, bind


def _import_classes(places: Path) -> None:
    """Import the files that define the classes of a module, by the names under which it was pickled."""
    read = json.loads(places.read_text(encoding="utf-8"))
    sys.path += [folder for folder in read["folders"] if folder not in sys.path]
    for name, file in read["files"].items():
        if name in sys.modules:
            continue
        specification = importlib.util.spec_from_file_location(name, file)
        if specification is None or specification.loader is None:
            raise RefusalError(f"cannot import {file}")
        sys.modules[name] = module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)


def open_service(runtime: str) -> TimingService:
    """Time arms on registered runtimes; import the package of one now, so that processes import side by side."""
    defer_slow_imports()  # before anything imports onnx_ir, so what does is imported in functions
    arms = RegisteredArms()
    if runtime:
        with contextlib.suppress(Exception):  # `load` tries again, and reports it
            arms.import_for(runtime)
    return TimingService(arms, version="")
