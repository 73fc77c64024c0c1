"""Attributes of the nodes of a model, for an engine that asks before it loads what a runtime is known to ignore."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["attributes_of", "has_windows"]

_WINDOWS = ("left_window_size", "right_window_size")


def attributes_of(nodes: list[Any], op_type: str, domain: str = "") -> list[Mapping[str, Any]]:
    """Of each node of an operator."""
    return [node["attributes"] for node in nodes if (node["domain"], node["op_type"]) == (domain, op_type)]


def has_windows(nodes: list[Any]) -> bool:
    """Whether an Attention hides keys by a window; -1 hides none."""
    return any(given.get(name, -1) >= 0 for given in attributes_of(nodes, "Attention") for name in _WINDOWS)
