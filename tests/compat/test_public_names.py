"""Public Python names, command-line options and entry points of version 0.1.0.dev0 still exist.

`public_names.json` was written by that version: parameters of each public name, options of each command, entry points.
"""

import importlib
import inspect
import json
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from sdpa_onnx.cli.main import app
from tests.packaging.project import pyproject

BEFORE = json.loads((Path(__file__).parent / "public_names.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", BEFORE["names"])
def test_name_and_its_parameters(path: str) -> None:
    """The name is importable where it was, and accepts the same parameters in the same order."""
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    if (before := BEFORE["names"][path]) is not None:
        now = [parameter for parameter in inspect.signature(found).parameters if parameter in before]
        assert now == before


@pytest.mark.parametrize("command", BEFORE["options"])
def test_options_of_a_command(command: str) -> None:
    """Every option has its name still."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    now = {
        name for parameter in group.commands[command].params for name in (*parameter.opts, *parameter.secondary_opts)
    }
    assert set(BEFORE["options"][command]) <= now


def test_entry_points() -> None:
    """Runtimes, the pytest plugin and the command are registered under the same names and places."""
    project = pyproject()["project"]
    now = {**project["entry-points"], "scripts": project["scripts"]}
    for group, before in BEFORE["entry_points"].items():
        assert before.items() <= now[group].items()
