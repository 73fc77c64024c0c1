"""Other environments: their versions, their names, and invalid interpreters."""

import os
from pathlib import Path

import pytest

from sdpa_onnx.errors import PlanError
from sdpa_onnx.workflows.bench.environments import environment_labels, package_version, require_environments
from tests.runtimes.worker.environments import NUMPY, environment

_INSTALL = "Install what is missing there, or name another Python."
_ANOTHER = "Name another Python, such as env/bin/python."


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with numpy and an ONNX Runtime that is a file of a few lines, version 0.0.1."""
    return environment(tmp_path_factory.mktemp("environment") / "old", NUMPY, faulty=True)


def _script(folder: Path, text: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_version_as_the_interpreter_imports_it(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other interpreter runs; our packages, PYTHONPATH and files in the current folder are not imported."""
    for name in ("numpy", "onnxruntime", "json"):
        (tmp_path / f"{name}.py").write_text("__version__ = 'planted'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert package_version(python, "ort-cpu") == "0.0.1"


def test_a_name_without_a_folder_is_a_file_here(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter of that name in PATH is never started instead."""
    monkeypatch.chdir(python.parent)
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("PATH", f"{_script(tmp_path / 'other', 'exit 3').parent}:{os.environ['PATH']}")
    assert package_version(Path("python"), "ort-cpu") == "0.0.1"


def _refused(python: Path) -> str:
    with pytest.raises(PlanError) as caught:
        package_version(python, "ort-cpu")
    return str(caught.value).replace(str(python), "P")


def test_interpreters_that_are_none(tmp_path: Path) -> None:
    """A missing file, a folder, a text and a program without output are each an error of one sentence."""
    missing = "--python P: there is no such file. Pass an environment's interpreter, such as old/bin/python."
    assert _refused(tmp_path / "none") == missing
    assert _refused(tmp_path) == missing
    text = tmp_path / "text"
    text.write_text("no program")
    assert _refused(text) == (
        "--python: P cannot be started: Permission denied. "
        "Give the path of a Python interpreter, such as env/bin/python."
    )
    assert _refused(_script(tmp_path, "exit 0")) == (
        f"--python: P did not start as a worker: its process ended with exit code 0. {_ANOTHER}"
    )


def test_missing_package(tmp_path: Path) -> None:
    """The error names the missing package, and what to do."""
    assert _refused(environment(tmp_path / "bare", NUMPY)) == f"--python: P has no onnxruntime. {_INSTALL}"


def test_both_sides_are_required(python: Path, tmp_path: Path) -> None:
    """The error names the option of the wrong interpreter; our own environment is not checked."""
    none = _script(tmp_path, "exit 3")
    require_environments(["ort-cpu", "ort-cuda"], {"--base-python": None, "--head-python": python})
    with pytest.raises(PlanError) as caught:
        require_environments(["ort-cpu"], {"--base-python": python, "--head-python": none})
    assert str(caught.value) == (
        f"--head-python: {none} did not start as a worker: its process ended with exit code 3. {_ANOTHER}"
    )
    with pytest.raises(PlanError) as caught:
        require_environments(["ort-cpu", "torch"], {"--base-python": python, "--head-python": None})
    assert str(caught.value) == (
        f"--base-python: {python} cannot be used: torch runs in our environment only. "
        "Give the Python for an arm on another runtime, such as ort-cpu or openvino."
    )


_LABELS = {
    "versions": (["a/bin/python", "b/bin/python"], ["1.1", "1.2"], ("1.1", "1.2")),
    "as-ours": (["a/bin/python"], ["1.0"], ("1.0 (a)",)),
    "same": (["a/bin/python", "b/bin/python"], ["1.1", "1.1"], ("1.1 (a)", "1.1 (b)")),
    "same-folder-name": (
        ["x/a/bin/python", "y/a/bin/python"],
        ["1.1", "1.1"],
        ("1.1 (x/a/bin/python)", "1.1 (y/a/bin/python)"),
    ),
}


@pytest.mark.parametrize(("pythons", "versions", "labels"), _LABELS.values(), ids=_LABELS)
def test_labels(pythons: list[str], versions: list[str], labels: tuple[str, ...]) -> None:
    """The version, and only if two versions are equal the folder, or the full path."""
    assert environment_labels([Path(python) for python in pythons], versions, own="1.0") == labels
