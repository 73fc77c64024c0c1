"""`import sdpa_onnx`, the command line and the core load nothing heavy."""

import subprocess
import sys

import pytest

from tests.packaging.project import PACKAGE, ROOT

HEAVY = ("altair", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "torch", "vl_convert")

CORE_MODULES = sorted(f"sdpa_onnx.core.{path.stem}" for path in (PACKAGE / "core").glob("[!_]*.py"))


def heavy_modules_after(*statements: str) -> set[str]:
    """Heavy packages that a fresh interpreter has loaded after some statements."""
    program = "\n".join([*statements, "import sys", f"print(*[name for name in {HEAVY!r} if name in sys.modules])"])
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["sdpa_onnx", "sdpa_onnx.cli.main"])
def test_entry_loads_nothing_heavy(module: str) -> None:
    """A user who types `--help` or imports the package waits for none of the large libraries."""
    assert heavy_modules_after(f"import {module}") == set()


def test_core_loads_nothing_heavy() -> None:
    """The core is pure: none of its modules loads a large library."""
    assert heavy_modules_after(*(f"import {module}" for module in CORE_MODULES)) == set()


def test_a_heavy_import_would_be_seen() -> None:
    """The check itself finds a planted import."""
    assert heavy_modules_after("import sdpa_onnx", "import vl_convert") == {"vl_convert"}
