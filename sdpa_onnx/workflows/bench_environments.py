"""Other Python environments for an arm: whether a runtime is there, and in which version.

Starts the interpreter once and asks; times nothing.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from sdpa_onnx.errors import PlanError
from sdpa_onnx.measure.worker_process import environment_of

__all__ = ["environment_labels", "package_version"]

# Longest wait for an import, seconds: far above that of a cold disk.
_PATIENCE_SECONDS = 60.0
# The worker needs numpy beside the runtime; as there, no telemetry is sent and the current folder lends nothing.
# What stands behind a hyphen is a build.
_ASK = """\
import sys
sys.path[:] = [path for path in sys.path if path]
sys.modules.setdefault("openvino_telemetry", None)
import importlib, numpy
print(importlib.import_module(sys.argv[1]).__version__.split("-")[0])
"""


def package_version(python: Path, package: str) -> str:
    """Version of a package as an interpreter imports it.

    Args:
        python: Interpreter of the environment.
        package: Name to import.

    Raises:
        PlanError: If it is no interpreter, or cannot import the package and numpy.
    """
    if not python.is_file():
        raise PlanError(
            f"--python {python}: there is no such file.",
            hint="Give an environment's interpreter, such as old/bin/python.",
        )
    try:
        done = subprocess.run(
            [python.absolute(), "-c", _ASK, package],
            capture_output=True,
            text=True,
            errors="replace",
            env=environment_of(python),
            stdin=subprocess.DEVNULL,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except OSError as error:
        raise PlanError(f"--python {python} cannot be started: {error.strerror or error}.") from error
    except subprocess.TimeoutExpired as error:
        raise PlanError(f"--python {python} gave no answer in {_PATIENCE_SECONDS:g} s.") from error
    version = done.stdout.strip().rpartition("\n")[2]
    if done.returncode or not version:
        why = (done.stderr.strip().rpartition("\n")[2] or f"it ended with status {done.returncode}").rstrip(".")
        raise PlanError(
            f"--python {python} cannot run {package}: {why}.",
            hint=f"Install it there, with numpy: pip install {package}.",
        )
    return version


def environment_labels(pythons: Sequence[Path], versions: Sequence[str], own: str) -> tuple[str, ...]:
    """Short names of environments: the version, with the environment's folder where versions are the same.

    Args:
        pythons: Interpreters.
        versions: Of the runtime in each.
        own: Version in our own environment, which has no folder.
    """
    labels = []
    for python, version in zip(pythons, versions, strict=True):
        same = [*versions, own].count(version) > 1
        labels.append(f"{version} ({_folder(python)})" if same else version)
    if len(set(labels)) < len(labels):
        return tuple(f"{version} ({python})" for python, version in zip(pythons, versions, strict=True))
    return tuple(labels)


def _folder(python: Path) -> str:
    """Name of the environment: the folder above bin."""
    folder = python.absolute().parent.parent
    return folder.name or str(folder)
