"""Names: every public class has a name of its own, and every folder says what it holds."""

import ast
from collections import defaultdict
from pathlib import Path

from tests.packaging.project import ROOT, parsed


def test_public_class_names_are_unique() -> None:
    """A name that exists twice sends a reader to the wrong file."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in parsed():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_folder_says_what_it_holds() -> None:
    """The `__init__` of a folder says what it holds and what it does not."""
    silent = []
    for folder in sorted({Path(path).parent for path, _ in parsed()}):
        docstring = ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text(encoding="utf-8")))
        if docstring is None or len(docstring.strip().splitlines()) < 3:
            silent.append(str(folder))
    assert silent == []
