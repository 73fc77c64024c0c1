"""Other environments: their versions, their names, and interpreters that are none."""

import json
import sys
from pathlib import Path

import pytest

from sdpa_onnx.errors import PlanError
from sdpa_onnx.workflows.bench_environments import environment_labels, package_version


def test_version_as_the_interpreter_imports_it() -> None:
    """The other interpreter is asked, not our own packages' metadata."""
    assert package_version(Path(sys.executable), "json") == json.__version__


def _script(folder: Path, text: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_what_an_import_prints_is_no_version(tmp_path: Path) -> None:
    """Only the last line counts."""
    assert package_version(_script(tmp_path, "echo hello; echo 1.2.3"), "json") == "1.2.3"


def test_our_packages_are_not_lent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PYTHONPATH of ours would make the other environment our own; telemetry is off there too."""
    monkeypatch.setenv("PYTHONPATH", "ours")
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    asked = _script(tmp_path, 'echo "path [$PYTHONPATH], telemetry off $ORT_DISABLE_TELEMETRY"')
    assert package_version(asked, "json") == "path [], telemetry off 1"


def test_a_file_of_the_current_folder_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker does not see it either."""
    (tmp_path / "json.py").write_text("__version__ = 'planted'")
    monkeypatch.chdir(tmp_path)
    assert package_version(Path(sys.executable), "json") == json.__version__


def _refused(python: Path, package: str = "json") -> str:
    with pytest.raises(PlanError) as caught:
        package_version(python, package)
    return str(caught.value).replace(str(python), "P")


def test_interpreters_that_are_none(tmp_path: Path) -> None:
    """A missing file, a folder, a text and a program that says nothing are each told in a sentence."""
    missing = "--python P: there is no such file. Give an environment's interpreter, such as old/bin/python."
    assert _refused(tmp_path / "none") == missing
    assert _refused(tmp_path) == missing
    text = tmp_path / "text"
    text.write_text("no program")
    assert _refused(text) == "--python P cannot be started: Permission denied."
    assert _refused(_script(tmp_path, "exit 0")) == (
        "--python P cannot run json: it ended with status 0. Install it there, with numpy: pip install json."
    )


def test_missing_package(tmp_path: Path) -> None:
    """The last line of the error says which import failed."""
    error = "ModuleNotFoundError: No module named 'onnxruntime'"
    assert _refused(_script(tmp_path, f'echo Traceback >&2; echo "{error}" >&2; exit 1'), "onnxruntime") == (
        f"--python P cannot run onnxruntime: {error}. Install it there, with numpy: pip install onnxruntime."
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
    """The version, and only where versions are the same the folder, or the whole path."""
    assert environment_labels([Path(python) for python in pythons], versions, own="1.0") == labels
