"""`import sdpa_onnx`, the command line and the core load nothing heavy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import load_model
from tests.packaging.project import PACKAGE, ROOT

HEAVY = ("altair", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "torch", "vl_convert")
# sympy itself is in the list of modules from the start: it is loaded when its first attribute is read.
UNUSED = ("altair", "matplotlib", "onnxscript", "pandas", "scipy.stats", "sympy.core", "torch", "vl_convert")

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


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "bare.onnx"),
        pytest.param(("verify", "bare.onnx"), marks=pytest.mark.slow),
        pytest.param(("convert", "bare.onnx", "-o", "b.onnx", "--form", "blocked"), marks=pytest.mark.slow),
    ],
    ids=lambda words: words[0],
)
def test_file_commands_load_only_what_they_use(tmp_path: Path, words: tuple[str, ...]) -> None:
    """No command for a file waits for torch, for charts, for statistics or for the algebra package of onnx_ir."""
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8)
    load_model(build_attention_model(spec, opset=23, dtype=Dtype.FLOAT32)).save(tmp_path / "bare.onnx")
    program = f"""
import os, sys
from sdpa_onnx.cli.main import main
os.chdir({str(tmp_path)!r})
sys.argv = ["sdpa-onnx", *{words!r}]
try:
    main()
except SystemExit as ended:
    print(ended.code, *(name for name in {UNUSED!r} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "0", done


def test_core_loads_nothing_heavy() -> None:
    """The core is pure: none of its modules loads a large library."""
    assert heavy_modules_after(*(f"import {module}" for module in CORE_MODULES)) == set()


def test_a_heavy_import_would_be_seen() -> None:
    """The check itself finds a planted import."""
    assert heavy_modules_after("import sdpa_onnx", "import vl_convert") == {"vl_convert"}


def _imports(package: str, text: str) -> list[int]:
    """Lines that import a package when they run: not those for type checkers only."""
    tree = ast.parse(text)
    unreached = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), level=0):
                modules = [module]
            case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=[first, *_]):
                modules = [str(getattr(first, "value", ""))]
            case _:
                continue
        if id(node) not in unreached and any(name.split(".")[0] == package for name in modules):
            found.append(node.lineno)
    return found


# Modules of worker processes have nothing of ours to import; what they need is in their environment.
@pytest.mark.parametrize(
    ("package", "expected"),
    [
        ("openvino", {"openvino_import.py"}),
        ("onnxruntime", {"onnxruntime_import.py"}),
    ],
)
def test_runtimes_are_imported_where_nothing_is_sent(package: str, expected: set[str]) -> None:
    """A plain import of either sends events to a web service: only modules that prevent it may do it."""
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
    texts = [(path.name, path.read_text(encoding="utf-8")) for path in files]
    assert {name for name, text in texts if package in text and _imports(package, text)} == expected


@pytest.mark.parametrize(
    "text",
    ["import openvino as ov", "from openvino.tools import ovc", 'importlib.import_module("openvino")'],
)
def test_a_second_import_would_be_seen(text: str) -> None:
    """The check finds each way to write it, inside a function too, and passes over type checking."""
    assert _imports("openvino", f"def load():\n    {text}\n") == [2]
    assert _imports("openvino", f"if TYPE_CHECKING:\n    {text}\n") == []
    assert _imports("onnxruntime", f"def load():\n    {text}\n") == []
