"""Other Python environments for an arm: check that a runtime is installed there, and find its version.

Starts a worker in the environment. Times nothing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from sdpa_onnx.errors import PlanError
from sdpa_onnx.measure.arm_settings import place_of
from sdpa_onnx.runtimes.timing_worker import TimingWorker
from sdpa_onnx.runtimes.workers import WorkerFailedError

__all__ = ["environment_labels", "package_version", "require_environments"]

# Longest wait for an import, seconds: far above that of a cold disk.
_PATIENCE_SECONDS = 60.0


def package_version(python: Path, runtime: str, *, option: str = "--python") -> str:
    """Version of the package of a runtime, reported by a worker: this proves that a worker starts there.

    Args:
        python: Interpreter of the environment.
        runtime: Registered name of a runtime that has an engine.
        option: The command-line option that names it.

    Raises:
        PlanError: If it is no interpreter, or cannot import the packages that a worker needs.
    """
    if not python.is_file():
        raise PlanError(
            f"{option} {python}: there is no such file.",
            hint="Pass an environment's interpreter, such as old/bin/python.",
        )
    try:
        with TimingWorker(
            place_of(runtime), python=python, threads=1, patience_seconds=_PATIENCE_SECONDS, runtime=runtime
        ) as worker:
            worker.wait_ready()
            return worker.version.rpartition(" ")[2]
    except WorkerFailedError as error:
        raise PlanError(f"{option}: {error}") from error


def require_environments(runtimes: Sequence[str], pythons: Mapping[str, Path | None]) -> None:
    """Refuse interpreters in which a worker cannot start.

    Args:
        runtimes: Names of the runtimes that each one needs.
        pythons: Interpreters by the option that names them; None = ours.

    Raises:
        PlanError: If one is no interpreter, or cannot import the packages that a worker needs.
    """
    for option, python in pythons.items():
        if python is not None:
            for runtime in dict.fromkeys(runtimes):
                package_version(python, runtime, option=option)


def environment_labels(pythons: Sequence[Path], versions: Sequence[str], own: str) -> tuple[str, ...]:
    """Short names of environments: the version, with the environment's folder where two versions are equal.

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
