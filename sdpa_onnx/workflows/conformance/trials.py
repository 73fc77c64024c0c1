"""Run the cases of one conformance row on one runtime and collect the findings.

A row is a feature at one opset and element type. The cases of a row share sessions, so that sizes change
within a session. Does not survive a crash: `runner` isolates the process.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.precision import Precision
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.judge.agreement import Agreement, expect, judge
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Runtime, Session, Supported, Unsupported
from sdpa_onnx.workflows.conformance.drawing import DrawnCase, draw_cases
from sdpa_onnx.workflows.conformance.feature import Feature, FeatureCheck, Operator
from sdpa_onnx.workflows.conformance.judging import OutputFinding, allowed_precision, judge_case
from sdpa_onnx.workflows.conformance.observing import aligned_inputs, masked_spec, observe
from sdpa_onnx.workflows.conformance.operators import OperatorCase, build_case

# Classifying an outcome costs several judgements, and the first cases already differ in spread and model.
_OBSERVED_CASES = 4

__all__ = ["BrokenRuntimeError", "RowTrials", "WrongCase", "run_trials"]

Array = NDArray[np.generic]


class BrokenRuntimeError(Exception):
    """A runtime raised an error that is not a refusal; every other error here is a bug of sdpa_onnx."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongCase:
    """One wrong finding, with the data for an explanation.

    Args:
        case_id: Id of the case.
        source: How its arrays were drawn.
        finding: The judgement.
        operator_case: The case as it ran.
        actual: The wrong output; the attention output if the finding is not about one output.
        declared: The arithmetic that the runtime declares.
        is_right_alone: Whether it is right in a fresh session, so that earlier runs of its session cause it.
    """

    case_id: str
    source: str
    finding: OutputFinding
    operator_case: OperatorCase
    actual: Array
    declared: str
    is_right_alone: bool = False


@dataclass(slots=True, kw_only=True)
class RowTrials:
    """The collected results of the cases of a row. Mutable; used by one row only.

    Args:
        ran: The report of the first session that ran.
        cases: Number of cases run.
        wrong: Wrong findings, in the order found.
        wrong_cases: Number of cases with a wrong finding.
        suspicious: Diagnoses of outputs that are statistically suspicious.
        refused: The runtime's reasons for a refusal, in the order found.
        observed: Outcomes on the disputed point, case by case.
        max_abs_error, max_bound_ratio: Maximum over all outputs; None if no element was compared.
        warnings: Warnings of the runtime and the judge.
    """

    ran: RanReport | None = None
    cases: int = 0
    wrong: list[WrongCase] = field(default_factory=list)
    wrong_cases: int = 0
    suspicious: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    observed: list[tuple[str, ...]] = field(default_factory=list)
    max_abs_error: float | None = None
    max_bound_ratio: float | None = None
    warnings: list[str] = field(default_factory=list)


def run_trials(
    feature: Feature, runtime: Runtime, *, opset: int, dtype: Dtype, seed: int = 0, threads: int = 1
) -> RowTrials:
    """Run every case of a feature, also after the runtime refuses one."""
    trials = RowTrials()
    with ExitStack() as stack:
        sessions = _Sessions(runtime, LoadOptions(threads=threads), stack)
        for drawn in draw_cases(feature, dtype, seed=seed):
            operator_case = build_case(feature, drawn, opset)
            for fixed in _shape_kinds(feature, drawn):
                _run_one(trials, feature, drawn, operator_case, sessions, fixed=fixed)
    return trials


def _shape_kinds(feature: Feature, drawn: DrawnCase) -> tuple[bool, ...]:
    """Dynamic shapes (False), and for the first float32 case static shapes (True): one element type is enough."""
    has_static_model = feature.operator is not Operator.DECOMPOSED
    return (False, True) if drawn.is_first and has_static_model and drawn.case.dtype is Dtype.FLOAT32 else (False,)


_Key = tuple[AttentionSpec, bool, tuple[bool, ...]]


class _Sessions:
    """One session for each spec and kind of model, opened on first use."""

    def __init__(self, runtime: Runtime, options: LoadOptions, stack: ExitStack) -> None:
        self._runtime = runtime
        self._options = options
        self._stack = stack
        self._models: dict[_Key, OnnxModel] = {}
        self._open: dict[_Key, Session] = {}
        self._ran: RanReport | None = None

    def prepare(self, operator_case: OperatorCase, *, fixed: bool) -> None:
        """Build the model of a case; separate from `get`, so that an error here is not attributed to the runtime."""
        key = _key(operator_case, fixed=fixed)
        if key not in self._models:
            self._models[key] = operator_case.model(fixed)

    def run_alone(self, operator_case: OperatorCase, *, fixed: bool) -> Mapping[str, Array]:
        """The outputs of a prepared case in a session of its own.

        Raises:
            SessionError: If the runtime fails.
        """
        with self._runtime.load(self._models[_key(operator_case, fixed=fixed)], self._options) as session:
            return session.run(dict(operator_case.feeds))

    def get(self, operator_case: OperatorCase, *, fixed: bool) -> tuple[Session, RanReport]:
        """A session that runs a prepared case, and the report of the row's first session.

        Some runtimes load the model again to write a report, and the reports of a row differ in numbers only.

        Raises:
            SessionError: If the runtime refuses the model, before or while it loads.
        """
        key = _key(operator_case, fixed=fixed)
        if key not in self._open:
            model = self._models[key]
            match self._runtime.supports(model):
                case Unsupported(reason):
                    raise SessionError(reason)
                case Supported():
                    pass
            session = self._stack.enter_context(self._runtime.load(model, self._options))
            self._open[key] = session
            self._ran = self._ran or session.ran()
        return self._open[key], self._ran or self._open[key].ran()


def _key(operator_case: OperatorCase, *, fixed: bool) -> _Key:
    """One model for each spec, kind and broadcast axes: a mask axis of size 1 is static in the model."""
    mask = operator_case.inputs.attn_mask
    return (operator_case.spec, fixed, () if mask is None else tuple(size == 1 for size in mask.shape))


def _run_one(
    trials: RowTrials,
    feature: Feature,
    drawn: DrawnCase,
    operator_case: OperatorCase,
    sessions: _Sessions,
    *,
    fixed: bool,
) -> None:
    trials.cases += 1
    # Inputs and outputs are copied, so that the runtime cannot change the arrays that are judged.
    feeds = {name: array.copy() for name, array in operator_case.feeds.items()}
    sessions.prepare(operator_case, fixed=fixed)
    try:
        session, ran = sessions.get(operator_case, fixed=fixed)
        returned = session.run(feeds)
        outputs = {name: array.copy() for name, array in returned.items()}
        checks = list(_session_checks(feature, session, operator_case, returned, feeds))
    except SessionError as error:
        trials.refused.append(" ".join(str(error).split()))
        return
    except Exception as error:
        raise _broken(error) from error
    trials.ran = trials.ran or ran
    trials.warnings += [warning for warning in ran.warnings if warning not in trials.warnings]
    precision = allowed_precision(ran.precision, feature, drawn.case.dtype)
    findings = [*judge_case(feature, operator_case, outputs, precision), *checks]
    actual = outputs[operator_case.roles[OutputRole.OUTPUT]]
    findings = [_with_permitted_outcomes(feature, operator_case, actual, precision, finding) for finding in findings]
    is_right = not any(finding.is_wrong for finding in findings if finding.role == OutputRole.OUTPUT)
    if len(trials.observed) < _OBSERVED_CASES:
        trials.observed.append(observe(feature, operator_case, actual, precision, is_right=is_right))
    _update_maxima(trials, findings)
    wrong = [finding for finding in findings if finding.is_wrong]
    trials.wrong_cases += bool(wrong)
    source = f"{drawn.source}{', static shapes' if fixed else ''}"
    right_alone = _right_alone(trials, feature, operator_case, sessions, precision, fixed=fixed) if wrong else set()
    trials.wrong += [
        WrongCase(
            case_id=drawn.case.case_id,
            source=source,
            finding=each,
            operator_case=operator_case,
            actual=outputs[_name_of(operator_case, each.role)],
            declared=ran.precision,
            is_right_alone=each.role in right_alone,
        )
        for each in wrong
    ]
    trials.suspicious += [
        f"{drawn.case.case_id}: {each.agreement.diagnosis}" for each in findings if each.is_suspicious
    ]


def _right_alone(
    trials: RowTrials,
    feature: Feature,
    operator_case: OperatorCase,
    sessions: _Sessions,
    precision: Precision,
    *,
    fixed: bool,
) -> set[str]:
    """Roles of the outputs that are right in a fresh session; none after the first few wrong cases of a row."""
    if trials.wrong_cases > _OBSERVED_CASES:
        return set()
    try:
        outputs = sessions.run_alone(operator_case, fixed=fixed)
    except SessionError:
        return set()
    except Exception as error:
        raise _broken(error) from error
    judged = judge_case(feature, operator_case, outputs, precision)
    return {str(finding.role) for finding in judged if not finding.is_wrong}


def _broken(error: Exception) -> BrokenRuntimeError:
    text = " ".join(str(error).split()).rstrip(".")
    return BrokenRuntimeError(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _name_of(operator_case: OperatorCase, role: str) -> str:
    """The graph output of a role; that of the attention output for a check of the session."""
    names = {str(one): name for one, name in operator_case.roles.items()}
    return names.get(role, operator_case.roles[OutputRole.OUTPUT])


def _update_maxima(trials: RowTrials, findings: list[OutputFinding]) -> None:
    for finding in findings:
        agreement = finding.agreement
        trials.max_abs_error = _larger(trials.max_abs_error, agreement.max_abs_error)
        trials.max_bound_ratio = _larger(trials.max_bound_ratio, agreement.max_bound_ratio)
        trials.warnings += [warning for warning in agreement.warnings if warning not in trials.warnings]


def _larger(one: float | None, other: float | None) -> float | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _with_permitted_outcomes(
    feature: Feature, operator_case: OperatorCase, actual: Array, precision: Precision, finding: OutputFinding
) -> OutputFinding:
    """Replace a wrong finding if the operator specification permits another outcome and the output matches it."""
    if not feature.alignments or finding.role != OutputRole.OUTPUT or not finding.is_wrong:
        return finding
    spec = masked_spec(operator_case)
    for name, inputs in aligned_inputs(operator_case.spec, operator_case.inputs).items():
        if name in feature.alignments:
            agreement = judge(expect(spec, inputs, precision=precision), actual)
            if agreement.verdict is not Verdict.WRONG:
                return OutputFinding(role=OutputRole.OUTPUT, agreement=agreement)
    return finding


def _session_checks(
    feature: Feature,
    session: Session,
    operator_case: OperatorCase,
    outputs: Mapping[str, Array],
    feeds: Mapping[str, Array],
) -> Iterator[OutputFinding]:
    """Check session properties: repeatable bits, stable outputs, and in every run unmodified inputs.

    Args:
        feature: The feature, with its check.
        session: The session that ran.
        operator_case: The case.
        outputs: The arrays that the session returned, not copies.
        feeds: The arrays that it received, not copies.
    """
    match feature.check:
        case FeatureCheck.REPEAT:
            again = session.run(operator_case.feeds)
            same = all(again[name].tobytes() == array.tobytes() for name, array in outputs.items())
            yield _check_finding("repeat", "A second run on the same inputs returns different bits.", holds=same)
        case FeatureCheck.KEPT:
            before = {name: array.tobytes() for name, array in outputs.items()}
            session.run({name: _reversed(array) for name, array in operator_case.feeds.items()})
            same = all(before[name] == array.tobytes() for name, array in outputs.items())
            yield _check_finding("kept", "An output changed during the next run.", holds=same)
        case FeatureCheck.UNCHANGED | FeatureCheck.NONE:
            pass
    same = all(feeds[name].tobytes() == array.tobytes() for name, array in operator_case.feeds.items())
    if feature.check is FeatureCheck.UNCHANGED or not same:
        yield _check_finding("inputs", "The runtime modified its inputs.", holds=same)


def _reversed(array: Array) -> Array:
    """Reverse the last axis to get different numbers; masks and lengths stay."""
    return array[..., ::-1].copy() if array.dtype.kind not in "biu" else array


def _check_finding(role: str, fault: str, *, holds: bool) -> OutputFinding:
    diagnosis = "The check passes." if holds else fault
    return OutputFinding(
        role=role, agreement=Agreement(verdict=Verdict.OK if holds else Verdict.WRONG, diagnosis=diagnosis)
    )
