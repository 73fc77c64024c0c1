"""Compares an attention output with the float64 oracle, its proven error bound and its sigma.

The verdict is wrong, suspicious, rounding-level or ok, with the evidence. Relative error, ulp and
cosine are computed for information only; they never decide the verdict.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.core.judge.directions import SizedMistake, find_directions
from sdpa_onnx.core.judge.evidence import LARGEST_RATIO, Evidence, gather
from sdpa_onnx.core.judge.expectation import ROWS_PER_HEAD, Expectation, expect
from sdpa_onnx.core.judge.scale_refit import refitted
from sdpa_onnx.core.records.verdicts import Verdict

__all__ = ["ROWS_PER_HEAD", "Agreement", "Expectation", "SizedMistake", "expect", "judge"]

Array = NDArray[np.generic]

# Limits of the root mean square of error / sigma, over all elements and over one head; the largest for correct
# outputs in METHOD A.5 and A.8 are 1.5 and 1.6. Above the first two the output is suspicious, above the third unusual.
_LARGEST_KAPPA = 4.5
_LARGEST_HEAD_KAPPA = 5.5
_USUAL_KAPPA = 1.6
# Largest |error| / sigma, as a multiple of the largest of as many normal numbers, at a chance of 1/1000 (METHOD A.7).
_LARGEST_Z_SHARE = 3.0
_USUAL_Z_SHARE = 1.0
_CHANCE = 1e-3
# Sigma is an estimate and rounding errors are not normal, so z may be larger by this factor (METHOD A.7).
_Z_MARGIN = 1.4
# The diagnosis of a wrong output names a mistake only if it explains this share of the squared error.
_NAMED_SHARE = 0.25
# Directions are a first-order approximation, so larger estimates of a scale error or leak are not reliable.
_FIRST_ORDER = 0.3

# Warnings about a softmax without a guard; the first names a guard that the reader of files knows.
_NAN_ROWS = (
    "A row in which no key is visible gives NaN (the softmax has no guard); keep one key visible in each row, or guard "
    "it with torch.where(torch.isnan(weights), 0.0, weights) after the softmax."
)
_NUMBERS_INSTEAD = (
    "In a row in which no key is visible the graph defines NaN, and this runtime returns numbers; both count as right."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Result of comparing an output with the oracle.

    Args:
        verdict: WRONG if an element is outside its proven bound, is not finite without cause, or is finite
            where a NaN in the inputs must reach it; the other verdicts follow from sigma, see METHOD A.7.
        diagnosis: The evidence in one sentence.
        max_abs_error: Largest |actual - oracle|; None if no element was compared, like the four below.
        max_bound_ratio: Largest |actual - oracle| / bound; above 1 is a proof.
        worst: (batch, head, query, column) of the largest bound ratio, or None.
        max_relative_error: Largest |actual - oracle| / |oracle|.
        max_ulp_error: Largest |actual - oracle| in spacings of the output format at the oracle.
        cosine: Cosine similarity of actual and oracle over all judged elements.
        mismatched: Number of finite elements outside their bound.
        not_finite: Number of elements that are NaN or infinite where the oracle is finite.
        swallowed: Number of finite elements where a NaN among the inputs visible to the query must appear.
        total: Number of elements compared.
        judged: Number of those for which the oracle and the bound are finite, or the graph defines NaN.
        judged_rows: Rows judged; total_rows: rows of the output.
        scale_error_proven: Smallest relative error of the scale that these
            inputs and bounds can prove, to first order.
        kappa: Root mean square of error / sigma over the elements judged statistically, None if there are none.
        max_z: Largest |error| / sigma among them, None if there are none.
        statistical_rows: Rows judged statistically.
        findings: Mistakes that the score tests found; the one that explains most comes first.
        warnings: Limits of this result, each one sentence.
    """

    verdict: Verdict
    diagnosis: str
    max_abs_error: float | None = None
    max_bound_ratio: float | None = None
    worst: tuple[int, int, int, int] | None = None
    max_relative_error: float | None = None
    max_ulp_error: float | None = None
    cosine: float | None = None
    mismatched: int = 0
    not_finite: int = 0
    swallowed: int = 0
    total: int = 0
    judged: int = 0
    judged_rows: int = 0
    total_rows: int = 0
    scale_error_proven: float = math.inf
    kappa: float | None = None
    max_z: float | None = None
    statistical_rows: int = 0
    findings: tuple[SizedMistake, ...] = ()
    warnings: tuple[str, ...] = ()


@np.errstate(over="ignore", divide="ignore", invalid="ignore")  # infinite inputs: results without a number are skipped
def judge(expectation: Expectation, actual: Array) -> Agreement:
    """Compare an output of attention with its expectation and decide the verdict.

    Args:
        expectation: Oracle, bound and sigma for the inputs that the runtime received.
        actual: The output, in the spec's layout.

    Source: METHOD A.3, A.4, A.7; docs/decisions/0004.
    """
    if actual.shape != expectation.shape:
        return Agreement(
            verdict=Verdict.WRONG,
            diagnosis=f"The output has shape {actual.shape}, expected {expectation.shape}.",
        )
    output = _heads_first(expectation.spec, actual)
    evidence = gather(expectation, output)
    findings = find_directions(evidence.rows, evidence.square_sum, expectation.precision, None)
    if findings:  # shared errors only widen the standard error and cost as much as sigma: compute them only if needed
        findings = find_directions(evidence.rows, evidence.square_sum, expectation.precision, expectation.shared())
        findings = tuple(refitted(finding, expectation, evidence, output) for finding in findings)
    verdict = _verdict(evidence, findings)
    product = math.sqrt(evidence.actual_square * evidence.oracle_square)
    return Agreement(
        verdict=verdict,
        diagnosis=_diagnosis(verdict, evidence, findings),
        max_abs_error=_finite(evidence.max_abs_error) if evidence.judged else None,
        max_bound_ratio=evidence.max_bound_ratio if evidence.judged else None,
        worst=evidence.worst,
        max_relative_error=_finite(evidence.max_relative_error) if evidence.judged else None,
        max_ulp_error=_finite(evidence.max_ulp_error) if evidence.judged else None,
        cosine=evidence.dot / product if 0.0 < product < math.inf else None,
        mismatched=evidence.mismatched,
        not_finite=evidence.not_finite,
        swallowed=evidence.swallowed,
        total=evidence.total,
        judged=evidence.judged,
        judged_rows=evidence.judged_rows,
        total_rows=math.prod(output.shape[:3]),
        scale_error_proven=evidence.scale_error_proven,
        kappa=evidence.kappa if evidence.deviations else None,
        max_z=evidence.max_z if evidence.deviations else None,
        statistical_rows=evidence.statistical_rows,
        findings=findings,
        warnings=_warnings(evidence),
    )


def _verdict(evidence: Evidence, findings: tuple[SizedMistake, ...]) -> Verdict:
    """Decide the verdict.

    Source: METHOD A.7.
    """
    if evidence.mismatched or evidence.not_finite or evidence.swallowed:
        return Verdict.WRONG
    if not evidence.deviations:
        return Verdict.ROUNDING_LEVEL if evidence.doubtful_rows else Verdict.OK
    z_share = _z_share(evidence)
    too_rough = evidence.kappa > _LARGEST_KAPPA or evidence.head_kappa > _LARGEST_HEAD_KAPPA
    if findings or too_rough or z_share > _LARGEST_Z_SHARE:
        return Verdict.SUSPICIOUS
    if evidence.kappa > _USUAL_KAPPA or z_share > _USUAL_Z_SHARE:
        return Verdict.ROUNDING_LEVEL
    return Verdict.OK


def _z_share(evidence: Evidence) -> float:
    """Largest deviation divided by the limit for this number of correct elements."""
    return evidence.max_z / (_Z_MARGIN * math.sqrt(2.0 * math.log(2.0 * evidence.deviations / _CHANCE)))


def _finite(figure: float) -> float:
    return figure if math.isfinite(figure) else LARGEST_RATIO


def _warnings(evidence: Evidence) -> tuple[str, ...]:
    doubts = []
    if evidence.excused_rows:
        rows = _one_or_many(evidence.excused_rows, "row overflows", "rows overflow")
        them = "it" if evidence.excused_rows == 1 else "them"
        doubts.append(f"{rows} the declared format: elements of {them} that are not finite were not judged.")
    if evidence.unexplained:
        elements = _one_or_many(evidence.unexplained, "element", "elements")
        are = "is" if evidence.unexplained == 1 else "are"
        doubts.append(f"{elements} outside the judged rows {are} not finite; overflow or NaN is possible there.")
    if evidence.nan_rows:
        doubts.append(_NAN_ROWS)
    if evidence.number_rows:
        doubts.append(_NUMBERS_INSTEAD)
    return tuple(doubts)


def _diagnosis(verdict: Verdict, evidence: Evidence, findings: tuple[SizedMistake, ...]) -> str:
    """Summarise the evidence in one or two sentences."""
    inside = (
        f"All {evidence.total} elements are within the proven bound, the worst at {evidence.max_bound_ratio:.2g} of it"
    )
    spread = f"kappa {evidence.kappa:.3g}, largest error {evidence.max_z:.3g} sigma"
    match verdict:
        case Verdict.WRONG:
            causes = [finding.says for finding in findings[:1] if _explains(finding)]
            return " ".join([_proof(evidence), *causes])
        case Verdict.SUSPICIOUS:
            if findings:
                return f"{inside}, but the errors are not rounding errors. {findings[0].says}"
            return f"{inside}, but rounding in the declared precision does not explain the errors: {spread}."
        case Verdict.ROUNDING_LEVEL:
            return f"{inside}; {_doubt(evidence) or f'the rounding errors are larger than usual: {spread}'}."
        case Verdict.OK:
            return f"{inside}."


def _doubt(evidence: Evidence) -> str:
    """Explain why sigma was not used, "" if it was."""
    if evidence.deviations:
        return ""
    regular = evidence.regular_rows == evidence.doubtful_rows
    why = "the inputs are constant or evenly spaced" if regular else "the inputs are ill-conditioned"
    return f"{why}, so only the bound was checked"


def _explains(finding: SizedMistake) -> bool:
    return finding.share >= _NAMED_SHARE and (
        finding.is_refitted or abs(finding.estimate) <= _FIRST_ORDER or finding.name.endswith("missing")
    )


def _proof(evidence: Evidence) -> str:
    if evidence.not_finite:
        return (
            f"{_one_or_many(evidence.not_finite, 'element is', 'elements are')} NaN or infinite "
            f"where the oracle is finite, "
            f"first at (batch, head, query, column) {evidence.first_not_finite}."
        )
    if evidence.swallowed and not evidence.mismatched:
        many = "elements whose query attends to it are numbers"
        lost = _one_or_many(evidence.swallowed, "element whose query attends to it is a number", many)
        return (
            f"A NaN in the inputs was lost: {lost}, first at (batch, head, query, column) {evidence.first_swallowed}."
        )
    return (
        f"{evidence.mismatched} of {evidence.total} elements exceed the proven bound, "
        f"at worst {evidence.max_bound_ratio:.3g} times at (batch, head, query, column) {evidence.worst}: "
        f"{evidence.worst_text}."
    )


def _one_or_many(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _heads_first(spec: AttentionSpec, output: Array) -> Array:
    if spec.layout is Layout.BNSH:
        return output
    batch_size, q_seq_len, _ = output.shape
    return output.reshape(batch_size, q_seq_len, spec.q_num_heads, spec.v_head_dim).transpose(0, 2, 1, 3)
