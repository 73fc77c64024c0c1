"""What `compare` is given: run folders, models or benchmark files. Imports nothing heavy and reads no file."""

from enum import Enum
from pathlib import Path

from sdpa_onnx.errors import PlanError

__all__ = ["ComparisonKind", "kind_of"]


class ComparisonKind(Enum):
    """What is compared."""

    RUNS = "run folders"
    MODELS = "models"
    BENCHMARKS = "benchmark files"


def kind_of(base: Path, head: Path) -> ComparisonKind:
    """Return the kind of BASE and HEAD.

    Raises:
        PlanError: If one does not exist, or their kinds differ.
    """
    kinds = []
    for path in (base, head):
        if not path.exists():
            raise PlanError(f"{path} does not exist.", hint="Give run folders, .onnx files or benchmark .json files.")
        kinds.append(
            ComparisonKind.RUNS
            if path.is_dir()
            else ComparisonKind.BENCHMARKS
            if path.suffix == ".json"
            else ComparisonKind.MODELS
        )
    if kinds[0] is not kinds[1]:
        raise PlanError(
            f"{base} and {head} cannot be compared: {kinds[0].value} and {kinds[1].value} differ in kind.",
            hint="Give two of the same kind.",
        )
    return kinds[0]
