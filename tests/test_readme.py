"""The README keeps its word: its commands and its Python run as printed."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def _commands() -> list[str]:
    return [line[2:] for block in _blocks("console") for line in block.splitlines() if line.startswith("$ ")]


@pytest.mark.slow
def test_commands_and_tests_run_as_printed(tmp_path: Path) -> None:
    """Every console command of the README ends with exit code 0, in the order of the page; then its tests pass."""
    module = next(block for block in _blocks("python") if "class Block" in block)
    (tmp_path / "mymodel.py").write_text(module, encoding="utf-8")
    for command in _commands():
        words = shlex.split(command)
        assert words[0] == "sdpa-onnx", command
        done = subprocess.run(
            [sys.executable, "-m", "sdpa_onnx", *words[1:]], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    tests = next(block for block in _blocks("python") if "def test_" in block)
    (tmp_path / "test_models.py").write_text(tests, encoding="utf-8")
    # A reader has no xdist around the tests; with its variable set, the fixture skips what times something.
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_models.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.slow
def test_python_runs_as_printed(tmp_path: Path) -> None:
    """The Python of the README runs and every record it prints is ok."""
    code = next(block for block in _blocks("python") if "import sdpa_onnx" in block)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ort-cpu ok" in done.stdout
    assert "disagrees" not in done.stdout


def test_inspect_output_is_the_real_one(tmp_path: Path) -> None:
    """What the README prints under `inspect` is what the command prints."""
    from sdpa_onnx import export
    from sdpa_onnx.cli.inspect import describe_attention
    from sdpa_onnx.workflows.verify.inspect_file import inspect_model

    module = next(block for block in _blocks("python") if "class Block" in block)
    names: dict[str, object] = {}
    exec(module, names)  # noqa: S102 - the README's own example
    block = names["Block"]()  # type: ignore[operator]
    model = export(block, block.sample_inputs())
    for record in inspect_model(model, target="block.onnx"):
        assert describe_attention(record) in README
