"""Check before the work starts that a command can write its output files."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from sdpa_onnx.errors import ModelError, PlanError

__all__ = ["check_output", "require_distinct_paths"]


def check_output(output: Path) -> None:
    """Check that a file can be written.

    Raises:
        ModelError: If it is a folder, or its folder is missing or not writable.
    """
    from sdpa_onnx.graph.files.whole_file import check_target

    if not output.parent.is_dir():
        raise ModelError(f"Cannot write {output}: there is no folder {output.parent}.")
    check_target(output, failure=ModelError)


def require_distinct_paths(outputs: Mapping[str, Path | None], inputs: Iterable[Path | None]) -> None:
    """Check that no output overwrites an input or another output.

    Args:
        outputs: Option -> path; None = not requested.
        inputs: Files and folders that are read.

    Raises:
        PlanError: If two paths are the same.
    """
    read = {path.resolve() for path in inputs if path is not None}
    written: dict[Path, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        if path.resolve() in read:
            raise PlanError(f"{option} {path} would overwrite an input.", hint="Choose another path.")
        other = written.setdefault(path.resolve(), option)
        if other != option:
            raise PlanError(f"{other} and {option} both name {path}.", hint="Give each its own file.")
