"""Errors that are no roundings, since they go together: one factor on the whole output, one shift of it.

Only sees what is the same for every element; names nothing.
"""

import math

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.faults.diagnosis_fit import ExplainedOutput

__all__ = ["FEWEST_ELEMENTS", "are_systematic", "common_factor"]

Float64 = NDArray[np.float64]

# Of fewer elements one number explains too much by chance.
FEWEST_ELEMENTS = 8
# Errors go together if one number explains so much of their squares; operands that are cut off, not rounded, to a
# shorter format come to three quarters at most ...
_SHARE = 0.9
# ... and more than so many standard errors of its own; columns are counted, since queries share the values.
_STANDARD_ERRORS = 5.0


def common_factor(subject: ExplainedOutput, right: Float64) -> float | None:
    """The factor on a right output that comes nearest to the actual one, by least squares in units of the bound.

    Args:
        subject: The output.
        right: The right output of the same queries.

    Returns:
        None if there is none, or too few elements to tell.
    """
    known = _known(subject, right)
    if np.count_nonzero(known & (right != 0.0)) < FEWEST_ELEMENTS:
        return None
    with np.errstate(all="ignore"):
        expected, given = (array[known] / subject.weight[known] for array in (right, subject.actual))
        factor = float(np.vdot(expected, given) / np.vdot(expected, expected))
    return factor if math.isfinite(factor) and factor != 0.0 else None


def are_systematic(subject: ExplainedOutput, right: Float64) -> bool:
    """Whether one factor or one shift accounts for the errors, which no format does; True of too few elements."""
    known = _known(subject, right)
    if np.count_nonzero(known) < FEWEST_ELEMENTS:
        return True
    columns = np.count_nonzero(known.any(axis=2))
    with np.errstate(all="ignore"):
        error = (subject.actual[known] - right[known]) / subject.weight[known]
        shift, factor = 1.0 / subject.weight[known], right[known] / subject.weight[known]
        share = max(_share(error, shift), _share(error, factor))
    return share > _SHARE and share * int(columns) > _STANDARD_ERRORS**2 * (1.0 - share)


def _share(error: Float64, shape: Float64) -> float:
    """Part of the squared error that a multiple of one shape explains; 0 where that is no number."""
    share = float(np.square(np.vdot(shape, error)) / (np.vdot(error, error) * np.vdot(shape, shape)))
    return share if math.isfinite(share) else 0.0


def _known(subject: ExplainedOutput, right: Float64) -> NDArray[np.bool_]:
    known: NDArray[np.bool_] = ~subject.excused & np.isfinite(right) & np.isfinite(subject.actual)
    return known
