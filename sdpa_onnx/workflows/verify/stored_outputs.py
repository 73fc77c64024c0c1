"""Store the outputs of a run, and judge stored outputs without running anything."""

import os
import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.records.records import AgreementRecord
from sdpa_onnx.errors import FolderError, PlanError
from sdpa_onnx.graph.files.whole_file import check_target
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import RanReport
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import GIVEN, Feeds, InputStep
from sdpa_onnx.workflows.check.given_arrays import check_type, read_arrays
from sdpa_onnx.workflows.check.run_context import RunContext
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, judge_outputs

__all__ = ["OutputKeeper", "judge_stored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputKeeper:
    """A folder with one .npz file for each step: inputs, outputs and tapped values by name."""

    folder: Path

    def __call__(self, runtime: str, step: str, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        """Write one step at once.

        Raises:
            FolderError: If the folder cannot be made or written, or the disk is full.
        """
        name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{runtime}-{step}").strip("-")
        temporary: str | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            target = check_target(self.folder / f"{name}.npz")
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".", suffix=".npz", delete=False) as file:
                temporary = file.name
                _write_npz(file, arrays)
            os.replace(temporary, target)
        except OSError as error:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)
            raise FolderError(f"Cannot write into {self.folder}: {error.strerror or error}.") from error


def _write_npz(file: IO[bytes], arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Like numpy.savez, which does not accept an array named `file`."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def judge_stored(
    model: OnnxModel, inputs: Feeds, path: Path, *, precision: str | None, target: str
) -> Iterator[AgreementRecord]:
    """Judge outputs that some runtime returned earlier.

    Args:
        model: The model that returned them.
        inputs: Its inputs.
        path: .npz with the outputs by name; a model that is more than one bare attention needs
            the values around each attention in it too, as `verify --keep` writes them.
        precision: The declared arithmetic; None means that of the model's element type.
        target: Name for the records.

    Raises:
        PlanError: If the file cannot be read, lacks an output, or one is of another type than the output of the model.
        CaseError: If there is no such precision, or the arrays do not fit the attention.
    """
    found = read_arrays(path)
    tapped = model.tapped()
    missing = [name for name in tapped.output_names if name not in found]
    if missing:
        raise PlanError(
            f"{path} lacks the output '{missing[0]}'; it has {', '.join(found) or 'nothing'}.",
            hint="Name arrays as the outputs; `sdpa-onnx verify --keep FOLDER` writes such files.",
        )
    for value in tapped.ir.graph.outputs:
        check_type(path, value, found[value.name or ""])
    dtype = model.facts.dtype
    declared = dtype.value if precision is None else precision
    find_precision(declared)
    outputs = {value.name or "": found[value.name or ""] for value in tapped.ir.graph.outputs}
    check = CheckOptions(sizes={}, inputs=inputs)
    ran = RanReport(providers={}, node_counts={}, precision=declared)
    checked = RunContext(model=model, runtime="", ran=ran, check=check, step=GIVEN, target=target)
    step = InputStep(word=GIVEN, spread=None, check=check, feeds=inputs)
    yield from judge_outputs(checked, step, outputs, ExpectationCache())
