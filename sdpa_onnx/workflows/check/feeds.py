"""Inputs of a whole graph at chosen sizes: shapes from its symbolic axes, numbers by seed.

Attention's own inputs are drawn by `core.attention.inputs`; here a module's inputs are.
"""

import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.spec import AttentionCase, Dtype
from sdpa_onnx.errors import ModelError, PlanError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.model_facts import parts_of_axis
from sdpa_onnx.runtimes.feeds import shape_words, type_word

__all__ = [
    "Feeds",
    "bare_case",
    "check_type",
    "draw_feeds",
    "feeds_of",
    "read_arrays",
    "read_inputs",
    "resolve_shape",
]

Feeds = dict[str, NDArray[np.generic]]
Sizes = Mapping[str, int]

# What damaged bytes make numpy and zipfile raise; RuntimeError: a member with a password.
_UNREADABLE = (
    *(ValueError, TypeError, EOFError, AttributeError, KeyError, IndexError, SyntaxError, RuntimeError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
)
# Sizes of the axes of a bare attention, by the names that our exporter gives them.
_BARE_AXES = ("batch_size", "q_seq_len", "kv_seq_len", "past_seq_len")


def bare_case(model: OnnxModel, sizes: Sizes, dtype: Dtype | None = None) -> AttentionCase | None:
    """The case at these sizes if the model is one bare attention, else None."""
    if not model.is_bare_attention:
        return None
    site = model.sites[0]
    axes = _bare_sizes(model, site.inputs, sizes)
    return AttentionCase(spec=site.spec, dtype=dtype or model.facts.dtype, **axes)


def draw_feeds(model: OnnxModel, sizes: Sizes, *, spread: float, seed: int, gain: float = 1.0) -> Feeds:
    """Draw every input of a graph.

    A bare attention gets the logit spread asked for. A module gets N(0, gain^2)
    on its floating-point inputs: its own weights decide the spread, and the
    caller chooses the gain. Boolean inputs are True three times out of four and
    always at position 0 of the last axis, integers are 0 or 1.

    Args:
        model: The graph.
        sizes: Size of every named axis.
        spread: Standard deviation of the logits of a bare attention.
        seed: Same seed, same arrays.
        gain: Standard deviation of a module's inputs.

    Raises:
        ModelError: If an axis has no size, or an input is of a type that cannot be drawn.
    """
    case = bare_case(model, sizes)
    if case is not None:
        return feeds_of(model, draw_inputs(case, spread=spread, seed=seed), sizes)
    rng = np.random.default_rng(seed)
    return {value.name or "": _draw(value, resolve_shape(value, sizes), rng, gain) for value in model.ir.graph.inputs}


def feeds_of(model: OnnxModel, inputs: AttentionInputs, sizes: Sizes) -> Feeds:
    """The inputs of a bare attention by the names of the graph; a mask is cut down to the shape that the graph has."""
    drawn = inputs.named()
    return {name: _broadcast_back(model, name, drawn[field], sizes) for field, name in model.sites[0].inputs.items()}


def read_inputs(path: Path, model: OnnxModel) -> Feeds:
    """Read arrays by input name from an .npz file.

    Raises:
        PlanError: If it cannot be read, lacks an input, or one is of another type, rank or fixed size than the graph's.
    """
    arrays = read_arrays(path)
    missing = [name for name in model.input_names if name not in arrays]
    if missing:
        has = ", ".join(arrays) or "nothing"
        raise PlanError(f"{path} lacks the input '{missing[0]}'; it has {has}.", hint="Name arrays as the inputs.")
    for value in model.ir.graph.inputs:
        array = arrays[value.name or ""]
        check_type(path, value, array)
        takes = shape_words(value, array.shape)
        if takes:
            raise PlanError(f"{path}: '{value.name}' has shape {array.shape}, the model takes {takes}.")
    return {name: arrays[name] for name in model.input_names}


def check_type(path: Path, value: ir.Value, array: NDArray[np.generic]) -> None:
    """Refuse an array that is of another element type than a value of the graph, or of no type of numbers.

    Raises:
        PlanError: If it is.
    """
    has, takes = array.dtype.name, type_word(value)
    if takes is None and not _are_numbers(array):
        raise PlanError(f"{path}: '{value.name}' is {has}, which is no type of real numbers.")
    if takes is not None and has != takes:
        verb = "takes" if value.is_graph_input() else "gives"
        raise PlanError(f"{path}: '{value.name}' is {has}, the model {verb} {takes}.")


def _are_numbers(array: NDArray[np.generic]) -> bool:
    import ml_dtypes

    return array.dtype.kind in "biuf" or array.dtype == ml_dtypes.bfloat16


def read_arrays(path: Path) -> Feeds:
    """Read every array of an .npz file.

    Numpy stores bfloat16 as two bytes without a type; they are read back as bfloat16,
    the only such type that a model of ours has.

    Raises:
        PlanError: If it cannot be read.
    """
    import ml_dtypes

    if path.exists() and not path.is_dir() and not path.is_file():  # a pipe would be waited for
        raise PlanError(f"{path} is not a regular file.", hint="Write it with numpy.savez.")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except OSError as error:
        raise PlanError(f"Cannot read {path}: {error.strerror or error}.") from error
    except _UNREADABLE as error:
        raise PlanError(f"{path} is no .npz file of plain arrays.", hint="Write it with numpy.savez.") from error
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):  # of a member that is no .npy file, bytes
        raise PlanError(f"{path} is no .npz file of plain arrays.", hint="Write it with numpy.savez.")
    untyped = np.dtype("V2")
    return {name: array.view(ml_dtypes.bfloat16) if array.dtype == untyped else array for name, array in arrays.items()}


def resolve_shape(value: ir.Value, sizes: Sizes) -> tuple[int, ...]:
    """The shape of a graph input at these sizes.

    Raises:
        ModelError: If the shape is unknown or an axis has no size.
    """
    if value.shape is None:
        raise ModelError(f"Input '{value.name}' has no shape.", hint="Run shape inference on the model first.")
    return tuple(_size(size, sizes, value.name or "") for size in value.shape)


def _size(size: int | ir.SymbolicDim, sizes: Sizes, where: str) -> int:
    if isinstance(size, int):
        return size
    text = str(size.value)
    if text == "total_seq_len" and text not in sizes:
        return sizes.get("past_seq_len", 0) + sizes.get("kv_seq_len", 0)
    parts_of_axis(size, where)
    total = 0
    for sign, term in re.findall(r"([+-]?)\s*([A-Za-z_]\w*|\d+)", text):
        if not term.isdigit() and term not in sizes:
            raise ModelError(f"Axis '{term}' of input '{where}' has no size.", hint=f"Known: {', '.join(sizes)}.")
        amount = int(term) if term.isdigit() else sizes[term]
        total += -amount if sign == "-" else amount
    return total


def _bare_sizes(model: OnnxModel, inputs: Mapping[str, str], sizes: Sizes) -> dict[str, int]:
    """Sizes of the case, read off the shapes of query, key and past."""
    shapes = {field: resolve_shape(model.input_value(name), sizes) for field, name in inputs.items()}
    axis = 2 if len(shapes["query"]) == 4 else 1
    past = shapes["past_key"][2] if "past_key" in shapes else 0
    found = (shapes["query"][0], shapes["query"][axis], shapes["key"][axis], past)
    return dict(zip(_BARE_AXES, found, strict=True))


def _broadcast_back(model: OnnxModel, name: str, array: NDArray[np.generic], sizes: Sizes) -> NDArray[np.generic]:
    """Cut a mask down to the shape that the graph declares (it may broadcast)."""
    shape = resolve_shape(model.input_value(name), sizes)
    if array.shape == shape:
        return array
    while array.ndim > len(shape):
        array = array[0]
    pairs = list(zip(array.shape, shape, strict=False))
    if array.ndim != len(shape) or any(1 != has < wanted for has, wanted in pairs):
        raise ModelError(
            f"Input '{name}' has shape {shape}, but the attention that is described has {array.shape} there.",
            hint="The metadata does not belong to this graph; export it again.",
        )
    picked = tuple(
        slice(0, wanted) if wanted <= has else slice(None) for wanted, has in zip(shape, array.shape, strict=True)
    )
    return np.ascontiguousarray(np.broadcast_to(array[picked], shape))


def _draw(value: ir.Value, shape: tuple[int, ...], rng: np.random.Generator, gain: float) -> NDArray[np.generic]:
    if value.dtype is None:
        raise ModelError(f"Input '{value.name}' has no element type.")
    kind = value.dtype.numpy()
    if value.dtype is ir.DataType.BOOL:
        mask = np.asarray(rng.random(shape) < 0.75)
        if mask.ndim:  # a single one is a choice, not a mask
            mask[..., :1] = True
        return mask
    if value.dtype.is_floating_point():
        return (gain * rng.standard_normal(shape, dtype=np.float32)).astype(kind)
    if value.dtype.is_integer():
        return rng.integers(0, 2, shape).astype(kind)
    raise ModelError(f"Input '{value.name}' is of type {value.dtype}, for which no inputs can be drawn.")
