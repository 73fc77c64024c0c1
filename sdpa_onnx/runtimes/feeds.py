"""Check the arrays for a runtime against the graph, before any runtime sees them.

Runtimes word these faults differently, some accept them silently (OpenVINO
casts float64, torch broadcasts), so one door words them once. Whether sizes
fit each other is left to the runtime, except where it is known not to look.
"""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.model import OnnxModel

__all__ = ["check_sizes_fit", "checked_feeds", "shape_words", "type_word"]

Array = NDArray[np.generic]


def checked_feeds(runtime: str, model: OnnxModel, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays in the order of the graph's inputs.

    Args:
        runtime: Name of the runtime, for the error text.
        model: The model whose graph inputs are the contract.
        inputs: Arrays by input name; an input with a default may be left out.

    Raises:
        SessionError: Unknown or missing name, wrong element type, rank or fixed size.
    """
    unknown = sorted(set(inputs) - set(model.input_names))
    if unknown:
        raise SessionError(f"{runtime} got an array for {_quoted(unknown)}; the model takes {_takes(model)}.")
    optional = set(model.ir.graph.initializers)
    missing = [name for name in model.input_names if name not in inputs and name not in optional]
    if missing:
        raise SessionError(f"{runtime} got no array for {_quoted(missing)}; the model takes {_takes(model)}.")
    feeds = {name: inputs[name] for name in model.input_names if name in inputs}
    for name, array in feeds.items():
        _check_array(runtime, model.input_value(name), array)
    return feeds


def check_sizes_fit(runtime: str, model: OnnxModel, feeds: Mapping[str, Array]) -> None:
    """Refuse queries, keys and values that do not fit each other; for runtimes that do not look.

    5 keys and 3 values: torch 2.13.0 reads past the end, OpenVINO 2026.4.1
    gives an output without rows; both without a word.

    Raises:
        SessionError: Batch sizes differ, or there are not as many values as keys.
    """
    for site in model.sites:
        if not {site.query, site.key, site.value} <= set(feeds):
            continue
        query, key, value = (feeds[name].shape for name in (site.query, site.key, site.value))
        length = site.spec.layout.length_axis
        if not (query[0] == key[0] == value[0] and key[length] == value[length]):
            raise SessionError(
                f"{runtime} failed: '{site.query}' {query}, '{site.key}' {key} and '{site.value}' {value} do not fit.",
                hint="Batch sizes must be equal, and there must be as many values as keys.",
            )


def type_word(value: ir.Value) -> str | None:
    """The element type in numpy's words, or None where the graph does not state one that numpy has."""
    if value.dtype is None or value.dtype in (ir.DataType.UNDEFINED, ir.DataType.STRING):
        return None
    return value.dtype.numpy().name


def shape_words(value: ir.Value, shape: tuple[int, ...]) -> str:
    """What the graph takes instead of a shape, or "" if it takes it: rank and fixed sizes."""
    if value.shape is None:
        return ""
    fits = len(value.shape) == len(shape) and all(
        not isinstance(size, int) or size == actual for size, actual in zip(value.shape, shape, strict=True)
    )
    return "" if fits else f"({', '.join(_size_word(size) for size in value.shape)})"


def _check_array(runtime: str, value: ir.Value, array: Array) -> None:
    word = type_word(value)
    if word is not None and array.dtype.name != word:
        raise SessionError(f"{runtime} got {array.dtype.name} for input '{value.name}'; the model takes {word}.")
    takes = shape_words(value, array.shape)
    if takes:
        raise SessionError(f"{runtime} got shape {array.shape} for input '{value.name}'; the model takes {takes}.")


def _size_word(size: int | ir.SymbolicDim) -> str:
    return str(size) if isinstance(size, int) else str(size.value or "?")


def _takes(model: OnnxModel) -> str:
    return _quoted(list(model.input_names)) if model.input_names else "none"


def _quoted(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
