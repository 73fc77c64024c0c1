"""Detects systematic errors, which are not rounding errors: one factor on the whole output, or one offset.

Detects only what is the same for every element; names no cause.
"""

import math

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.faults.diagnosis_fit import ExplainedOutput

__all__ = ["FEWEST_ELEMENTS", "are_systematic", "common_factor"]

Float64 = NDArray[np.float64]

# With fewer elements one number explains too much by chance.
FEWEST_ELEMENTS = 8
# Errors are systematic if one number explains this share of their squares (operands that are truncated, not rounded,
# to a shorter format reach three quarters at most) ...
_SHARE = 0.9
# ... and is this many of its standard errors from 0; columns are counted, because queries share the values.
_STANDARD_ERRORS = 5.0


def common_factor(subject: ExplainedOutput, right: Float64) -> float | None:
    """Fit the factor between correct and actual output by least squares in units of the bound.

    Args:
        subject: The output.
        right: The correct output of the same queries.

    Returns:
        The factor; None if it is 0 or not finite, or there are too few elements.
    """
    known = _known(subject, right)
    if np.count_nonzero(known & (right != 0.0)) < FEWEST_ELEMENTS:
        return None
    with np.errstate(all="ignore"):
        expected, actual = (array[known] / subject.weight[known] for array in (right, subject.actual))
        factor = float(np.vdot(expected, actual) / np.vdot(expected, expected))
    return factor if math.isfinite(factor) and factor != 0.0 else None


def are_systematic(subject: ExplainedOutput, right: Float64) -> bool:
    """Whether one factor or offset explains the errors, which rounding does not cause; True for too few elements."""
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
    """Share of the squared error that a multiple of one shape explains; 0 if undefined."""
    share = float(np.square(np.vdot(shape, error)) / (np.vdot(error, error) * np.vdot(shape, shape)))
    return share if math.isfinite(share) else 0.0


def _known(subject: ExplainedOutput, right: Float64) -> NDArray[np.bool_]:
    known: NDArray[np.bool_] = ~subject.excused & np.isfinite(right) & np.isfinite(subject.actual)
    return known
