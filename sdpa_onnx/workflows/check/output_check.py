"""Judge each output of a graph against a float64 run: of a converted graph, or of the same graph in another session.

The nodes after an attention have no error bound of ours, so the source's own error in the same type is the limit: that
of the graph before its conversion, or of the session that is known to be right. Does not judge single attentions: the
oracle does that elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.judge.agreement import Agreement
from sdpa_onnx.core.judge.node_rule import format_of
from sdpa_onnx.core.records.verdicts import Verdict

__all__ = ["OutputRun", "has_number", "judge_output", "relative_yardstick", "source_agreement"]

Array = NDArray[np.generic]

# Source: DESIGN section 2.
_ALLOWED_TIMES = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRun:
    """One output at one set of inputs.

    Args:
        truth: Output of the source graph in float64; for integers, of the source itself.
        source: Output of the source in its own type on the runtime.
        actual: Output of the converted graph there.
        is_source_right: Whether every attention of the source is right on the runtime at these inputs.
        source_name: What the source is, for the diagnosis.
    """

    truth: Array
    source: Array
    actual: Array
    is_source_right: bool = True
    source_name: str = "the source"


def relative_yardstick(runs: Sequence[OutputRun]) -> float:
    """Largest error of the source divided by the largest magnitude of the truth, over all runs where it is right.

    One run is not enough: at one query and one sample the largest of few errors can be small by chance.
    """
    found = [0.0]
    for run in runs:
        exact, source, _, usable = _numbers(run)
        largest = float(np.abs(exact[usable]).max(initial=0.0))
        if run.is_source_right and largest:
            found.append(float(np.abs(source[usable] - exact[usable]).max()) / largest)
    return max(found)


def source_agreement(run: OutputRun) -> Agreement:
    """The source's own error, recorded next to that of the converted graph; it decides nothing."""
    exact, source, _, usable = _numbers(run)
    error = float(np.abs(source[usable] - exact[usable]).max(initial=0.0))
    return Agreement(
        verdict=Verdict.OK,
        diagnosis=f"The source's own largest error is {error:.3g}; the limit is computed from it.",
        max_abs_error=error,
        total=exact.size,
    )


def judge_output(run: OutputRun, yardstick: float) -> Agreement:
    """Judge one output of the converted graph.

    It passes when its largest error is at most twice that of the source in the same type plus one rounding of
    the output. Where the source returns NaN, the converted graph may return a number: a row without a visible key
    is NaN in some dialects and zero in ours.

    Args:
        run: The arrays.
        yardstick: See `relative_yardstick`.

    Source: DESIGN section 2.
    """
    if run.actual.shape != run.source.shape or run.actual.dtype != run.source.dtype:
        got, wanted = (f"{array.dtype.name} {array.shape}" for array in (run.actual, run.source))
        return Agreement(
            verdict=Verdict.WRONG, diagnosis=f"The output is {got}, that of {run.source_name} is {wanted}."
        )
    if format_of(run.source.dtype) is None:
        different = int(np.count_nonzero(run.actual != run.source))
        return Agreement(
            verdict=Verdict.WRONG if different else Verdict.OK,
            diagnosis=f"{different} of {run.source.size} elements differ from {run.source_name}."
            if different
            else "The outputs are equal.",
            mismatched=different,
            total=run.source.size,
        )
    exact, _, actual, usable = _numbers(run)
    lost = int(np.count_nonzero(usable & ~np.isfinite(actual)))
    if lost:
        return Agreement(
            verdict=Verdict.WRONG,
            diagnosis=f"{lost} of {exact.size} elements are NaN or infinite where {run.source_name} is finite.",
            not_finite=lost,
            total=exact.size,
        )
    if not usable.any():
        return Agreement(
            verdict=Verdict.OK,
            diagnosis=f"{run.source_name.capitalize()} returns no finite number here.",
            total=exact.size,
        )
    return _compared(run, yardstick)


def _compared(run: OutputRun, yardstick: float) -> Agreement:
    exact, source, actual, usable = _numbers(run)
    largest = float(np.abs(exact[usable]).max())
    own = float(np.abs(source[usable] - exact[usable]).max()) if run.is_source_right else 0.0
    allowed = _ALLOWED_TIMES * max(own, yardstick * largest)
    allowed += find_precision(run.source.dtype.name).output.unit_roundoff * largest
    errors = np.where(usable, np.abs(np.where(usable, actual, 0.0) - np.where(usable, exact, 0.0)), 0.0)
    error = float(errors.max())
    place = tuple(int(index) for index in np.unravel_index(int(errors.argmax()), errors.shape))
    limit = f"{run.source_name}'s own in the same type is {max(own, yardstick * largest):.3g}, allowed {allowed:.3g}"
    odd = int(np.count_nonzero(~usable & np.isfinite(actual)))
    return Agreement(
        verdict=Verdict.OK if error <= allowed else Verdict.SUSPICIOUS,
        diagnosis=f"The largest error is {error:.3g}{f' at {place}' if error > allowed else ''}; {limit}.",
        max_abs_error=error,
        max_bound_ratio=error / allowed if allowed else 0.0,
        total=exact.size,
        judged=int(np.count_nonzero(usable)),
        warnings=(f"The source is NaN or infinite at {odd} of {exact.size} elements where the result is finite.",)
        if odd
        else (),
    )


def _numbers(
    run: OutputRun,
) -> "tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]":
    """Truth, source and result in float64, and where truth and source are both finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        exact, source, actual = (array.astype(np.float64) for array in (run.truth, run.source, run.actual))
    return exact, source, actual, np.isfinite(exact) & np.isfinite(source)


def has_number(run: OutputRun) -> bool:
    """Whether any element of the output can be compared."""
    return format_of(run.source.dtype) is None or bool(_numbers(run)[3].any()) or not run.source.size
