"""The result of `bench --calibrate` as lines and as JSON; judges nothing."""

import msgspec

from sdpa_onnx.core.timing.paired import Calibration
from sdpa_onnx.measure.machine_load import IDLE_TOLERANCE
from sdpa_onnx.report.text.number_text import percent, share
from sdpa_onnx.workflows.bench.calibrate import CalibrationResult

__all__ = ["calibration_json", "calibration_lines"]


def calibration_lines(done: CalibrationResult) -> list[str]:
    """The load of the machine, the figures before and after, and whether the new one is kept."""
    lines = [_load(done), f"Before: {_figure(done.before.between_sd, done.before.degrees)} ({_source(done.before)})."]
    if done.spread is not None:
        measured = _figure(done.spread.between_sd, done.spread.degrees)
        lines.append(f"Measured: {measured}; sampling error of a pair {percent(done.spread.sampling_sd)}, subtracted.")
    lines.append(done.refusal or f"Saved for {done.machine} in {done.path}; comparisons use it from now on.")
    return lines


def calibration_json(done: CalibrationResult) -> str:
    """The same data as JSON."""
    spread = done.spread
    found = {
        "machine": done.machine,
        "before": {"between_sd": done.before.between_sd, "degrees": done.before.degrees},
        "measured": None
        if spread is None
        else {"between_sd": spread.between_sd, "degrees": spread.degrees, "sampling_sd": spread.sampling_sd},
        "idle_cores": done.idle,
        "cores": done.cores,
        "disturbed": done.disturbed,
        "refusal": done.refusal,
        "kept": not done.refusal,
    }
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()


def _figure(between_sd: float, degrees: float) -> str:
    return f"two processes of one model differ by {percent(between_sd)}, with {degrees:.0f} degrees of freedom"


def _source(calibration: Calibration) -> str:
    return "measured here" if calibration.machine else "default"


def _load(done: CalibrationResult) -> str:
    """The load of the machine, one sentence."""
    disturbed = f"{share(done.disturbed)} of the calls lost time to other processes"
    if done.idle is None:
        return f"The load of the machine is not known on this system; {disturbed}."
    word = "quiet" if done.idle >= done.cores - IDLE_TOLERANCE else "not quiet"
    return f"The machine was {word}: {done.idle:.1f} of {done.cores} cores idle before the start; {disturbed}."
