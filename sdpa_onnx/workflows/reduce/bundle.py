"""Write a reduced case as one zip for a bug report: model, inputs, expected outputs, versions, reproduction script.

The same reduced case gives the same bytes. The zip contains no path, host name or user name of this
machine. It does not remove the names in the model itself: `anonymise` does.
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

from sdpa_onnx.core.records.records import Conformity
from sdpa_onnx.errors import PlanError
from sdpa_onnx.workflows.reduce.bundle_script import packages_of, script
from sdpa_onnx.workflows.reduce.search import ReducedCase
from sdpa_onnx.workflows.reduce.text import ONE_LIMIT

__all__ = ["bundle_files", "require_writable", "write_bundle"]

Array = NDArray[np.generic]

# Date of every member, so that equal contents give equal files. The zip format has no earlier date.
_DATE = (1980, 1, 1, 0, 0, 0)
_PERMISSIONS = 0o644 << 16
_LONGEST_MESSAGE = 2000
_VERBS = {
    Conformity.WRONG: "is wrong",
    Conformity.SUSPICIOUS: "is suspicious",
    Conformity.REFUSED: "refuses the model",
    Conformity.CRASHED: "crashes",
}


def bundle_files(reduced: ReducedCase, *, threads: int = 1) -> dict[str, bytes]:
    """The contents of the files in a bundle, by file name.

    Args:
        reduced: The case.
        threads: Threads inside one operator, as in the run that failed.
    """
    expected: dict[str, Array] = {}
    for name, bounded in reduced.expected.items():
        expected |= {f"{name}:oracle": bounded.oracle, f"{name}:bound": bounded.bound}
    return {
        "README.txt": _readme(reduced).encode(),
        "expected.npz": _npz(expected),
        "inputs.npz": _npz({name: _storable(array) for name, array in reduced.feeds.items()}),
        **{
            f"before_{number}.npz": _npz({name: _storable(array) for name, array in feeds.items()})
            for number, feeds in enumerate(reduced.before, 1)
        },
        "model.onnx": reduced.model.to_bytes(),
        "reproduce.py": script(
            reduced.runtime, _headline(reduced), threads=threads, earlier=len(reduced.before)
        ).encode(),
        "versions.json": msgspec.json.format(msgspec.json.encode(_versions(reduced)), indent=2) + b"\n",
    }


def write_bundle(path: Path, reduced: ReducedCase, *, threads: int = 1) -> Path:
    """Write the zip atomically: a reader sees either the old file or the new one.

    Raises:
        PlanError: If the file cannot be written.
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
    """Reject a file that cannot be written, before the reduction starts.

    Raises:
        PlanError: If the folder is missing or not writable, or the path is not a regular file.
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
            member.create_system = 3  # Unix; zipfile would write the value of this system
            archive.writestr(member, files[name], zipfile.ZIP_DEFLATED)
    return memory.getvalue()


def _earlier_lines(reduced: ReducedCase) -> list[str]:
    """The line about the runs before, without which the last one is right."""
    count = len(reduced.before)
    if not count:
        return []
    names = "before_1.npz" if count == 1 else f"before_1.npz to before_{count}.npz"
    return [f"{names}   inputs of the runs of the same session before it; in a session of its own the run is right"]


def _npz(arrays: Mapping[str, Array]) -> bytes:
    """The bytes of an .npz file with fixed dates, as numpy.savez writes it."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        for name in sorted(arrays):
            content = io.BytesIO()
            np.lib.format.write_array(content, np.ascontiguousarray(arrays[name]), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _DATE), content.getvalue(), zipfile.ZIP_DEFLATED)
    return memory.getvalue()


def _storable(array: Array) -> Array:
    """Convert bfloat16, which .npz files cannot store, to float32, which represents it exactly."""
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


def _headline(reduced: ReducedCase) -> str:
    """The failure in one sentence that is safe inside the docstring of the script."""
    headline = f"{reduced.runtime_version} {_VERBS.get(reduced.kind, 'fails')}: {_message(reduced)}"
    return headline.replace("\\", "/").replace('"', "'")


def _message(reduced: ReducedCase) -> str:
    text = " ".join(reduced.message.split())
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]} ..."


def _readme(reduced: ReducedCase) -> str:
    lines = [_headline(reduced), ""]
    if reduced.case:
        lines.append(f"The case: {reduced.case}, opset {reduced.model.opset}{reduced.fourth_output}.")
    else:
        nodes = ", ".join(f"{count} {name}" for name, count in reduced.model.node_counts().items())
        lines.append(f"The case: {nodes}, opset {reduced.model.opset}.")
    if reduced.dropped:
        lines.append(f"Reduced from the case in which it was found: {', '.join(reduced.dropped)}.")
    if not reduced.is_finished:
        lines.append("The time limit was reached before the reduction finished: a smaller case may exist.")
    lines += [
        "",
        "To run it:  pip install " + " ".join(("numpy", "onnx", *packages_of(reduced.runtime)[:1])),
        "            python reproduce.py",
        "",
        "Exit code 1: an output is outside its bound, or the runtime fails. Exit code 0: every output is right.",
        "(If the runtime crashes, the script ends with it.)",
        "",
        "model.onnx     the smallest model that still fails",
        "inputs.npz     its inputs, by name (bfloat16 as float32)",
        *_earlier_lines(reduced),
        "expected.npz   NAME:oracle, the reference result in float64; NAME:bound, the largest allowed error",
        "versions.json  the versions with which it was found",
    ]
    if reduced.has_one_limit:
        lines += ["", ONE_LIMIT]
    elif reduced.precision:
        lines += ["", f"The bound holds for any order of evaluation in {reduced.precision} arithmetic."]
    if reduced.kind is Conformity.SUSPICIOUS and reduced.trial is None:
        lines += ["", "This case is suspicious, not proved wrong: the limit of this output is a rule, not a proof."]
    elif reduced.kind is Conformity.SUSPICIOUS:
        lines += [
            "",
            "This case is suspicious, not proved wrong: every element is inside its bound, but rounding does not",
            "explain the errors together. So the script prints small differences and exits with 0.",
        ]
    return "\n".join(lines) + "\n"
