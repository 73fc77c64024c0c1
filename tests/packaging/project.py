"""Where the project's files are, and what pyproject.toml says; for the tests of this folder."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "sdpa_onnx"


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def requirements(*extras: str) -> dict[str, Requirement]:
    """Direct requirements of the package and of the named extras, by canonical name, without the package itself."""
    project = pyproject()["project"]
    texts = [*project["dependencies"], *(text for extra in extras for text in project["optional-dependencies"][extra])]
    found = {canonicalize_name(item.name): item for item in map(Requirement, texts)}
    found.pop(canonicalize_name(project["name"]), None)
    return found


def pins(file_name: str) -> dict[str, str]:
    """Version by canonical name; every line of a constraints file is a comment or `name==version`."""
    found: dict[str, str] = {}
    for line in (ROOT / file_name).read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        name, separator, version = line.partition("==")
        assert separator, f"{file_name}: '{line}' is no exact pin"
        assert canonicalize_name(name) not in found, f"{file_name}: {name} is pinned twice"
        found[canonicalize_name(name)] = version
    return found


def package_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def parsed() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the package: its path for messages, and its syntax tree."""
    for path in package_files():
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))
