"""`sdpa-onnx bench --calibrate`: how much two processes of one model differ on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING

from sdpa_onnx.cli.error_boundary import DISAGREES, OK, results, tell
from sdpa_onnx.cli.progress import Progress
from sdpa_onnx.errors import PlanError

if TYPE_CHECKING:
    from sdpa_onnx.workflows.bench.calibrate import CalibrationResult

__all__ = ["check_alone", "run_calibration"]

# As many as `calibrate.LENGTHS`.
_PARTS = 2


def check_alone(models: list[Path], **options: object) -> None:
    """Refuse what means nothing beside --calibrate.

    Raises:
        PlanError: If there is any of it.
    """
    if models:
        raise PlanError("--calibrate times attentions of its own.", hint="Leave out the files.")
    given = next((name for name, value in options.items() if value), None)
    if given is not None:
        raise PlanError(f"--{given} means nothing beside --calibrate.", hint=f"Leave out --{given}.")


def run_calibration(threads: int, seconds: float, timeout: float, seed: int, *, as_json: bool) -> int:
    """Calibrate, and tell what was found; DISAGREES where nothing is kept."""
    from sdpa_onnx.workflows.bench.calibrate import calibrate

    tell("calibrating: leave this machine alone until it is done")
    with Progress(_PARTS * seconds) as progress:
        done = calibrate(
            threads=threads, budget_seconds=seconds, patience_seconds=timeout, seed=seed, on_progress=progress.at
        )
    _show(done, as_json=as_json)
    return DISAGREES if done.refusal else OK


def _show(done: "CalibrationResult", *, as_json: bool) -> None:
    from sdpa_onnx.report.timing.calibration_text import calibration_json, calibration_lines

    stream = results()
    if stream is not None:
        lines = [calibration_json(done)] if as_json else calibration_lines(done)
        stream.writelines(f"{line}\n" for line in lines)
