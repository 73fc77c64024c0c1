"""A plugin execution provider of ONNX Runtime, by the name of its package; what it leaves runs on the CPU provider.

Such a package has a library that ONNX Runtime registers, and lists devices for it (from onnxruntime 1.23 on). The first
one found is used; the environment variable SDPA_ONNX_ORT_PLUGIN names another. Of its devices the first is taken.
"""

from __future__ import annotations

import functools
import importlib
import os
from importlib import metadata
from typing import Any

from ..onnxruntime_import import import_onnxruntime
from ..pipe import RefusalError
from .nxrt import Nxrt
from .onnxruntime import OrtArm, OrtCpu, plain_settings

__all__ = ["OrtPlugin"]

_CHOICE = "SDPA_ONNX_ORT_PLUGIN"
# ONNX Runtime's own convention of names, and the one that runs on every CPU.
_PREFIX, _NXRT = "onnxruntime-ep-", "nxrt-ep-cpu"


class OrtPlugin(OrtCpu):
    """ONNX Runtime with the first device of a plugin."""

    name = "ort-plugin"
    install = f"pip install {_NXRT}, or the package of another plugin"

    def version(self) -> str:
        """Of the plugin, then of ONNX Runtime; the plugin is not loaded."""
        package = _package()
        return f"{package} {metadata.version(package)}+onnxruntime.{import_onnxruntime().__version__}"

    def unavailable(self) -> str | None:
        """Whether the plugin lists a device; it is loaded for that."""
        if not hasattr(import_onnxruntime(), "register_execution_provider_library"):
            return f"onnxruntime {import_onnxruntime().__version__} takes no plugins; install 1.23 or newer"
        return None if _devices(_package()) else f"{_package()} lists no device on this machine"

    def settings(self, *, threads: int, purpose: str, optimise: bool) -> dict[str, Any]:
        """Those of the CPU provider; the plugin's own stay as they are."""
        return plain_settings(threads=threads, optimise=optimise, provider=_package())

    def refuses(self, nodes: list[Any]) -> str | None:
        """What nxrt-ep-cpu takes and ignores, as nxrt does; what other plugins are given is tried."""
        return Nxrt().refuses(nodes) if _package() == _NXRT else None

    def precision(self, dtype: str, purpose: str) -> str:
        """The model's own; a plugin declares nothing."""
        return dtype

    def open(self, job: dict[str, Any]) -> OrtArm:
        """Create the session of a job with the plugin's device."""
        package = job["settings"]["provider"]
        devices = _devices(package)
        if not devices:
            raise RefusalError(f"found no device of {package}")
        return _PluginArm({**job, "settings": {**job["settings"], "provider": devices[0].ep_name}}, devices[0])


class _PluginArm(OrtArm):
    def __init__(self, job: dict[str, Any], device: Any) -> None:
        self._plugin_device = device
        super().__init__(job)
        self._require_nodes("Use ort-cpu, or a form that the plugin has kernels for")

    def _create(self, model: str | bytes, options: Any) -> Any:
        options.add_provider_for_devices([self._plugin_device], self._provider_options())
        return import_onnxruntime().InferenceSession(model, options)


def _package() -> str:
    """The distribution that is used.

    Raises:
        ImportError: There is none.
    """
    chosen = os.environ.get(_CHOICE)
    names = {(each.metadata["Name"] or "").lower().replace("_", "-") for each in metadata.distributions()}
    found = sorted(name for name in names if name.startswith(_PREFIX) or name == _NXRT)
    if chosen or not found:
        metadata.version(chosen or _NXRT)  # raises
    return chosen or found[0]


@functools.cache
def _devices(package: str) -> list[Any]:
    """Register the library, once a process, and list what came with it."""
    ort = import_onnxruntime()
    before = {device.ep_name for device in ort.get_ep_devices()}
    module = importlib.import_module(package.replace("-", "_"))
    ort.register_execution_provider_library(package, module.get_library_path())
    return [device for device in ort.get_ep_devices() if device.ep_name not in before]
