"""A module is at most 400 lines, a function at most 60."""

import ast

from tests.packaging.project import ROOT, package_files, parsed

# Source: the house style; what one reads in one sitting, and what one sees on one screen.
MODULE_LINES = 400
FUNCTION_LINES = 60


def long_functions(tree: ast.AST) -> list[tuple[str, int]]:
    """Name and length of each function above the limit, decorators not counted, docstring counted."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                found.append((node.name, lines))
    return found


def test_modules_are_short() -> None:
    """A longer module holds more than one thing."""
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in package_files()
    }
    assert {path: lines for path, lines in lengths.items() if lines > MODULE_LINES} == {}


def test_functions_are_short() -> None:
    """A longer function does more than one thing."""
    assert {path: long for path, tree in parsed() if (long := long_functions(tree))} == {}


def test_a_long_function_would_be_seen() -> None:
    """The limit itself passes, one line more does not."""
    body = "    pass\n"
    assert long_functions(ast.parse("def at_limit():\n" + body * (FUNCTION_LINES - 1))) == []
    assert long_functions(ast.parse("def above():\n" + body * FUNCTION_LINES)) == [("above", FUNCTION_LINES + 1)]
