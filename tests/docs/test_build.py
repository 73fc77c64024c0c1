"""The documentation builds without a warning, and its pages ask no other address for anything."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

pytest.importorskip("sphinx")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", str(folder / "cache")]
    done = subprocess.run(
        [*command, "docs", str(folder / "html")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder / "html"


def test_makefile_builds_the_same() -> None:
    """`make docs` is as strict as this test."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "-m sphinx -q -W --keep-going -b html docs docs/_build" in makefile


@pytest.mark.slow
def test_every_page_is_built(built: Path) -> None:
    """Each Markdown page is an HTML page, and each public function is in the Python reference."""
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {page.as_posix() for page in pages if not (built / page).exists() and "_build" not in page.parts} == set()
    import sdpa_onnx.api

    reference = (built / "reference" / "python.html").read_text(encoding="utf-8")
    functions = [name for name in sdpa_onnx.api.__all__ if name.islower()]
    assert [name for name in functions if f'id="sdpa_onnx.api.{name}"' not in reference] == []


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere(built: Path) -> None:
    """Scripts, styles, fonts and pictures are files of the documentation."""
    loaded = re.compile(r"""(?:<(?:script|img|iframe)[^>]*\ssrc|<link[^>]*\shref)=["'](?:https?:)?//""")
    found = [page.name for page in built.rglob("*.html") if loaded.search(page.read_text(encoding="utf-8"))]
    styles = [page.name for page in built.rglob("*.css") if re.search(r"url\(['\"]?(?:https?:)?//", page.read_text())]
    assert found + styles == []


@pytest.mark.slow
def test_help_of_every_command_is_there(built: Path) -> None:
    """The page of the commands has the help of each."""
    from typer.main import get_command

    from sdpa_onnx.cli.main import app

    page = (built / "reference" / "commands.html").read_text(encoding="utf-8")
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert [name for name in commands if f"Usage: sdpa-onnx {name} " not in page] == []
