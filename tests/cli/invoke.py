"""Run the command line in this process, and check what must be true of every error."""

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from sdpa_onnx.cli.main import main


@dataclass(frozen=True)
class Ended:
    """The result of a command."""

    code: object
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Shell:
    """Runs commands in a folder."""

    folder: Path
    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str | Path) -> Ended:
        self.capture.readouterr()
        with (
            mock.patch.object(sys, "argv", ["sdpa-onnx", *map(str, arguments)]),
            # Else stderr would depend on how busy the machine is.
            mock.patch("sdpa_onnx.cli.progress._LINE_EVERY_SECONDS", math.inf),
            pytest.raises(SystemExit) as ended,
        ):
            main()
        printed = self.capture.readouterr()
        return Ended(ended.value.code, printed.out, printed.err)

    def refusal(self, *arguments: str | Path) -> str:
        """Return the error message of a command that must fail, write no file and print nothing else."""
        before = _files(self.folder)
        ended = self(*arguments)
        assert (ended.code, ended.stdout) == (2, ""), ended
        assert ended.stderr.startswith("sdpa-onnx: "), ended.stderr
        assert ended.stderr.count("\n") == 1, ended.stderr
        assert ended.stderr.endswith("\n")
        assert "Traceback" not in ended.stderr
        assert _files(self.folder) == before
        return ended.stderr.removeprefix("sdpa-onnx: ").removesuffix("\n")


def _files(folder: Path) -> dict[str, float]:
    found = {}
    for at, _, names in os.walk(folder):
        if "__pycache__" not in at:
            found |= {str(Path(at) / name): (Path(at) / name).stat().st_mtime_ns for name in names}
    return found
