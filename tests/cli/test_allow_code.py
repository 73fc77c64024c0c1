"""`run` and its Python function refuse code that only the suite names."""

from pathlib import Path

import pytest

import sdpa_onnx as so
from sdpa_onnx.errors import PlanError
from tests.cli.invoke import Shell


def test_command_and_function_refuse(shell: Shell) -> None:
    """The command exits with 2 and the Python function raises, both before anything runs or a folder is made."""
    suite = "name = 't'\nagreement = ['ort-cpu']\n[[vary]]\ntargets = [\"os:system('touch ran')\"]\n"
    Path("suite.toml").write_text(suite, encoding="utf-8")
    assert "add --allow-code os (in Python allow_code=['os'])." in shell.refusal("run", "suite.toml")
    with pytest.raises(PlanError, match="--allow-code os"):
        so.run("suite.toml")
    assert not Path("ran").exists()
    assert not Path("reports").exists()
