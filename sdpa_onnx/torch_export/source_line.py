"""Find the source line of the user's code in a stack trace, to name it in an error. Runs nothing."""

import os
import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = ["SourceLine", "exception_line", "innermost_user_line", "is_innermost_user", "raised_words", "stored_line"]

_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent)
# Where torch answers a comparison of sizes.
_COMPARES = (str(Path(_TORCH, "fx", "experimental")), str(Path(_TORCH, "__init__.py")), _OURS)
# Lines in these files are named in errors; other files of torch and of this package are not.
_NAMED_IN_ERRORS = (str(Path(_TORCH, "nn", "modules")), str(Path(_OURS, "modules.py")))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLine:
    """One line of source.

    Args:
        file: Path; relative if it is below the working directory.
        line: Line number, from 1.
        code: The source text of the line, stripped; empty if it cannot be read.
    """

    file: str
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: `{self.code}`" if self.code else f"{self.file}:{self.line}"


def innermost_user_line(frames: Sequence[traceback.FrameSummary]) -> SourceLine | None:
    """Find the innermost line outside torch; if there is none, the innermost in torch.nn.modules.

    Args:
        frames: Outermost first, as `traceback` returns them; our own are skipped.
    """
    inner = _inside_export(frames)
    user = [frame for frame in inner if not frame.filename.startswith((_TORCH, _OURS, "<"))]
    known = user or [frame for frame in inner if frame.filename.startswith(_NAMED_IN_ERRORS)]
    if not known:
        return None
    frame = known[-1]
    return SourceLine(file=_shown(frame.filename), line=frame.lineno or 0, code=(frame.line or "").strip())


def stored_line(trace: str) -> SourceLine | None:
    """The innermost line of the user's code in the text of a stack trace, as torch keeps it for each node."""
    found = re.findall(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)', trace)
    frames = [traceback.FrameSummary(file, int(line), "", line=code, lookup_line=False) for file, line, code in found]
    return innermost_user_line(frames)


def is_innermost_user(frames: Sequence[traceback.FrameSummary]) -> bool:
    """Whether the user's code itself compares a size, and no function of torch that it calls.

    Args:
        frames: As in `innermost_user_line`.
    """
    asking = [frame.filename for frame in frames if not frame.filename.startswith(_COMPARES)]
    return bool(asking) and not asking[-1].startswith(_TORCH)


def exception_line(error: BaseException) -> str:
    """Where an exception was raised in the user's code, as " at FILE:LINE: `CODE`"; empty if unknown."""
    where = innermost_user_line(traceback.extract_tb(error.__traceback__))
    return f" at {where}" if where else ""


def raised_words(error: BaseException) -> str:
    """An exception of the user's code in one line: its type, where it was raised, and the first line of its text."""
    text = next(iter(str(error).strip().splitlines()), "").rstrip(".")
    return f"{type(error).__name__}{exception_line(error)}{f': {text}' if text else ''}"


def _inside_export(frames: Sequence[traceback.FrameSummary]) -> Sequence[traceback.FrameSummary]:
    """Drop the callers of the exporter: they are user code too, but not the exported module."""
    own_frames = [
        index
        for index, frame in enumerate(frames)
        if frame.filename.startswith(_OURS) and not frame.filename.startswith(_NAMED_IN_ERRORS)
    ]
    return frames[own_frames[0] :] if own_frames else frames


def _shown(filename: str) -> str:
    path = Path(filename)
    return os.fspath(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename
