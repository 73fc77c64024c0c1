"""Import slow packages that onnx_ir needs for rare work only when that work is done. Imports no onnx itself.

onnx_ir 1.1 imports sympy, half of the time of its own import, to compute with the names of axes. Reading, lifting
and lowering a graph never do.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

__all__ = ["defer_slow_imports"]

# sympy, and the module of onnx_ir that reads its attributes while it is imported.
_DEFERRED = frozenset({"sympy", "onnx_ir._symbolic_shapes"})


def defer_slow_imports() -> None:
    """From now on, run these modules when their first attribute is read; one that is imported already stays.

    For a process of our own with one thread: before Python 3.12.3, two threads that read the first attribute at the
    same time would see half a module. Source: https://github.com/python/cpython/issues/114763.
    """
    if not any(isinstance(finder, _DeferringFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _DeferringFinder())


class _DeferringFinder:
    # Without the base class importlib.abc.MetaPathFinder, whose import takes longer than this module's.
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(fullname, path, target) if fullname in _DEFERRED else None
        if found is not None and found.loader is not None:
            found.loader = LazyLoader(found.loader)
        return found
