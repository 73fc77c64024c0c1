"""Whether a command's output can be written, found out before the work and not after it."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from sdpa_onnx.errors import ModelError, PlanError

__all__ = ["check_output", "require_apart"]


def check_output(output: Path) -> None:
    """Find out now that the file cannot be written.

    Raises:
        ModelError: If it is a folder, or its folder is missing or cannot be written.
    """
    if output.is_dir():
        raise ModelError(f"{output} is a directory.", hint="Give the name of a file.")
    if not output.parent.is_dir():
        raise ModelError(f"Cannot write {output}: there is no folder {output.parent}.")
    if not os.access(output.parent, os.W_OK):
        raise ModelError(f"Cannot write {output}: {output.parent} is not writable.")


def require_apart(outputs: Mapping[str, Path | None], inputs: Iterable[Path | None]) -> None:
    """Find out now that an output would overwrite an input, or another output.

    Args:
        outputs: By option; None = not asked for.
        inputs: Files and folders that are read.

    Raises:
        PlanError: If two are the same.
    """
    read = {path.resolve() for path in inputs if path is not None}
    written: dict[Path, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        if path.resolve() in read:
            raise PlanError(f"{option} {path} would overwrite what is read.", hint="Give another name.")
        other = written.setdefault(path.resolve(), option)
        if other != option:
            raise PlanError(f"{other} and {option} both name {path}.", hint="Give each a file of its own.")
