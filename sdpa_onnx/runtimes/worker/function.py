"""Call one of our own functions, bytes of JSON in and out. Runs in our own environment only."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .own_errors import reported_errors

__all__ = ["FunctionService", "open_service"]


class FunctionService:
    """One function."""

    keeps_prints = False
    stage = "run"

    def __init__(self, function: Callable[[bytes], bytes]) -> None:
        self.version = ""
        self._function = function

    def do_call(self, argument: str) -> tuple[dict[str, Any], dict[str, Any]]:
        with reported_errors():
            return {"value": self._function(argument.encode()).decode()}, {}


def open_service(name: str) -> FunctionService:
    """Import a function, named "module:function", with all that its module imports."""
    module, _, function = name.partition(":")
    return FunctionService(getattr(importlib.import_module(module), function))
