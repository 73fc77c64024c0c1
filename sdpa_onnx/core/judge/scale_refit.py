"""Measure the error of the scale exactly: repeat the first-order estimate around the scale found so far.

A first-order estimate of -12 % can read -15 % with a narrow interval, because the softmax is not linear in the scale.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.judge.directions import Direction, SizedMistake, estimate_of
from sdpa_onnx.core.judge.evidence import Evidence, gather
from sdpa_onnx.core.judge.expectation import Expectation

__all__ = ["refitted"]

Array = NDArray[np.generic]

_STEPS = 8
# One step changes the scale by no more than this factor: beyond it the estimate of a single step says little.
_LARGEST_STEP = 0.5
# The scale explains the errors if at most this share of their squares, in units of sigma, is left.
_LEFT = 0.5


def refitted(finding: SizedMistake, expectation: Expectation, evidence: Evidence, output: Array) -> SizedMistake:
    """Replace the first-order estimate of a scale error by one around the right scale; other findings are kept.

    Args:
        finding: A finding of `find_directions`.
        expectation: What the output was compared with.
        evidence: Its evidence.
        output: In BNSH.

    Returns:
        The finding with the new estimate, its standard error and `is_refitted`; the finding itself if no scale
        explains the errors.
    """
    if finding.name != Direction.SCALE.value or expectation.rescaled is None:
        return finding
    found = _fit(expectation.rescaled, finding.estimate, output)
    if found is None:
        return finding
    factor, error, left = found
    if not left <= _LEFT * evidence.square_sum:
        return finding
    return replace(finding, estimate=factor - 1.0, standard_error=factor * error, is_refitted=True)


def _fit(rescaled: Callable[[float], Expectation], first: float, output: Array) -> tuple[float, float, float] | None:
    """Newton steps on the scale: (factor, standard error of its last step, squared deviations that are left)."""
    factor = 1.0 + max(-_LARGEST_STEP, min(_LARGEST_STEP, first))
    for _ in range(_STEPS):
        evidence = gather(rescaled(factor), output)
        if evidence.square_sum == 0.0:
            return factor, 0.0, 0.0
        step = estimate_of(Direction.SCALE, evidence.rows, evidence.square_sum)
        if step is None or not np.isfinite(step[0]):
            return None
        estimate, error = step
        if abs(estimate) <= error:
            return factor, error, evidence.square_sum
        factor *= 1.0 + max(-_LARGEST_STEP, min(_LARGEST_STEP, estimate))
    return None
