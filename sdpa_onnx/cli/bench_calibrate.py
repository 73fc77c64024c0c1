"""`sdpa-onnx bench --calibrate`: measure how much two processes of one model differ on this machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sdpa_onnx.cli.error_boundary import DISAGREES, OK, print_message, results
from sdpa_onnx.cli.progress import Progress
from sdpa_onnx.errors import PlanError

if TYPE_CHECKING:
    from sdpa_onnx.workflows.bench.calibrate import CalibrationResult

__all__ = ["refuse_other_options", "run_calibration"]

# The number of `calibrate.LENGTHS`.
_LENGTH_COUNT = 2


def refuse_other_options(models: list[Path], options: Mapping[str, object]) -> None:
    """Reject options that have no meaning with --calibrate.

    Raises:
        PlanError: If one is given.
    """
    if models:
        raise PlanError("--calibrate times its own models.", hint="Leave out the files.")
    given = next((name for name, value in options.items() if value), None)
    if given is not None:
        raise PlanError(f"--{given} cannot be used with --calibrate.", hint=f"Leave out --{given}.")


def run_calibration(threads: int, seconds: float, timeout: float, seed: int, *, as_json: bool) -> int:
    """Calibrate and print the result; return DISAGREES if it is not saved."""
    from sdpa_onnx.workflows.bench.calibrate import calibrate

    print_message("calibrating: run nothing else on this machine until it finishes")
    with Progress(_LENGTH_COUNT * seconds) as progress:
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
