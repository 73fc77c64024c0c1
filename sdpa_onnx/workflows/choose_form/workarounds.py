"""How a form has to be written so that the runtime at hand gets it right: found by asking it, never looked up.

The smallest set of workarounds with which every question is answered right, or the evidence that there
is none. Times nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import msgspec

from sdpa_onnx.core.attention.forms import Form, LowerOptions, Workaround
from sdpa_onnx.core.attention.spec import MaskKind, ScaleRule
from sdpa_onnx.core.records.form_records import FormRecord
from sdpa_onnx.core.records.verdicts import Conformity, Outcome
from sdpa_onnx.graph.lower.lower import needed_opset, refusal
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.workflows.choose_form.form_probes import FormProbe, questions
from sdpa_onnx.workflows.choose_form.form_trial import FormProblem, FormSessions, ProbeAnswer, bare_attention
from sdpa_onnx.workflows.isolate.isolated_runtime import GuardedRuntime, own_process

__all__ = ["PATIENCE_SECONDS", "RefusedForm", "WorkableForm", "workable"]

# Longest wait for one answer to a question, seconds.
PATIENCE_SECONDS = 20.0

_OUTCOMES = {
    Conformity.RIGHT: Outcome.OK,
    Conformity.WRONG: Outcome.DISAGREES,
    Conformity.REFUSED: Outcome.UNSUPPORTED,
    Conformity.CRASHED: Outcome.FAILED,
}
# Workarounds that a form knows; what others compute is written without them anyway.
_EVERY = frozenset(Workaround)
_HONOURED: dict[Form, frozenset[Workaround]] = {
    Form.ATTENTION: _EVERY,
    Form.BLOCKED: _EVERY,
    Form.DECOMPOSED: frozenset(),
    Form.ORT_MHA: frozenset({Workaround.FINITE_MASK}),
    Form.ORT_GQA: frozenset({Workaround.FINITE_MASK}),
}
# How much a failure says against a form, for the choice of the one that is told.
_WEIGHTS = (Conformity.REFUSED, Conformity.CRASHED, Conformity.WRONG)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkableForm:
    """A form that the runtime gets right.

    Args:
        options: How it has to be written.
        record: What was asked, and what goes wrong without the workarounds.
    """

    options: LowerOptions
    record: FormRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedForm:
    """A form that the runtime does not get right, whatever is worked around.

    Args:
        reason: One sentence: the worst answer, or what the form cannot say; where the time was too short for an
            answer, which is no fault of the form, that alone.
        record: The same as a record.
    """

    reason: str
    record: FormRecord


def workable(
    runtime: Runtime,
    problem: FormProblem,
    form: Form,
    *,
    opset: int,
    options: LowerOptions | None = None,
    patience_seconds: float | None = PATIENCE_SECONDS,
) -> WorkableForm | RefusedForm:
    """Find how a form has to be written for a runtime.

    A registered runtime is asked in a process of its own, and its answers are kept for as long as
    this process lives.

    Args:
        runtime: The runtime at hand.
        problem: The attention and what its graph can feed it.
        form: The form.
        opset: Of the model that will hold it; raised to what the form needs.
        options: What is chosen within the form; workarounds are added.
        patience_seconds: Longest wait for one answer; None = in this process, without a limit.
    """
    small, chosen = problem.with_lengths_for(form).smaller(), options or LowerOptions()
    key = (runtime.name, runtime.version(), small, form, opset, chosen)
    if key in _KNOWN:
        return _KNOWN[key]
    impossible = _impossible(small, form, opset, chosen)
    if impossible:
        record = _record(runtime, small, form, opset)
        record = msgspec.structs.replace(record, outcome=Outcome.UNSUPPORTED, reason=impossible)
        return RefusedForm(reason=impossible, record=record)
    with own_process(runtime, patience_seconds) as where:
        found = _Search(runtime=where, problem=small, form=form, opset=opset, options=chosen).found()
    if where is not runtime or isinstance(runtime, GuardedRuntime):  # a registered one: its name says what it is
        _KNOWN[key] = found
    return found


_KNOWN: dict[tuple[object, ...], WorkableForm | RefusedForm] = {}


def _impossible(problem: FormProblem, form: Form, opset: int, options: LowerOptions) -> str:
    """Why a form cannot say this attention at all; "" if it can."""
    _, attention = bare_attention(problem)
    needed = needed_opset(attention, form, options)
    if opset < needed:
        return f"Form '{form}' needs opset {needed} for this attention, not {opset}."
    return refusal(attention, form, opset=opset, options=options) or ""


@dataclass(slots=True, kw_only=True)
class _Failure:
    """A question that was not answered right."""

    question: FormProbe
    answer: ProbeAnswer

    @property
    def says(self) -> str:
        match self.answer.kind:
            case Conformity.WRONG:
                verb = "is wrong"
            case _:
                verb = "does not run"
        return f"{verb} for {self.question.words} ({self.question.case.case_id}): {self.answer.message}"

    @property
    def weight(self) -> tuple[int, float]:
        return _WEIGHTS.index(self.answer.kind), self.answer.max_bound_ratio


@dataclass(slots=True, kw_only=True)
class _Search:
    """The smallest set of workarounds for which every question is answered right; private and short-lived."""

    runtime: Runtime
    problem: FormProblem
    form: Form
    opset: int
    options: LowerOptions
    asked: int = 0
    # Questions that some set failed, asked first of the next: most sets fail by one of them.
    telling: list[FormProbe] = field(default_factory=list)
    # Empty arrays that the set being tried does not run on.
    limits: list[str] = field(default_factory=list)

    def found(self) -> WorkableForm | RefusedForm:
        """Try no workaround, then one, then two ...; the first set that is right."""
        plain: _Failure | None = None
        for chosen in _sets(self._applicable()):
            failure = self._first_failure(chosen)
            if failure is None:
                return self._workable(chosen, plain)
            plain = plain or failure
        return self._refused(plain)

    def _applicable(self) -> Sequence[Workaround]:
        """Workarounds that can change what is written for this attention."""
        honoured = _HONOURED[self.form]
        spec = self.problem.spec
        can = {
            Workaround.SCALE_ON_QUERY: spec.scale != ScaleRule.INVERSE_SQRT,
            # What is no mask in the spec becomes one below the opset that has it.
            Workaround.EXPAND_MASK: spec.mask is not MaskKind.NONE or spec.is_causal or spec.has_window,
            Workaround.FINITE_MASK: self.problem.has_mask,
            Workaround.CAUSAL_AS_MASK: spec.is_causal or spec.has_window,
            Workaround.EQUAL_BATCH: self.problem.has_single_keys,
        }
        given = self.options.workarounds
        return tuple(one for one, applies in can.items() if applies and one in honoured and one not in given)

    def _options(self, chosen: frozenset[Workaround]) -> LowerOptions:
        return replace(self.options, workarounds=self.options.workarounds | chosen)

    def _first_failure(self, chosen: frozenset[Workaround]) -> _Failure | None:
        """The first question that is not answered right, or None; what failed before is asked first."""
        self.limits.clear()
        with self._sessions(chosen) as sessions:
            for question in self.telling:
                failure = self._ask(sessions, question)
                if failure is not None:
                    return failure
            known = {question.words for question in self.telling}
            for question in questions(self.problem):
                failure = None if question.words in known else self._ask(sessions, question)
                if failure is not None:
                    self.telling.append(question)
                    return failure
        return None

    def _sessions(self, chosen: frozenset[Workaround]) -> FormSessions:
        return FormSessions(
            runtime=self.runtime,
            problem=self.problem,
            form=self.form,
            opset=self.opset,
            options=self._options(chosen),
        )

    def _ask(self, sessions: FormSessions, question: FormProbe) -> _Failure | None:
        self.asked += 1
        answer = sessions.ask(question.given, mask_shape=question.mask_shape, judged=question.judged)
        if answer.kind is Conformity.RIGHT:
            return None
        failure = _Failure(question=question, answer=answer)
        if question.is_empty and answer.kind is not Conformity.WRONG:  # told, and harms nobody else
            self.limits.append(f"On {self.runtime.name} form '{self.form}' {failure.says}")
            return None
        return failure

    def _worst(self) -> _Failure | None:
        """Of the form as it is, without workarounds."""
        with self._sessions(frozenset()) as sessions:
            failures = [self._ask(sessions, question) for question in questions(self.problem)]
        return max((one for one in failures if one is not None), key=lambda one: one.weight, default=None)

    def _workable(self, chosen: frozenset[Workaround], plain: _Failure | None) -> WorkableForm:
        options = self._options(chosen)
        record = msgspec.structs.replace(
            self._record(),
            workarounds=tuple(sorted(options.workarounds)),
            verdict=Conformity.RIGHT,
            warnings=tuple(self.limits),
            evidence=f"Without {_words(chosen)} it {plain.says}" if plain is not None else "",
        )
        return WorkableForm(options=options, record=record)

    def _refused(self, plain: _Failure | None) -> RefusedForm:
        worst = self._worst() or plain
        kind = Conformity.WRONG if worst is None else worst.answer.kind
        reason = f"On {self.runtime.name} form '{self.form}' {worst.says if worst else 'is wrong'}"
        record = msgspec.structs.replace(self._record(), verdict=kind, outcome=_OUTCOMES[kind], reason=reason)
        if worst is not None and worst.answer.is_timeout:
            record = msgspec.structs.replace(record, outcome=Outcome.TIMED_OUT)
            reason = f"{worst.answer.message.rstrip('.')}: nothing is known of this form."
        return RefusedForm(reason=reason, record=record)

    def _record(self) -> FormRecord:
        record = _record(self.runtime, self.problem, self.form, self.opset)
        return msgspec.structs.replace(record, probes=self.asked)


def _record(runtime: Runtime, problem: FormProblem, form: Form, opset: int) -> FormRecord:
    return FormRecord(form=form, opset=opset, runtime=runtime.name, dtype=problem.dtype)


def _sets(applicable: Sequence[Workaround]) -> Iterator[frozenset[Workaround]]:
    """Every set, small ones first, in the order given within a size."""
    for count in range(len(applicable) + 1):
        for chosen in combinations(applicable, count):
            yield frozenset(chosen)


def _words(chosen: frozenset[Workaround]) -> str:
    return " and ".join(sorted(chosen))
