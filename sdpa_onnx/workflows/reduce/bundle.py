"""The bundle: one zip to attach to a bug report, with model, inputs, expected outputs, versions and a program.

The same reduced case gives the same bytes. Holds no path, host or user name of ours; what
the model itself names stays, unless it was made anonymous before.
"""

import io
import os
import platform
import tempfile
import zipfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.records.records import Conformity, Verdict
from sdpa_onnx.errors import PlanError
from sdpa_onnx.workflows.reduce.bundle_script import packages_of, script
from sdpa_onnx.workflows.reduce.search import ReducedCase
from sdpa_onnx.workflows.reduce.text import ONE_LIMIT

__all__ = ["bundle_files", "require_writable", "write_bundle"]

Array = NDArray[np.generic]

# Every member's date, so that equal contents give equal files; zip knows none before 1980.
_DATE = (1980, 1, 1, 0, 0, 0)
_PERMISSIONS = 0o644 << 16
_LONGEST_MESSAGE = 2000


def bundle_files(reduced: ReducedCase, *, threads: int = 1) -> dict[str, bytes]:
    """The files of a bundle, by name.

    Args:
        reduced: The case.
        threads: Threads inside one operator that it ran with.
    """
    expected: dict[str, Array] = {}
    for name, bounded in reduced.expected.items():
        expected |= {f"{name}:oracle": bounded.oracle, f"{name}:bound": bounded.bound}
    return {
        "README.txt": _readme(reduced).encode(),
        "expected.npz": _npz(expected),
        "inputs.npz": _npz({name: _storable(array) for name, array in reduced.feeds.items()}),
        "model.onnx": reduced.model.to_bytes(),
        "reproduce.py": script(reduced.runtime, _what(reduced), threads=threads).encode(),
        "versions.json": msgspec.json.format(msgspec.json.encode(_versions(reduced)), indent=2) + b"\n",
    }


def write_bundle(path: Path, reduced: ReducedCase, *, threads: int = 1) -> Path:
    """Write the zip in one step: a reader sees the old file or the new one.

    Raises:
        PlanError: If it cannot be written there.
    """
    require_writable(path)
    target = path.resolve()
    data = _zip(bundle_files(reduced, threads=threads))
    temporary: str | None = None
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            temporary = file.name
            file.write(data)
        Path(temporary).chmod(0o644)
        os.replace(temporary, target)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise PlanError(f"Cannot write {path}: {error.strerror or error}.") from error
    return target


def require_writable(path: Path) -> None:
    """Refuse a file that cannot be written, before the work that would fill it.

    Raises:
        PlanError: If its folder is missing or closed, or something that is no file has its name.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise PlanError(f"{path} is not a regular file.", hint="Give the name of a file.")
    if not target.parent.is_dir():
        raise PlanError(f"Cannot write {path}: No such file or directory.")
    if not os.access(target.parent, os.W_OK | os.X_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise PlanError(f"Cannot write {path}: Permission denied.")


def _zip(files: Mapping[str, bytes]) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        for name in sorted(files):
            member = zipfile.ZipInfo(name, _DATE)
            member.external_attr = _PERMISSIONS
            member.create_system = 3  # the same on every system
            archive.writestr(member, files[name], zipfile.ZIP_DEFLATED)
    return memory.getvalue()


def _npz(arrays: Mapping[str, Array]) -> bytes:
    """As numpy.savez writes it, which dates every member 1980 by itself."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        for name in sorted(arrays):
            content = io.BytesIO()
            np.lib.format.write_array(content, np.ascontiguousarray(arrays[name]), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _DATE), content.getvalue(), zipfile.ZIP_DEFLATED)
    return memory.getvalue()


def _storable(array: Array) -> Array:
    """Numpy's own files know no bfloat16; float32 holds it exactly."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _versions(reduced: ReducedCase) -> dict[str, object]:
    packages = {}
    for name in ("numpy", "onnx", "ml_dtypes", *packages_of(reduced.runtime), "sdpa-onnx"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "runtime": reduced.runtime,
        "runtime_version": reduced.runtime_version,
        "packages": packages,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": platform.system(),
        "machine": platform.machine(),
    }


def _what(reduced: ReducedCase) -> str:
    """One sentence of plain characters for the program's first lines."""
    word = {Conformity.WRONG: "is wrong", Conformity.REFUSED: "refuses the model", Conformity.CRASHED: "crashes"}
    does = "is suspicious" if reduced.is_suspicious else word.get(reduced.kind, "fails")
    what = f"{reduced.runtime_version} {does}: {_message(reduced)}"
    return what.replace("\\", "/").replace('"', "'")


def _message(reduced: ReducedCase) -> str:
    text = " ".join(reduced.message.split())
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]} ..."


def _readme(reduced: ReducedCase) -> str:
    lines = [_what(reduced), ""]
    if reduced.case:
        lines.append(f"The case: {reduced.case}, opset {reduced.model.opset}{reduced.fourth_output}.")
    else:
        nodes = ", ".join(f"{count} {name}" for name, count in reduced.model.node_counts().items())
        lines.append(f"The case: {nodes}, opset {reduced.model.opset}.")
    if reduced.dropped:
        lines.append(f"Smaller than where it was found: {', '.join(reduced.dropped)}.")
    if not reduced.is_finished:
        lines.append("The time was up before nothing smaller was found: a smaller case may exist.")
    lines += [
        "",
        "To run it:  pip install " + " ".join(("numpy", "onnx", *packages_of(reduced.runtime)[:1])),
        "            python reproduce.py",
        "",
        "Exit code 1: an output lies outside its bound, or the runtime fails. 0: it is right.",
        "(A runtime that crashes takes the program with it.)",
        "",
        "model.onnx     the smallest model that still fails",
        "inputs.npz     its inputs, by name (bfloat16 as float32)",
        "expected.npz   NAME:oracle, the answer in float64; NAME:bound, how far from it is still right",
        "versions.json  what it was found with",
    ]
    if reduced.has_one_limit:
        lines += ["", ONE_LIMIT]
    elif reduced.precision:
        lines += ["", f"The bound holds for any order of evaluation in {reduced.precision} arithmetic."]
    if reduced.verdict is Verdict.SUSPICIOUS:
        lines += [
            "",
            "This case is suspicious, not proved wrong: every element lies inside its bound, but together they",
            "cannot be explained by rounding. So the program prints small differences and exits with 0.",
        ]
    return "\n".join(lines) + "\n"
