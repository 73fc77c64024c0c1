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
# Attributes of a module that are known before it runs.
_KNOWN_BEFORE = frozenset({"__class__", "__file__", "__name__", "__loader__", "__spec__", "__package__"})


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
            found.loader = _DeferringLoader(found.loader)
        return found


class _DeferringLoader(LazyLoader):
    """A LazyLoader whose modules say what and where they are without being run.

    While torch is imported, inspect.getmodule asks every module for its file, which would run these too.
    """

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        lazy = type(module)

        class Deferred(lazy):  # type: ignore[misc, valid-type]  # the class of the standard library has no public name
            def __getattribute__(self, name: str) -> object:
                if name in _KNOWN_BEFORE:
                    return object.__getattribute__(self, name)
                object.__setattr__(self, "__class__", lazy)  # the class that runs the module and puts itself away
                return getattr(self, name)

        module.__class__ = Deferred
