"""No tracked file tells on whose machine, or in which folder, it was made."""

import re
import shutil
import subprocess

import pytest

from tests.packaging.project import ROOT

# Put together from pieces, so that this file does not find itself. A name or a dot in front means a relative path or
# a web address, and those are fine.
_FOLDERS = ("home", "root", "work")
PRIVATE_PATH = re.compile(rf"(?<![\w.\-])/(?:{'|'.join(_FOLDERS)})/")


def tracked_files() -> list[str]:
    """Paths that git tracks, relative to the root."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607 (git from PATH)
    return [name for name in listed.stdout.split("\0") if name]


def private_paths(text: str) -> list[str]:
    """Lines with an absolute path into a home or work folder."""
    return [line.strip() for line in text.splitlines() if PRIVATE_PATH.search(line)]


def test_tracked_files_name_no_private_folder() -> None:
    """Text files and the text inside exported graphs name no home or work folder."""
    found = {}
    for name in tracked_files():
        path = ROOT / name
        if path.is_file() and (lines := private_paths(path.read_text(encoding="utf-8", errors="replace"))):
            found[name] = lines[:3]
    assert found == {}


@pytest.mark.parametrize("folder", _FOLDERS)
def test_a_private_path_would_be_seen(folder: str) -> None:
    """A planted path is found, a web address and a relative path are not."""
    assert private_paths(f"see /{folder}/someone/file.py")
    assert private_paths(f'path="/{folder}/someone"')
    assert not private_paths(f"https://example.org/{folder}/page and src/{folder}/file.py")
