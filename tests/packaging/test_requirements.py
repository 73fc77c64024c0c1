"""The ranges of pyproject.toml, the tested pins and the lowest pins agree with each other and with the code."""

import ast
import sys
from importlib.metadata import packages_distributions

import pytest
from packaging.utils import canonicalize_name

from tests.packaging.project import parsed, pins, pyproject, requirements

# The extras of runtimes.
_IN_TEST = ("mnn", "nxrt", "openvino", "ort-plugin", "tract")
_RUNTIMES = (*_IN_TEST, "emx", "iree")
# Modules whose name is not that of their package, which may not be installed where the tests run.
_OWNERS = {"iree": ["iree-base-compiler", "iree-base-runtime"], "_tools": ["mnn"]}


def test_lowest_pins_are_the_lower_bounds() -> None:
    """constraints-lowest.txt has one line for each direct requirement of the package and its tests, at its bound."""
    lower_bounds = {}
    for name, requirement in requirements(*_IN_TEST, "pandas", "polars", "test").items():
        bounds = [clause.version for clause in requirement.specifier if clause.operator == ">="]
        assert len(bounds) == 1, f"{requirement} has no single lower bound"
        lower_bounds[name] = bounds[0]
    assert pins("constraints-lowest.txt") == lower_bounds


def test_every_direct_requirement_has_a_tested_pin() -> None:
    """constraints.txt pins all that pyproject.toml names, the tools of development too."""
    assert set(requirements(*_RUNTIMES, "pandas", "polars", "test", "dev", "browser")) <= set(pins("constraints.txt"))


@pytest.mark.parametrize("file_name", ["constraints.txt", "constraints-lowest.txt"])
def test_pins_are_in_the_ranges(file_name: str) -> None:
    """A pin outside the range of pyproject.toml could never be installed."""
    pinned = pins(file_name)
    wanted = requirements(*_RUNTIMES, "pandas", "polars", "test", "dev", "browser")
    outside = {
        name: str(wanted[name])
        for name in set(wanted) & set(pinned)
        if not wanted[name].specifier.contains(pinned[name], prereleases=True)
    }
    assert outside == {}


def test_pins_name_no_index_and_no_local_build() -> None:
    """A pin such as 2.13.0+cpu exists on one index only; ours hold everywhere."""
    assert [f"{name}=={version}" for name, version in pins("constraints.txt").items() if "+" in version] == []


def test_every_import_is_a_requirement() -> None:
    """What the package imports is named in pyproject.toml, not merely brought along by something else."""
    distributions = {**_OWNERS, **packages_distributions()}
    declared = set(requirements(*_RUNTIMES, "pandas", "polars"))
    # Loaded by pytest alone, and asks pytest-benchmark only where that is loaded too.
    plugin = declared | {"pytest", "pytest-benchmark"}
    missing = {
        f"{path}: {name}"
        for path, tree in parsed()
        for name in _imported(tree)
        if name not in sys.stdlib_module_names and name != "sdpa_onnx"
        if (plugin if path.startswith("sdpa_onnx/pytest_plugin/") else declared).isdisjoint(
            {canonicalize_name(owner) for owner in distributions.get(name, [name])}
        )
    }
    assert missing == set()


def _imported(tree: ast.Module) -> set[str]:
    """Top-level names that a module imports, anywhere in it."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                names |= {alias.name.partition(".")[0] for alias in aliases}
            case ast.ImportFrom(module=str(module), level=0):
                names.add(module.partition(".")[0])
    return names


def test_python_versions_agree() -> None:
    """Makefile, ruff and mypy speak of the Python that pyproject.toml asks for."""
    content = pyproject()
    assert content["project"]["requires-python"] == ">=3.11"
    assert content["tool"]["ruff"]["target-version"] == "py311"
    assert content["tool"]["mypy"]["python_version"] == "3.11"
