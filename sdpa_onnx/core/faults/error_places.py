"""Finds where an output is wrong if no reading explains it: NaN, zeros, clamped values, one element, head or sample.

Checks only the queries that readings were compared on. Decides no verdict.
"""

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.faults.diagnosis_fit import ExplainedOutput

__all__ = ["describe_places"]

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

# Up to this share of the elements counts as few.
_FEW = 0.02
# So many elements of one magnitude are no chance.
_CLAMPED = 2
_AXES = ("sample", "head", "query", "column")


def describe_places(subject: ExplainedOutput, right: Float64, dtype: np.dtype[np.generic]) -> tuple[str, str] | None:
    """Describe where the output is wrong.

    Args:
        subject: The output and its queries.
        right: The correct output of the same queries.
        dtype: Type of the output.

    Returns:
        A slug and a clause; None if the errors follow no pattern.
    """
    actual, known = subject.actual, ~subject.excused
    missing = ~np.isfinite(actual) & np.isfinite(right) & known
    if missing.any():
        kind = "NaN" if np.isnan(actual[missing]).all() else "NaN or infinite"
        if missing.sum() == known.sum():
            return "all-not-finite", f"every element is {kind}"
        return "not-finite", f"{_count(missing)} elements are {kind}{_common(subject, missing)}"
    with np.errstate(all="ignore"):
        wrong = (np.abs(actual - right) > subject.weight) & known
    if not wrong.any():
        return None
    return (
        _describe_output(actual) or _describe_range(subject, right, wrong, dtype) or _describe_elements(subject, wrong)
    )


def _describe_output(actual: Float64) -> tuple[str, str] | None:
    if not actual.any():
        return "all-zero", "the output is zero everywhere"
    if actual.shape[2] > 1 and np.all(actual == actual[:, :, :1]):
        return "constant-rows", "the output is the same for every query"
    return None


def _describe_range(
    subject: ExplainedOutput, right: Float64, wrong: Bool, dtype: np.dtype[np.generic]
) -> tuple[str, str] | None:
    """Values beyond a limit that all become the limit, or numbers below the normal ones that become zero."""
    import ml_dtypes

    smallest = float(ml_dtypes.finfo(dtype).smallest_normal)  # type: ignore[no-untyped-call]
    if not subject.actual[wrong].any() and (np.abs(right[wrong]) < smallest).all():
        return "flushed", f"{_count(wrong)} elements are zero, all of them subnormal numbers of {dtype.name}: flushed"
    limit = float(np.abs(subject.actual[~subject.excused]).max(initial=0.0))
    same_side = np.sign(subject.actual) == np.sign(right)
    clamped = (np.abs(subject.actual) == limit) & (np.abs(right) > limit) & same_side
    if wrong.sum() >= _CLAMPED and clamped[wrong].all():
        return "clamped", f"the output is clamped: {_count(wrong)} elements are {limit:.6g} instead of a larger number"
    return None


def _describe_elements(subject: ExplainedOutput, wrong: Bool) -> tuple[str, str] | None:
    shared = _common(subject, wrong)
    if not subject.actual[wrong].any():
        return "zeros", f"{_count(wrong)} elements are zero{shared}"
    if wrong.sum() == 1:
        sample, head, row, column = (int(axis[0]) for axis in np.nonzero(wrong))
        place = (sample, head, int(subject.rows[row]), column)
        return "one-element", f"one element differs, at (batch, head, query, column) {place}"
    if shared or wrong.mean() <= _FEW:
        return "few-elements", f"{_count(wrong)} elements differ{shared}"
    return None


def _count(wrong: Bool) -> str:
    return f"{int(wrong.sum())} of {wrong.size}"


def _common(subject: ExplainedOutput, wrong: Bool) -> str:
    """Return a clause such as ", all in head 2" for the axes on which all wrong elements have the same index."""
    found = []
    for axis, name in enumerate(_AXES):
        others = tuple(other for other in range(wrong.ndim) if other != axis)
        indices = np.flatnonzero(wrong.any(axis=others))
        if wrong.shape[axis] > 1 and indices.size == 1:
            index = int(subject.rows[indices[0]]) if name == "query" else int(indices[0])
            found.append(f"{name} {index}")
    return f", all in {' of '.join(reversed(found))}" if found else ""
