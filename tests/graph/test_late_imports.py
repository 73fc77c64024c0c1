"""What is deferred stays so while others look at all modules, and works once it is needed."""

import subprocess
import sys

_LOOKS_AND_USES = """
import inspect, sys
from sdpa_onnx.graph.late_imports import defer_slow_imports
defer_slow_imports()
import onnx_ir
namespace = {}
exec(compile("def written(): pass", "no file of any module", "exec"), namespace)
inspect.getmodule(namespace["written"].__code__)  # asks every module for its file, as torch does while it is imported
import sympy
assert sympy.__name__ == "sympy" and sympy.__spec__.name == "sympy"
assert "sympy.core" not in sys.modules, "was run"
assert sympy.Symbol("n") + 0 == sympy.Symbol("n")
assert "sympy.core" in sys.modules
"""


def _run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_deferred_module_is_run_when_it_is_used_and_not_when_it_is_looked_at() -> None:
    """Its name, file and origin are known before."""
    _run(_LOOKS_AND_USES)
