"""Which source files a file depends on, by the imports written in it. Imports and runs nothing.

Too many are named rather than too few: an import reaches every file that has one of its names, and a file that may
import in another way reaches all.
"""

import ast
from collections.abc import Iterable
from pathlib import Path

__all__ = ["needed_files"]

# Names with which code imports, or runs text, without an import statement.
_DYNAMIC = frozenset({"importlib", "__import__", "exec", "eval", "runpy", "pkgutil", "execfile"})


def needed_files(start: Path, candidates: Iterable[Path]) -> set[Path]:
    """The candidates that a file needs, itself included.

    Args:
        start: The file.
        candidates: Absolute paths, of the folder or package of the file.
    """
    files = set(candidates)
    found: set[Path] = set()
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        names = _imported(path)
        if names is None:
            return files | found
        reached = {one for one in files if _name_of(one) in names}
        # To import a part of a package runs the package's own file.
        reached |= {folder / "__init__.py" for one in (*reached, path) for folder in one.parents} & files
        waiting += sorted(reached)
    return found


def _name_of(path: Path) -> str:
    return path.parent.name if path.name == "__init__.py" else path.stem


def _imported(path: Path) -> set[str] | None:
    """Every part of every name in the import statements of a file; None if it may import otherwise."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (SyntaxError, ValueError, OSError):  # ValueError: null bytes
        return None
    names: set[str] = set()
    for node in nodes:
        match node:
            case ast.Import():
                names |= {part for alias in node.names for part in alias.name.split(".")}
            case ast.ImportFrom():
                names |= {*(node.module or "").split("."), *(alias.name for alias in node.names)}
            case ast.Name(id=name) if name in _DYNAMIC:
                return None
            case _:
                continue
    return None if names & _DYNAMIC else names
