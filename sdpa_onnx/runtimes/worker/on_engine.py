"""Time arms on an engine: one of ours, or the file of somebody else, in whichever environment this is."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from .timing import TimingService

__all__ = ["open_engine", "open_service"]


def open_engine(name: str) -> Any:
    """Make an engine.

    Args:
        name: "module:class" of this package, or "FILE.py:class".
    """
    module, _, kind = name.rpartition(":")
    if not module.endswith(".py"):
        return getattr(importlib.import_module("." + module, __package__), kind)()
    specification = importlib.util.spec_from_file_location("sdpa_onnx_engine", module)
    if specification is None or specification.loader is None:
        raise ImportError(module + " is no Python file")
    sys.modules["sdpa_onnx_engine"] = loaded = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(loaded)
    return getattr(loaded, kind)()


def open_service(name: str) -> TimingService:
    """Time arms on an engine; its package is imported now."""
    engine = open_engine(name)
    return TimingService(engine, version=engine.version())
