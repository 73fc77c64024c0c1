"""The judge: an output of attention against the float64 oracle, its proven bound and its sigma.

Says wrong, suspicious, rounding-level or ok, with the evidence. Fixed tolerances, relative error,
ulp and cosine are computed to be printed; they never decide.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.spec import AttentionSpec, Layout
from sdpa_onnx.core.judge.directions import SizedMistake, find_directions
from sdpa_onnx.core.judge.evidence import LARGEST_RATIO, Evidence, gather
from sdpa_onnx.core.judge.expectation import ROWS_PER_HEAD, Expectation, expect
from sdpa_onnx.core.records.verdicts import Verdict

__all__ = ["ROWS_PER_HEAD", "Agreement", "Expectation", "SizedMistake", "expect", "judge"]

Array = NDArray[np.generic]

# Root mean square of error / sigma over all elements and over those of one head; the largest of right outputs in
# METHOD A.5 and A.8 are 1.5 and 1.6. Beyond the first pair nothing explains them, beyond the third they are unusual.
_LARGEST_KAPPA = 4.5
_LARGEST_HEAD_KAPPA = 5.5
_USUAL_KAPPA = 1.6
# Largest |error| / sigma, as a multiple of what so many normal numbers reach once in a thousand (METHOD A.7).
_LARGEST_Z_SHARE = 3.0
_USUAL_Z_SHARE = 1.0
_CHANCE = 1e-3
# Sigma is an estimate, and roundings are not normal: the reach of z is this much larger (METHOD A.7).
_Z_MARGIN = 1.4
# A proven fault is laid to a mistake only if this explains so much of its squared error.
_TOLD_SHARE = 0.25
# Directions hold to first order: a larger scale error or leak is no estimate.
_FIRST_ORDER = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What the judge found.

    Args:
        verdict: WRONG if an element lies outside its proven bound, is not finite without cause, or is a number
            where a NaN in the inputs must show; the others follow from sigma, see METHOD A.7.
        diagnosis: The evidence in one sentence.
        max_abs_error: Largest |actual - oracle|.
        max_bound_ratio: Largest |actual - oracle| / bound; above 1 is a proof.
        worst: (batch, head, query, column) of the largest ratio, or None.
        max_relative_error: Largest |actual - oracle| / |oracle|.
        max_ulp_error: Largest |actual - oracle| in spacings of the output format at the oracle.
        cosine: Cosine between actual and oracle over all judged elements.
        mismatched: Finite elements outside their bound.
        not_finite: Elements that are NaN or infinite where the oracle is finite.
        swallowed: Numbers where a NaN in what a query sees must show.
        total: Elements compared.
        judged: Elements among them that the oracle has a number and a bound for.
        judged_rows: Rows judged; total_rows: rows present.
        scale_error_proven: Smallest relative error of the scale that these
            inputs and bounds would prove, to first order.
        kappa: Root mean square of error / sigma over the elements judged statistically, -1 if none was.
        max_z: Largest |error| / sigma among them, -1 if none was.
        statistical_rows: Rows judged statistically.
        findings: Mistakes that the errors show, the one that explains most first.
        warnings: Doubts, each one sentence.
    """

    verdict: Verdict
    diagnosis: str
    max_abs_error: float = 0.0
    max_bound_ratio: float = 0.0
    worst: tuple[int, int, int, int] | None = None
    max_relative_error: float = 0.0
    max_ulp_error: float = 0.0
    cosine: float = 1.0
    mismatched: int = 0
    not_finite: int = 0
    swallowed: int = 0
    total: int = 0
    judged: int = 0
    judged_rows: int = 0
    total_rows: int = 0
    scale_error_proven: float = math.inf
    kappa: float = -1.0
    max_z: float = -1.0
    statistical_rows: int = 0
    findings: tuple[SizedMistake, ...] = ()
    warnings: tuple[str, ...] = ()


@np.errstate(over="ignore", divide="ignore", invalid="ignore")  # of infinite inputs: what has no number is not judged
def judge(expectation: Expectation, actual: Array) -> Agreement:
    """Judge an output of attention.

    Args:
        expectation: What the inputs that the runtime got must give.
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
    if findings:  # what rows share only widens the error, and costs as much as sigma: asked for only where it decides
        findings = find_directions(evidence.rows, evidence.square_sum, expectation.precision, expectation.shared())
    verdict = _verdict(evidence, findings)
    product = math.sqrt(evidence.actual_square * evidence.oracle_square)
    return Agreement(
        verdict=verdict,
        diagnosis=_diagnosis(verdict, evidence, findings),
        max_abs_error=_finite(evidence.max_abs_error),
        max_bound_ratio=evidence.max_bound_ratio,
        worst=evidence.worst,
        max_relative_error=_finite(evidence.max_relative_error),
        max_ulp_error=_finite(evidence.max_ulp_error),
        cosine=evidence.dot / product if 0.0 < product < math.inf else 1.0,
        mismatched=evidence.mismatched,
        not_finite=evidence.not_finite,
        swallowed=evidence.swallowed,
        total=evidence.total,
        judged=evidence.judged,
        judged_rows=evidence.judged_rows,
        total_rows=math.prod(output.shape[:3]),
        scale_error_proven=evidence.scale_error_proven,
        kappa=evidence.kappa,
        max_z=evidence.max_z if evidence.deviations else -1.0,
        statistical_rows=evidence.statistical_rows,
        findings=findings,
        warnings=_warnings(evidence),
    )


def _verdict(evidence: Evidence, findings: tuple[SizedMistake, ...]) -> Verdict:
    """Source: METHOD A.7."""
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
    """The largest deviation over what so many right elements may reach."""
    return evidence.max_z / (_Z_MARGIN * math.sqrt(2.0 * math.log(2.0 * evidence.deviations / _CHANCE)))


def _finite(figure: float) -> float:
    return figure if math.isfinite(figure) else LARGEST_RATIO


def _warnings(evidence: Evidence) -> tuple[str, ...]:
    doubts = []
    if evidence.excused_rows:
        rows = _one_or_many(evidence.excused_rows, "row overflows", "rows overflow")
        them = "it" if evidence.excused_rows == 1 else "them"
        doubts.append(f"{rows} the declared format: what is not finite in {them} was not judged.")
    if evidence.unexplained:
        elements = _one_or_many(evidence.unexplained, "element", "elements")
        are = "is" if evidence.unexplained == 1 else "are"
        doubts.append(f"{elements} outside the judged rows {are} not finite; overflow or NaN is possible there.")
    return tuple(doubts)


def _diagnosis(verdict: Verdict, evidence: Evidence, findings: tuple[SizedMistake, ...]) -> str:
    """The evidence in a sentence or two."""
    inside = (
        f"All {evidence.total} elements lie inside the proven bound, the worst at {evidence.max_bound_ratio:.2g} of it"
    )
    spread = f"kappa {evidence.kappa:.3g}, largest error {evidence.max_z:.3g} sigma"
    match verdict:
        case Verdict.WRONG:
            told = [finding.says for finding in findings[:1] if _explains(finding)]
            return " ".join([_proof(evidence), *told])
        case Verdict.SUSPICIOUS:
            if findings:
                return f"{inside}, but their errors are no roundings. {findings[0].says}"
            return f"{inside}, but no rounding of the declared arithmetic explains their errors: {spread}."
        case Verdict.ROUNDING_LEVEL:
            return f"{inside}; {_doubt(evidence) or f'their rounding is larger than usual: {spread}'}."
        case Verdict.OK:
            return f"{inside}."


def _doubt(evidence: Evidence) -> str:
    """Why sigma did not decide, "" if it did."""
    if evidence.deviations:
        return ""
    regular = evidence.regular_rows == evidence.doubtful_rows
    why = "the inputs are constant or evenly spaced" if regular else "ill-conditioned"
    return f"{why}: only the bound was applied"


def _explains(finding: SizedMistake) -> bool:
    return finding.share >= _TOLD_SHARE and (abs(finding.estimate) <= _FIRST_ORDER or finding.name.endswith("missing"))


def _proof(evidence: Evidence) -> str:
    if evidence.not_finite:
        return (
            f"{_one_or_many(evidence.not_finite, 'element is', 'elements are')} NaN or infinite "
            f"where the oracle is finite, "
            f"first at (batch, head, query, column) {evidence.first_not_finite}."
        )
    if evidence.swallowed and not evidence.mismatched:
        many = "elements whose query sees it are numbers"
        told = _one_or_many(evidence.swallowed, "element whose query sees it is a number", many)
        return (
            f"A NaN in the inputs was swallowed: {told}, "
            f"first at (batch, head, query, column) {evidence.first_swallowed}."
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
