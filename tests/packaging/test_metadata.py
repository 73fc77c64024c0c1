"""Versions, licence, commands and the built wheel are what pyproject.toml says."""

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import sdpa_onnx
from tests.packaging.project import PACKAGE, ROOT, pyproject


def test_versions_agree() -> None:
    """The installed metadata and the package name one version; if not, install again."""
    assert importlib.metadata.version("sdpa-onnx") == sdpa_onnx.__version__


def test_changelog_knows_the_version() -> None:
    """A development version has an Unreleased section, a released one its own."""
    section = "Unreleased" if ".dev" in sdpa_onnx.__version__ else sdpa_onnx.__version__
    assert f"## [{section}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_licence_is_apache() -> None:
    """The text that pyproject.toml names is the text in the file."""
    assert pyproject()["project"]["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text


@pytest.mark.parametrize("group", ["console_scripts", "sdpa_onnx.runtimes"])
def test_entry_points_load(group: str) -> None:
    """Every command and runtime that we register can be imported."""
    points = [point for point in importlib.metadata.entry_points(group=group) if point.value.startswith("sdpa_onnx.")]
    assert points
    for point in points:
        assert callable(point.load()), point.name


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `pip install` would build from this checkout."""
    builder = WheelBuilder(str(ROOT))
    return Path(next(builder.build(directory=str(tmp_path_factory.mktemp("dist")), versions=["standard"])))


def test_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    """Tests, models, reports and caches stay out of the wheel; the licence and each file of the package are in."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = f"sdpa_onnx-{sdpa_onnx.__version__}.dist-info/"
    ours = {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if not name.startswith(info)} == ours
    assert f"{info}licenses/LICENSE" in names


@pytest.mark.slow
def test_installed_wheel_starts(wheel: Path, tmp_path: Path) -> None:
    """Away from the checkout, the installed package finds itself, its suites and its runtimes."""
    site = tmp_path / "site"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(site),
        str(wheel),
    ]
    subprocess.run(install, check=True)
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def answer(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert answer("-c", "import sdpa_onnx; print(sdpa_onnx.__file__)").startswith(str(site))
    assert "run" in answer("-m", "sdpa_onnx", "--help")
    assert "ort-cpu" in answer("-m", "sdpa_onnx", "runtimes")


def test_readme_names_the_two_commands() -> None:
    """What a new user types stands in the README, the Makefile has it, and the package shows the README."""
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("there is no README.md yet")
    text = readme.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("report", "test"):
        assert f"make {target}" in text
        assert f"\n{target}: " in makefile
    assert pyproject()["project"]["readme"] == "README.md"
