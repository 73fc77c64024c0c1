"""`--sdpa-json`: write the comparisons of a session in the format of pytest-benchmark, with machine and commit."""

import platform
import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sdpa_onnx.core.compare.benchmark_json import BenchmarkEntry, encode_benchmarks
from sdpa_onnx.graph.files.whole_file import write_whole
from sdpa_onnx.measure.environment import environment, versions
from sdpa_onnx.version import __version__

__all__ = ["our_run", "write_json"]

_GIT_SECONDS = 10.0


def write_json(path: Path, entries: Sequence[BenchmarkEntry], *, root: Path) -> None:
    """Write the file completely or not at all.

    Args:
        path: Path of the file.
        entries: One per arm; an empty list is written too, so that an old file is not mistaken for a new one.
        root: Folder of the tests, whose commit is recorded.

    Raises:
        FolderError: If it cannot be written.
    """
    data = encode_benchmarks(
        entries,
        machine_info=_machine_info(),
        commit_info=_commit_info(root),
        ours=our_run(),
        written=datetime.now(UTC).isoformat(),
        version=f"sdpa-onnx {__version__}",
    )
    write_whole(path, data)


def our_run() -> dict[str, dict[str, str]]:
    """The machine and the versions, as in a run header."""
    return {"environment": environment(), "versions": versions()}


def _machine_info() -> dict[str, Any]:
    """Like that of pytest-benchmark, without the host name."""
    return {
        "processor": platform.processor(),
        "machine": platform.machine(),
        "python_compiler": platform.python_compiler(),
        "python_implementation": platform.python_implementation(),
        "python_implementation_version": platform.python_version(),
        "python_version": platform.python_version(),
        "python_build": list(platform.python_build()),
        "release": platform.release(),
        "system": platform.system(),
        "cpu": {"brand_raw": environment()["cpu"]},
    }


def _commit_info(root: Path) -> dict[str, Any]:
    """The tested commit; "unversioned" if git knows none."""
    output = _git(root, "log", "-1", "--format=%H%n%cI%n%aI")
    commit, time, author_time = output.splitlines() if output else ("unversioned", None, None)
    return {
        "id": commit,
        "time": time,
        "author_time": author_time,
        "dirty": bool(_git(root, "status", "--porcelain", "--untracked-files=no")),
        "project": root.name,
        "branch": (_git(root, "rev-parse", "--abbrev-ref", "HEAD") if output else "") or "(unknown)",
    }


def _git(root: Path, *words: str) -> str:
    """The output of git, or "" if it fails."""
    program = shutil.which("git")
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, "-C", str(root), *words], capture_output=True, text=True, timeout=_GIT_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
