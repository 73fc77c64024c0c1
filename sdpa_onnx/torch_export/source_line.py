"""The line of the user's code that a stack stands in, to name it in an error; runs nothing."""

import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = ["SourceLine", "exception_line", "innermost_user_line"]

_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent)
# Code of these is worth naming, the rest of torch and of this room is machinery.
_WORTH_NAMING = (str(Path(_TORCH, "nn", "modules")), str(Path(_OURS, "modules.py")))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLine:
    """One line of source.

    Args:
        file: Path, relative where it lies below the working directory.
        line: Line number, from 1.
        code: The line itself, stripped; empty if it cannot be read.
    """

    file: str
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: `{self.code}`" if self.code else f"{self.file}:{self.line}"


def innermost_user_line(frames: Sequence[traceback.FrameSummary]) -> SourceLine | None:
    """Find the deepest line outside torch; if there is none, the deepest of torch.nn.modules.

    Args:
        frames: Outermost first, as `traceback` gives them; our own are passed over.
    """
    inner = _below_this_room(frames)
    user = [frame for frame in inner if not frame.filename.startswith((_TORCH, _OURS, "<"))]
    known = user or [frame for frame in inner if frame.filename.startswith(_WORTH_NAMING)]
    if not known:
        return None
    frame = known[-1]
    return SourceLine(file=_shown(frame.filename), line=frame.lineno or 0, code=(frame.line or "").strip())


def exception_line(error: BaseException) -> str:
    """Say where an exception of the user's code rose, as " at FILE:LINE: `CODE`"; empty if it is not known."""
    where = innermost_user_line(traceback.extract_tb(error.__traceback__))
    return f" at {where}" if where else ""


def _below_this_room(frames: Sequence[traceback.FrameSummary]) -> Sequence[traceback.FrameSummary]:
    """Drop the callers of the exporter: they are user code too, but not what is exported."""
    machinery = [
        index
        for index, frame in enumerate(frames)
        if frame.filename.startswith(_OURS) and not frame.filename.startswith(_WORTH_NAMING)
    ]
    return frames[machinery[0] :] if machinery else frames


def _shown(filename: str) -> str:
    path = Path(filename)
    return os.fspath(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename
