"""Arrays in a folder that any Python reads: bits as .npy files, and a JSON of ONNX element types.

numpy has no bfloat16 and a foreign environment no ml_dtypes: such bits travel as unsigned integers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["BFLOAT16", "ONNX_TYPES", "Bits", "read_bits", "write_bits"]

INDEX = "arrays.json"

# An array of a type that numpy has, or of unsigned integers of the same size, and the number of its type in ONNX.
Bits = tuple[Any, int]

BFLOAT16 = 16
# onnx.TensorProto, by numpy's name; all but bfloat16 are numpy's own.
ONNX_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "bfloat16": BFLOAT16,
}


def write_bits(folder: str | Path, arrays: dict[str, Bits]) -> None:
    """Write arrays by name into a folder, which is made."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    index = {}
    for number, (name, (array, onnx_type)) in enumerate(arrays.items()):
        # Not "wb": into such a file numpy writes by itself, and loses the reason of what goes wrong.
        with (Path(folder) / f"{number}.npy").open("w+b") as file:
            np.save(file, array, allow_pickle=False)
        index[name] = {"file": f"{number}.npy", "onnx_type": onnx_type}
    (Path(folder) / INDEX).write_text(json.dumps(index), encoding="utf-8")


def read_bits(folder: str | Path) -> dict[str, Bits]:
    """Read what `write_bits` wrote; every array in C order, in memory of its own."""
    index = json.loads((Path(folder) / INDEX).read_text(encoding="utf-8"))
    return {
        name: (np.asarray(np.load(Path(folder) / entry["file"], allow_pickle=False), order="C"), entry["onnx_type"])
        for name, entry in index.items()
    }
