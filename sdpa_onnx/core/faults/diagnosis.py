"""Explains a wrong output: finds the reading, scale, factor or lower precision that it agrees with.

Decides no verdict; see `judge.agreement`. An explanation must satisfy the same error bounds as a correct
output, on up to 64 queries of each head, among them the worst.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import HeadBlock, head_blocks
from sdpa_onnx.core.attention.precision import Precision, find_precision
from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.core.faults.diagnosis_fit import Blocks, ExplainedOutput, select_queries
from sdpa_onnx.core.faults.diagnosis_systematic import common_factor
from sdpa_onnx.core.faults.error_places import describe_places
from sdpa_onnx.core.faults.lower_precision import lower_precision
from sdpa_onnx.core.faults.reading_blocks import after_change
from sdpa_onnx.core.faults.reading_inputs import with_spec
from sdpa_onnx.core.faults.readings import Reading, readings_for
from sdpa_onnx.core.judge.agreement import Agreement, expect, judge
from sdpa_onnx.core.judge.nan_places import contains_nan
from sdpa_onnx.core.records.verdicts import Verdict

__all__ = ["Explanation", "explain"]

Array = NDArray[np.generic]
Float64 = NDArray[np.float64]

# An explanation must reduce the error to at most this share of it.
_LEFT_BY_READING = 0.5
_LEFT_BY_SCALE = 0.25
# Readings whose remaining errors differ by less than this, in units of their bounds, cannot be distinguished.
_SAME_SHARE = 0.02
# Number of readings that are checked against their own bounds, the nearest first.
_FINALISTS = 8
# Start values of the search for a scale factor.
_FIRST_FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
_STEPS = 8
_LARGEST_STEP = 0.5
_DIFFERENCE = 1e-4
# A factor nearer to 1 than this is printed in percent.
_IN_PERCENT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The likely cause of a wrong output.

    Args:
        says: One clause that follows "It looks as if": "the scale is off by 1.9 %".
        dated: Version of the specification or of a runtime with this reading; "" if none is known.
        reading: Slug: a name of `readings.READINGS`, or nan-swallowed, scale-off, gain, lower-precision, or a slug
            of `diagnosis_places`.
    """

    says: str
    dated: str = ""
    reading: str = ""


def explain(spec: AttentionSpec, inputs: AttentionInputs, actual: Array, *, precision: str) -> Explanation | None:
    """Find the likely cause of an output whose verdict is wrong or suspicious.

    Args:
        spec: The attention that should have been computed.
        inputs: The arrays as the runtime received them.
        actual: The output, in the spec's layout.
        precision: The declared precision, a key of `PRECISIONS`.

    Returns:
        A swallowed NaN if there is no other error; else the first of reading, scale, factor, lower precision and
        places that fits the elements that no NaN reaches; None if none fits.
    """
    declared = find_precision(precision)
    subject = select_queries(spec, inputs, actual, declared)
    if subject is None:
        return None
    agreement = _judged(subject, inputs, actual, declared)
    if agreement.swallowed and not agreement.mismatched and not agreement.not_finite:
        return Explanation(says="a NaN in the inputs is replaced by a number", reading="nan-swallowed")
    if agreement.verdict in (Verdict.OK, Verdict.ROUNDING_LEVEL):
        return None
    right = subject.outputs(head_blocks)
    error = subject.residual(right)
    found = _by_reading(subject, right, declared) or _by_scale(subject, error, declared)
    found = found or _by_gain(subject, right, error)
    if found is None:
        name = lower_precision(subject, right, precision, actual)
        found = None if name is None else Explanation(says=f"it behaves like {name}", reading="lower-precision")
    if found is None:
        places = describe_places(subject, right, actual.dtype)
        found = None if places is None else Explanation(says=places[1], reading=places[0])
    return found


def _judged(subject: ExplainedOutput, inputs: AttentionInputs, actual: Array, declared: Precision) -> Agreement:
    """Judge the queries that readings are compared on; all queries if the inputs contain a NaN."""

    def blocks(spec: AttentionSpec, inputs: AttentionInputs, **_: object) -> Iterator[HeadBlock]:
        return head_blocks(spec, inputs, rows=subject.rows)

    if contains_nan(inputs):
        expectation = expect(subject.spec, inputs, precision=declared)
    else:
        every = actual.shape[2] if subject.spec.layout is Layout.BNSH else actual.shape[1]
        expectation = expect(subject.spec, inputs, precision=declared, rows_per_head=every, blocks_of=blocks)
    with np.errstate(invalid="ignore"):
        return judge(expectation, actual)


def _by_reading(subject: ExplainedOutput, right: Float64, declared: Precision) -> Explanation | None:
    """Find the nearest reading that the output agrees with; among equal ones the first in the table."""
    error = subject.residual(right)
    near: list[tuple[float, Reading]] = []
    for reading in readings_for(subject.spec):
        residual = subject.residual(subject.outputs(reading.blocks))
        if residual < math.inf and residual <= _LEFT_BY_READING * error:
            near.append((residual, reading))
    near.sort(key=lambda pair: pair[0])
    agreeing: list[tuple[float, str]] = []
    for _, reading in near[:_FINALISTS]:
        truth = subject.truth(reading.blocks, declared)
        if subject.agrees(truth):
            agreeing.append((subject.share_of_bound(truth), reading.name))
    if not agreeing:
        return None
    least = min(share for share, _ in agreeing)
    same = {name for share, name in agreeing if share <= least + _SAME_SHARE}
    first = next(reading for reading in readings_for(subject.spec) if reading.name in same)
    return Explanation(says=first.says, dated=first.dated, reading=first.name)


def _scaled(factor: float) -> Blocks:
    return after_change(with_spec(scale=lambda spec: factor * spec.scale_value))


def _by_scale(subject: ExplainedOutput, error: float, declared: Precision) -> Explanation | None:
    """Find the factor on the scale that fits best, by Gauss-Newton steps on its logarithm."""
    if subject.spec.scale_value == 0.0 or not np.isfinite(subject.actual).any():
        return None
    factor = min(_FIRST_FACTORS, key=lambda start: subject.residual(subject.outputs(_scaled(start))))
    for _ in range(_STEPS):
        step = _newton_step(subject, factor)
        factor *= math.exp(step)
        if abs(step) < 1e-9:
            break
    blocks = _scaled(factor)
    left = subject.residual(subject.outputs(blocks))
    if not left <= _LEFT_BY_SCALE * error or not subject.agrees(subject.truth(blocks, declared)):
        return None
    off = factor - 1.0
    says = f"the scale is off by {100.0 * off:.2g} %"
    if abs(off) > _IN_PERCENT or factor < _IN_PERCENT:
        says = f"the scale is {factor:.3g} times the right one"
    return Explanation(says=says, reading="scale-off")


def _newton_step(subject: ExplainedOutput, factor: float) -> float:
    """Compute the step of ln(factor) that minimises the error to first order."""
    here = subject.outputs(_scaled(factor))
    slope = (subject.outputs(_scaled(factor * (1.0 + _DIFFERENCE))) - here) / _DIFFERENCE
    with np.errstate(all="ignore"):
        known = ~subject.excused & np.isfinite(subject.actual) & np.isfinite(here) & np.isfinite(slope)
        left = np.where(known, (subject.actual - here) / subject.weight, 0.0)
        slope = np.where(known, slope / subject.weight, 0.0)
    square = float(np.vdot(slope, slope))
    if not 0.0 < square < math.inf:
        return 0.0
    step = float(np.vdot(slope, left)) / square
    return max(-_LARGEST_STEP, min(_LARGEST_STEP, step)) if math.isfinite(step) else 0.0


def _by_gain(subject: ExplainedOutput, right: Float64, error: float) -> Explanation | None:
    """Find one factor on the whole output: the output divided by it is correct."""
    factor = common_factor(subject, right)
    if factor is None:
        return None
    with np.errstate(all="ignore"):
        divided = replace(subject, actual=subject.actual / factor)
        inside = np.abs(divided.actual - right) <= divided.weight
    if not divided.residual(right) <= _LEFT_BY_SCALE * error or not np.all(inside | subject.excused):
        return None
    return Explanation(says=f"the output is off by a factor of {_format_factor(factor)}", reading="gain")


def _format_factor(factor: float) -> str:
    """Format with two digits of the difference from 1: 1.001."""
    off = abs(factor - 1.0)
    if off > _IN_PERCENT or off == 0.0:
        return f"{factor:.3g}"
    decimals = 1 - math.floor(math.log10(off))
    return f"{factor:.{decimals}f}".rstrip("0").rstrip(".")
