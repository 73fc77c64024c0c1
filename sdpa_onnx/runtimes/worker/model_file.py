"""A model as a file, for runtimes that load nothing else."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

__all__ = ["ModelFile"]


class ModelFile:
    """A file whose data files lie beside it; a context manager that removes what it wrote.

    Args:
        job: "model" is a path or the bytes of a model; "folder" is where its data files lie, or None.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        model, data = job["model"], job.get("folder")
        if isinstance(model, str) and data is None:
            self.path = model
            return
        self._folder = tempfile.TemporaryDirectory(prefix="sdpa-onnx-")
        place = Path(self._folder.name)
        if data is not None:
            for source in Path(data).iterdir():
                (place / source.name).symlink_to(source.resolve())
        path = place / "model.onnx"
        path.unlink(missing_ok=True)
        path.write_bytes(Path(model).read_bytes() if isinstance(model, str) else model)
        self.path = str(path)

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove what was written."""
        if self._folder is not None:
            self._folder.cleanup()
