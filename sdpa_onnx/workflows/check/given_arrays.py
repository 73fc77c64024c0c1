"""Read the arrays of an .npz file, or take given ones, and compare them with what the graph declares."""

import lzma
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.feeds import shape_words, type_word
from sdpa_onnx.workflows.check.feeds import Feeds

__all__ = ["check_type", "checked_inputs", "read_arrays", "read_inputs"]

# What damaged bytes make numpy and zipfile raise; RuntimeError: a member with a password.
_UNREADABLE = (
    *(ValueError, TypeError, EOFError, AttributeError, KeyError, IndexError, SyntaxError, RuntimeError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
)


def read_inputs(path: Path, model: OnnxModel) -> Feeds:
    """Read arrays by input name from an .npz file.

    Raises:
        PlanError: If it cannot be read, lacks an input, or one is of another type, rank or fixed size than the graph's.
    """
    return checked_inputs(read_arrays(path), model, source=str(path))


def checked_inputs(arrays: Feeds, model: OnnxModel, *, source: str) -> Feeds:
    """The arrays that are inputs of a model.

    Args:
        arrays: By input name; others are ignored.
        model: The model.
        source: Where they come from, for the error text.

    Raises:
        PlanError: If an input is missing, or one is of another type, rank or fixed size than the graph's.
    """
    missing = [name for name in model.input_names if name not in arrays]
    if missing:
        has = ", ".join(arrays) or "nothing"
        raise PlanError(f"{source} lacks the input '{missing[0]}'; it has {has}.", hint="Name arrays as the inputs.")
    for value in model.ir.graph.inputs:
        array = arrays[value.name or ""]
        check_type(source, value, array)
        takes = shape_words(value, array.shape)
        if takes:
            raise PlanError(f"{source}: '{value.name}' has shape {array.shape}, the model expects {takes}.")
    return {name: arrays[name] for name in model.input_names}


def check_type(source: str | Path, value: ir.Value, array: NDArray[np.generic]) -> None:
    """Refuse an array that is of another element type than a value of the graph, or of no type of numbers.

    Raises:
        PlanError: If it is.
    """
    has, takes = array.dtype.name, type_word(value)
    is_number = array.dtype.kind in "biuf" or has == "bfloat16"
    if takes is None and not is_number:
        raise PlanError(f"{source}: '{value.name}' is {has}, which is not a type of real numbers.")
    if takes is not None and has != takes:
        verb = "expects" if value.is_graph_input() else "returns"
        raise PlanError(f"{source}: '{value.name}' is {has}, the model {verb} {takes}.")


def read_arrays(path: Path) -> Feeds:
    """Read every array of an .npz file.

    Numpy stores bfloat16 as two bytes without a type; they are read back as bfloat16,
    the only such type that a model of ours has.

    Raises:
        PlanError: If it cannot be read.
    """
    import ml_dtypes

    if path.exists() and not path.is_dir() and not path.is_file():  # reading a pipe would block
        raise PlanError(f"{path} is not a regular file.", hint="Write it with numpy.savez.")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except OSError as error:
        raise PlanError(f"Cannot read {path}: {error.strerror or error}.") from error
    except _UNREADABLE as error:
        raise PlanError(f"{path} is not an .npz file of plain arrays.", hint="Write it with numpy.savez.") from error
    if not all(
        isinstance(array, np.ndarray) for array in arrays.values()
    ):  # numpy returns bytes for a member that is not an .npy file
        raise PlanError(f"{path} is not an .npz file of plain arrays.", hint="Write it with numpy.savez.")
    untyped = np.dtype("V2")
    return {name: array.view(ml_dtypes.bfloat16) if array.dtype == untyped else array for name, array in arrays.items()}
