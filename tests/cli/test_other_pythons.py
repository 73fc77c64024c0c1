"""Interpreters that the user passes: paths relative to the current folder, rejected before anything runs if bad."""

import os
from pathlib import Path

import pytest

from sdpa_onnx.core.records.gate_records import GateRecord
from sdpa_onnx.errors import PlanError
from sdpa_onnx.workflows.compare import models as compare_models
from sdpa_onnx.workflows.compare.models import CompareOptions
from tests.cli.invoke import Shell

_COMPARE = ("compare", "bare.onnx", "bare.onnx")
_ANOTHER = "Name another Python, such as env/bin/python."


@pytest.fixture
def bad_pythons(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A bad `python` in the current folder, another one in PATH, and patched workflows that must not start."""
    for folder, status in ((".", 3), ("bin", 4)):
        Path(folder).mkdir(exist_ok=True)
        path = Path(folder) / "python"
        path.write_text(f"#!/bin/sh\nexit {status}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{Path.cwd() / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for work in ("judge_both", "bench", "graph_facts"):
        monkeypatch.setattr(compare_models, work, None)
    return shell


@pytest.mark.parametrize("python", ["python", "./python"])
@pytest.mark.parametrize(
    "command",
    [
        ("bench", "bare.onnx", "--runtime", "ort-cpu", "--python"),
        (*_COMPARE, "--head-python"),
        (*_COMPARE, "--skip", "agreement", "--base-python"),
        (*_COMPARE, "--skip", "time", "--skip", "memory", "--head-python"),
    ],
    ids=["bench", "head", "base", "untimed"],
)
def test_interpreter_that_does_not_start(bad_pythons: Shell, command: tuple[str, ...], python: str) -> None:
    """The file in the current folder is started, not the one in PATH; one message, exit code 2, and no work."""
    assert bad_pythons.refusal(*command, python) == (
        f"{command[-1]}: {Path.cwd() / 'python'} did not start as a worker: its process ended with exit code 3. "
        f"{_ANOTHER}"
    )


@pytest.mark.parametrize("command", [("bench", "bare.onnx", "--python"), (*_COMPARE, "--head-python")])
def test_interpreter_that_does_not_exist(bad_pythons: Shell, command: tuple[str, ...]) -> None:
    """The message has the absolute path."""
    assert bad_pythons.refusal(*command, "none/python") == (
        f"{command[-1]} {Path.cwd() / 'none/python'}: there is no such file. "
        "Pass an environment's interpreter, such as old/bin/python."
    )


def test_a_program_that_prints_its_arguments(bad_pythons: Shell) -> None:
    """The arguments that we passed to the program are not in the message."""
    assert bad_pythons.refusal(*_COMPARE, "--head-python", "/bin/ls") == (
        f"--head-python: /bin/ls did not start as a worker: its process ended with exit code 2. {_ANOTHER}"
    )


def test_links_are_kept(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter of an environment is a link; its target belongs to another environment."""
    received: list[CompareOptions] = []

    def compared(_base: Path, _head: Path, one: CompareOptions) -> list[GateRecord]:
        received.append(one)
        raise PlanError("Enough.")

    monkeypatch.setattr(compare_models, "compare_models", compared)
    Path("python").symlink_to("/bin/ls")
    assert shell.refusal(*_COMPARE, "--head-python", "./python") == "Enough."
    assert received[0].pythons == (None, Path.cwd() / "python")
