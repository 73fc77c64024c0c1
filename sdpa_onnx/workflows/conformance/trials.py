"""Run the cases of one row on one runtime and gather what was found.

A row is a feature at one opset and element type. Sessions are shared by the cases of
a row, so that sizes change within a session; what ends the process is `worker`'s concern.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.precision import Precision
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.judge.agreement import Agreement, expect, judge
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Runtime, Session, Supported, Unsupported
from sdpa_onnx.workflows.conformance.drawing import DrawnCase, draw_cases
from sdpa_onnx.workflows.conformance.feature import DisputedPoint, Feature, FeatureCheck, Operator
from sdpa_onnx.workflows.conformance.judging import OutputFinding, allowed_precision, judge_case
from sdpa_onnx.workflows.conformance.observing import aligned_inputs, masked_spec, observe
from sdpa_onnx.workflows.conformance.operators import OperatorCase, build_case

# Naming an outcome costs several judgements, and the first cases differ in spread and kind of model.
_OBSERVED_CASES = 4

__all__ = ["BrokenRuntimeError", "RowTrials", "WrongCase", "run_trials"]

Array = NDArray[np.generic]


class BrokenRuntimeError(Exception):
    """A runtime raised what is no refusal; everything else that is raised here is our own fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongCase:
    """One output that is wrong, with all that an explanation needs; of what is no output, the first one."""

    case_id: str
    word: str
    finding: OutputFinding
    posed: OperatorCase
    actual: Array
    declared: str


@dataclass(slots=True, kw_only=True)
class RowTrials:
    """What the cases of a row gave; private to a row and short-lived.

    Args:
        ran: What the first session that ran says of itself.
        cases: Cases run.
        wrong: Wrong outputs, in the order found.
        wrong_cases: Cases with one.
        suspicious: Diagnoses of outputs that only statistics speak against.
        refused: The runtime's reasons, in the order found.
        observed: Outcomes that fit on the disputed point, case by case.
        max_abs_error, max_bound_ratio: Over all outputs.
        warnings: Doubts of the runtime and the judge.
    """

    ran: RanReport | None = None
    cases: int = 0
    wrong: list[WrongCase] = field(default_factory=list)
    wrong_cases: int = 0
    suspicious: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    observed: list[tuple[str, ...]] = field(default_factory=list)
    max_abs_error: float = 0.0
    max_bound_ratio: float = 0.0
    warnings: list[str] = field(default_factory=list)


def run_trials(
    feature: Feature, runtime: Runtime, *, opset: int, dtype: Dtype, seed: int = 0, threads: int = 1
) -> RowTrials:
    """Run every case of a feature; a runtime that refuses one is asked the others all the same."""
    trials = RowTrials()
    with ExitStack() as stack:
        sessions = _Sessions(runtime, LoadOptions(threads=threads), stack)
        for drawn in draw_cases(feature, dtype, seed=seed):
            posed = build_case(feature, drawn, opset)
            for fixed in _kinds(feature, drawn):
                _run_one(trials, feature, drawn, posed, sessions, fixed=fixed)
    return trials


def _kinds(feature: Feature, drawn: DrawnCase) -> tuple[bool, ...]:
    """Whether a case runs with open sizes only, or with fixed ones too: sizes do not depend on the element type."""
    is_written_by_us = feature.operator is not Operator.DECOMPOSED
    return (False, True) if drawn.is_first and is_written_by_us and drawn.case.dtype is Dtype.FLOAT32 else (False,)


_Key = tuple[AttentionSpec, bool, tuple[bool, ...]]


class _Sessions:
    """One session for each spec and kind of model, opened when first needed."""

    def __init__(self, runtime: Runtime, options: LoadOptions, stack: ExitStack) -> None:
        self._runtime = runtime
        self._options = options
        self._stack = stack
        self._models: dict[_Key, OnnxModel] = {}
        self._open: dict[_Key, Session] = {}
        self._ran: RanReport | None = None

    def prepare(self, posed: OperatorCase, *, fixed: bool) -> None:
        """Build the model of a case, so that a mistake in it is not taken for the runtime's."""
        key = _key(posed, fixed=fixed)
        if key not in self._models:
            self._models[key] = posed.model(fixed)

    def get(self, posed: OperatorCase, *, fixed: bool) -> tuple[Session, RanReport]:
        """A session that runs a prepared case, and what the row's first session says of itself.

        Asking costs some runtimes a second load, and the sessions of a row differ in figures only.

        Raises:
            SessionError: If the runtime refuses the model, before or while it loads.
        """
        key = _key(posed, fixed=fixed)
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


def _key(posed: OperatorCase, *, fixed: bool) -> _Key:
    """One model for each spec and kind; an axis of 1 is fixed in it, since the mask is broadcast over it."""
    mask = posed.inputs.attn_mask
    return (posed.spec, fixed, () if mask is None else tuple(size == 1 for size in mask.shape))


def _run_one(
    trials: RowTrials, feature: Feature, drawn: DrawnCase, posed: OperatorCase, sessions: _Sessions, *, fixed: bool
) -> None:
    trials.cases += 1
    # The runtime gets arrays of its own, and what it gives is copied: neither may change what is judged.
    feeds = {name: array.copy() for name, array in posed.feeds.items()}
    sessions.prepare(posed, fixed=fixed)
    try:
        session, ran = sessions.get(posed, fixed=fixed)
        given = session.run(feeds)
        outputs = {name: array.copy() for name, array in given.items()}
        asked = list(_asked_besides(feature, session, posed, given, feeds))
    except SessionError as error:
        trials.refused.append(" ".join(str(error).split()))
        return
    except Exception as error:
        what = " ".join(str(error).split()).rstrip(".")
        raise BrokenRuntimeError(f"{type(error).__name__}: {what}" if what else type(error).__name__) from error
    trials.ran = trials.ran or ran
    trials.warnings += [doubt for doubt in ran.warnings if doubt not in trials.warnings]
    precision = allowed_precision(ran.precision, feature, drawn.case.dtype)
    findings = [*judge_case(feature, posed, outputs, precision), *asked]
    actual = outputs[posed.roles["output"]]
    findings = [_with_open_points(feature, posed, actual, precision, finding) for finding in findings]
    is_right = not any(finding.is_wrong for finding in findings if finding.role == "output")
    if len(trials.observed) < _OBSERVED_CASES:
        trials.observed.append(observe(feature, posed, actual, precision, is_right=is_right))
    _count(trials, findings)
    wrong = [finding for finding in findings if finding.is_wrong]
    trials.wrong_cases += bool(wrong)
    word = f"{drawn.word}{', fixed sizes' if fixed else ''}"
    trials.wrong += [
        WrongCase(
            case_id=drawn.case.case_id,
            word=word,
            finding=each,
            posed=posed,
            actual=outputs[posed.roles.get(each.role, posed.roles["output"])],
            declared=ran.precision,
        )
        for each in wrong
    ]
    trials.suspicious += [
        f"{drawn.case.case_id}: {each.agreement.diagnosis}" for each in findings if each.is_suspicious
    ]


def _count(trials: RowTrials, findings: list[OutputFinding]) -> None:
    for finding in findings:
        agreement = finding.agreement
        trials.max_abs_error = max(trials.max_abs_error, agreement.max_abs_error)
        trials.max_bound_ratio = max(trials.max_bound_ratio, agreement.max_bound_ratio)
        trials.warnings += [doubt for doubt in agreement.warnings if doubt not in trials.warnings]


def _with_open_points(
    feature: Feature, posed: OperatorCase, actual: Array, precision: Precision, finding: OutputFinding
) -> OutputFinding:
    """Where the text leaves something open, each outcome that it allows is right."""
    if (
        feature.point is DisputedPoint.NEGATIVE_SCALE
        and finding.role == "output"
        and np.isnan(actual.astype(np.float64)).all()
    ):
        return OutputFinding(role="output", agreement=Agreement(verdict=Verdict.OK, diagnosis="All is NaN."))
    if not feature.alignments or finding.role != "output" or not finding.is_wrong:
        return finding
    spec = masked_spec(posed)
    for word, inputs in aligned_inputs(posed.spec, posed.inputs).items():
        if word in feature.alignments:
            agreement = judge(expect(spec, inputs, precision=precision), actual)
            if agreement.verdict is not Verdict.WRONG:
                return OutputFinding(role="output", agreement=agreement)
    return finding


def _asked_besides(
    feature: Feature, session: Session, posed: OperatorCase, outputs: Mapping[str, Array], feeds: Mapping[str, Array]
) -> Iterator[OutputFinding]:
    """Findings on what is asked besides agreement; inputs are watched in every run.

    Args:
        feature: What is asked.
        session: The session that ran.
        posed: The case.
        outputs: The very arrays that the session gave.
        feeds: The very arrays that it got.
    """
    match feature.check:
        case FeatureCheck.REPEAT:
            again = session.run(posed.feeds)
            same = all(again[name].tobytes() == array.tobytes() for name, array in outputs.items())
            yield _answer("repeat", "A second run on the same inputs gives other bits.", holds=same)
        case FeatureCheck.KEPT:
            kept = {name: array.tobytes() for name, array in outputs.items()}
            session.run({name: _changed(array) for name, array in posed.feeds.items()})
            same = all(kept[name] == array.tobytes() for name, array in outputs.items())
            yield _answer("kept", "An output changed when the next run wrote its own.", holds=same)
        case FeatureCheck.UNCHANGED | FeatureCheck.NONE:
            pass
    same = all(feeds[name].tobytes() == array.tobytes() for name, array in posed.feeds.items())
    if feature.check is FeatureCheck.UNCHANGED or not same:
        yield _answer("inputs", "The runtime wrote into its inputs.", holds=same)


def _changed(array: Array) -> Array:
    """Other numbers of the same kind; masks and lengths stay."""
    return array[..., ::-1].copy() if array.dtype.kind not in "biu" else array


def _answer(role: str, fault: str, *, holds: bool) -> OutputFinding:
    diagnosis = "As asked." if holds else fault
    return OutputFinding(
        role=role, agreement=Agreement(verdict=Verdict.OK if holds else Verdict.WRONG, diagnosis=diagnosis)
    )
