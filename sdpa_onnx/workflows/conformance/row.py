"""Build the conformance record of one row: the verdict of a feature on a runtime, with its evidence.

Does not judge outputs: `trials` and `judging` do.
"""

from sdpa_onnx.core.attention.mask_rule import full_mask
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.faults.diagnosis import Explanation
from sdpa_onnx.core.faults.output_diagnosis import explain_output
from sdpa_onnx.core.records.cause_text import looks_like
from sdpa_onnx.core.records.records import ConformanceRecord, Conformity, Outcome
from sdpa_onnx.runtimes.base import RanReport, Runtime
from sdpa_onnx.workflows.conformance.feature import Feature, Operator
from sdpa_onnx.workflows.conformance.judging import allowed_precision
from sdpa_onnx.workflows.conformance.table import FeatureRow
from sdpa_onnx.workflows.conformance.trials import RowTrials, WrongCase, run_trials

# Wall time of a row, seconds.
DEFAULT_TIMEOUT_SECONDS = 20.0

__all__ = ["DEFAULT_TIMEOUT_SECONDS", "crashed_record", "repeat_command", "run_row"]

# One output that is only statistically suspicious may be chance; two are not (METHOD A.7).
_SUSPICIOUS_LIMIT = 2
# Explaining a fault costs many judgements; if the first cases are not explained, the others seldom are.
_EXPLAINED_CASES = 3
# How records call an output that is not called so by every operator.
_ROLES = {OutputRole.OUTPUT.value: "output", OutputRole.QK.value: "qk"}
# Characters; a reason must fit one line of a table.
_REASON_LENGTH = 280


def run_row(row: FeatureRow, runtime: Runtime, *, seed: int = 0, threads: int = 1) -> ConformanceRecord:
    """Run a feature on a runtime and return its record."""
    trials = run_trials(row.feature, runtime, opset=row.opset, dtype=row.dtype, seed=seed, threads=threads)
    verdict = _verdict(trials)
    explanation = _explanation(row, trials)
    diagnosis = _diagnosis(trials, explanation)
    is_judged = verdict is Conformity.RIGHT or verdict.disagrees
    path, path_nodes = _path(row.feature, trials.ran if is_judged else None)
    suspicion = trials.suspicious[:1] if verdict is Conformity.RIGHT else []
    return ConformanceRecord(
        case=_case_name(row),
        target=row.feature.operator.value,
        form=_form(row),
        opset=row.opset,
        runtime=runtime.name,
        outcome=verdict.outcome,
        reason=_reason(trials, verdict, diagnosis),
        warnings=(*trials.warnings, *(f"Suspicious once: {text}" for text in suspicion)),
        feature=row.feature.slug,
        group=row.feature.group,
        title=row.feature.title,
        operator=row.feature.operator.value,
        dtype=row.dtype.value,
        verdict=verdict,
        path=path,
        path_nodes=path_nodes,
        observed=_observed(trials),
        reading=_reading(explanation),
        diagnosis=diagnosis,
        max_abs_error=trials.max_abs_error if is_judged else None,
        max_bound_ratio=trials.max_bound_ratio if is_judged else None,
        cases=trials.cases if is_judged else None,
        wrong_cases=trials.wrong_cases if is_judged else None,
        repeat=repeat_command(row, runtime.name),
    )


def crashed_record(
    row: FeatureRow,
    runtime: str,
    reason: str,
    *,
    outcome: Outcome = Outcome.FAILED,
    verdict: Conformity = Conformity.CRASHED,
) -> ConformanceRecord:
    """The record of a row whose process crashed, raised an error that is no refusal, or timed out (NO_ANSWER)."""
    return ConformanceRecord(
        case=_case_name(row),
        target=row.feature.operator.value,
        form=_form(row),
        opset=row.opset,
        runtime=runtime,
        outcome=outcome,
        reason=reason,
        feature=row.feature.slug,
        group=row.feature.group,
        title=row.feature.title,
        operator=row.feature.operator.value,
        dtype=row.dtype.value,
        verdict=verdict,
        diagnosis=reason,
        repeat=repeat_command(row, runtime),
    )


def repeat_command(row: FeatureRow, runtime: str, *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> str:
    """The command that runs the row again, in the same time."""
    timeout = "" if timeout_seconds == DEFAULT_TIMEOUT_SECONDS else f" --timeout {timeout_seconds:g}"
    return (
        f"sdpa-onnx conformance --runtime {runtime} --only {row.feature.slug} --opset {row.opset} "
        f"--dtype {row.dtype.value}{timeout}"
    )


def _form(row: FeatureRow) -> str:
    return "decomposed" if row.feature.operator in (Operator.BODY, Operator.DECOMPOSED) else "attention"


def _case_name(row: FeatureRow) -> str:
    return f"{row.feature.slug}_opset{row.opset}_{row.dtype.short}"


def _verdict(trials: RowTrials) -> Conformity:
    if trials.wrong:
        return Conformity.WRONG
    if len(trials.suspicious) >= _SUSPICIOUS_LIMIT:
        return Conformity.SUSPICIOUS
    return Conformity.REFUSED if trials.refused else Conformity.RIGHT


def _reason(trials: RowTrials, verdict: Conformity, diagnosis: str) -> str:
    match verdict:
        case Conformity.RIGHT:
            return ""
        case Conformity.WRONG | Conformity.SUSPICIOUS | Conformity.CRASHED | Conformity.NO_ANSWER:
            return diagnosis
        case Conformity.REFUSED:
            return _shortened(trials.refused[0])


def _diagnosis(trials: RowTrials, explanation: Explanation | None) -> str:
    """The largest error in one sentence, the fault that explains it, and the refusal of other cases."""
    if not trials.wrong:
        times = "once" if len(trials.suspicious) == 1 else f"{len(trials.suspicious)} times"
        return f"Suspicious {times}: {trials.suspicious[0]}" if trials.suspicious else ""
    worst = _worst(trials)
    role = _ROLES.get(worst.finding.role, worst.finding.role)
    parts = [f"{role} of {worst.case_id} ({worst.source}): {worst.finding.agreement.diagnosis}"]
    if worst.is_right_alone:
        parts.append("It is right in a fresh session: earlier runs of the session cause it.")
    elif explanation is not None:
        parts.append(looks_like(explanation.says))
    if trials.refused:
        parts.append(f"Other cases are refused: {_shortened(trials.refused[0])}")
    return " ".join(parts)


def _observed(trials: RowTrials) -> str:
    """The outcomes that match every case; if there is none, the first outcome of each case."""
    cases = [outcomes for outcomes in trials.observed if outcomes]
    common = [name for name in (cases[0] if cases else ()) if all(name in outcomes for outcomes in cases)]
    return " or ".join(common or dict.fromkeys(outcomes[0] for outcomes in cases))


def _worst(trials: RowTrials) -> WrongCase:
    return max(
        trials.wrong,
        key=lambda each: (each.finding.agreement.not_finite > 0, each.finding.agreement.max_bound_ratio or 0.0),
    )


def _explanation(row: FeatureRow, trials: RowTrials) -> Explanation | None:
    """The fault that explains one of the first wrong outputs, else of the first scores; caches need no explanation."""
    for role in (OutputRole.OUTPUT, OutputRole.QK):
        for each in [each for each in trials.wrong if each.finding.role == role][:_EXPLAINED_CASES]:
            found = _explained(row, each, role)
            if found is not None:
                return found
    return None


def _explained(row: FeatureRow, wrong: WrongCase, role: OutputRole) -> Explanation | None:
    case = wrong.operator_case
    return explain_output(
        role,
        case.spec,
        full_mask(case.inputs, case.mask_rule, layout=case.spec.layout),
        wrong.actual,
        precision=wrong.declared,
        allowed=allowed_precision(wrong.declared, row.feature, row.dtype),
        qk_mode=row.feature.qk_mode or QkOutputMode.SCORES,
    )


def _reading(explanation: Explanation | None) -> str:
    if explanation is None:
        return ""
    return f"{explanation.reading} ({explanation.dated})" if explanation.dated else explanation.reading


def _path(feature: Feature, ran: RanReport | None) -> tuple[str, int | None]:
    """Whether the operator ran natively or expanded, and in how many nodes."""
    if ran is None:
        return "", None
    operator = feature.operator.value.rpartition(".")[2]
    if feature.operator in (Operator.BODY, Operator.DECOMPOSED):
        return "native", sum(ran.node_counts.values())
    if operator in ran.expanded:
        return "expanded", ran.expanded[operator]
    return "native", 1


def _shortened(text: str) -> str:
    """Shorten a reason to one line of a table: keep its beginning, what failed, and its end, the cause."""
    if len(text) <= _REASON_LENGTH:
        return text
    head = _REASON_LENGTH // 3
    return f"{text[:head]} ... {text[head - _REASON_LENGTH + 5 :]}"
