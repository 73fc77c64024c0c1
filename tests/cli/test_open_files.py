"""Models with more tensor files than a shell lets a program hold open."""

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.graph.models import model_of
from tests.graph.outside import referring
from tests.sweep.process import environment

_FILES = 80
# Python, its imports and the pipes of a worker need some.
_FEW = 60
_TEXT = ": Too many open files. "


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A chain of products, the matrix of each in a file of its own, and one attention."""
    nodes, width = [], 8
    for number in range(_FILES):
        (tmp_path / f"t{number}").write_bytes(np.eye(width, dtype=np.float32).tobytes())
        nodes.append(helper.make_node("MatMul", [f"x{number}", f"w{number}"], [f"x{number + 1}"]))
    last = f"x{_FILES}"
    nodes.append(helper.make_node("Attention", [last] * 3, ["y"], q_num_heads=2, kv_num_heads=2))
    size: list[int | str | None] = ["batch_size", "q_seq_len", width]
    proto = model_of(nodes, {"x0": size}, {"y": size})
    proto.graph.initializer.extend(
        referring(f"w{number}", (width, width), location=f"t{number}") for number in range(_FILES)
    )
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def _inspect(path: Path, *, soft: int, hard: int) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    return subprocess.run(
        [sys.executable, "-m", "sdpa_onnx", "inspect", "m.onnx", "--quiet"],
        cwd=path.parent,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        preexec_fn=limit,
    )


def test_the_limit_of_the_shell_is_raised(path: Path) -> None:
    """A command opens as many files as the system allows, not as few as the shell says."""
    done = _inspect(path, soft=_FEW, hard=4096)
    assert (done.returncode, done.stderr) == (0, "")


def test_too_many_open_files_name_the_file(path: Path) -> None:
    """Where the system allows no more: the file that could not be opened, and what to do."""
    done = _inspect(path, soft=_FEW, hard=_FEW)
    before, middle, after = done.stderr.partition(_TEXT)
    assert (done.returncode, middle, after) == (2, _TEXT, "Allow more open files: ulimit -n 4096.\n")
    beginning = f"sdpa-onnx: Cannot read m.onnx: its tensor file {path.parent}/t"
    assert before.startswith(beginning)
    assert before.removeprefix(beginning).removesuffix(" cannot be opened").isdecimal()
