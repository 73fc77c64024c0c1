"""Whether a command's output can be written, found out before the work and not after it."""

import os
from pathlib import Path

from sdpa_onnx.errors import ModelError

__all__ = ["check_output"]


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
