"""Find the workarounds that a runtime needs for a form, by running probes; there is no table of known faults.

The result is the smallest set of workarounds with which every probe is right, or the evidence that there
is none. Does not time anything.
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
from sdpa_onnx.workflows.choose_form.form_probes import FormProbe, draw_probes
from sdpa_onnx.workflows.choose_form.form_trial import FormProblem, FormSessions, ProbeOutcome, bare_attention
from sdpa_onnx.workflows.isolate.isolated_runtime import GuardedRuntime, own_process

__all__ = ["PATIENCE_SECONDS", "RefusedForm", "WorkableForm", "probe_form"]

# Longest wait for the result of one probe, seconds.
PATIENCE_SECONDS = 20.0

# Workarounds that change what a form writes. The other workarounds have no effect on it.
_ALL = frozenset(Workaround)
_EFFECTIVE: dict[Form, frozenset[Workaround]] = {
    Form.ATTENTION: _ALL,
    Form.BLOCKED: _ALL,
    Form.DECOMPOSED: frozenset(),
    Form.ORT_MHA: frozenset({Workaround.FINITE_MASK}),
    Form.ORT_GQA: frozenset({Workaround.FINITE_MASK}),
}
# Kinds of failure by increasing severity, to choose the one to report.
_SEVERITIES = (Conformity.REFUSED, Conformity.CRASHED, Conformity.WRONG)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkableForm:
    """A form on which the runtime is right.

    Args:
        options: The options with which it must be written.
        record: The number of probes, and what fails without the workarounds.
    """

    options: LowerOptions
    record: FormRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedForm:
    """A form on which the runtime is not right with any workaround.

    Args:
        reason: One sentence: the worst failure, or what the form cannot express. If a probe timed out, which is no
            fault of the form, only that.
        record: The same as a record.
    """

    reason: str
    record: FormRecord


def probe_form(
    runtime: Runtime,
    problem: FormProblem,
    form: Form,
    *,
    opset: int,
    options: LowerOptions | None = None,
    patience_seconds: float | None = PATIENCE_SECONDS,
) -> WorkableForm | RefusedForm:
    """Find the options with which a runtime is right on a form.

    A registered runtime is probed in a process of its own, and the results are cached in this process.

    Args:
        runtime: The runtime.
        problem: The attention and the inputs that its graph can feed it.
        form: The form.
        opset: Opset of the model. The result is a refusal if the form needs a higher one.
        options: Options of the form; workarounds are added.
        patience_seconds: Longest wait for one probe; None = in this process, without a limit.
    """
    small, chosen = problem.with_lengths_for(form).smaller(), options or LowerOptions()
    key = (runtime.name, runtime.version(), small, form, opset, chosen)
    if key in _CACHE:
        return _CACHE[key]
    reason = _unsupported_reason(small, form, opset, chosen)
    if reason:
        record = _record(runtime, small, form, opset)
        record = msgspec.structs.replace(record, outcome=Outcome.UNSUPPORTED, reason=reason)
        return RefusedForm(reason=reason, record=record)
    with own_process(runtime, patience_seconds) as where:
        found = _Search(runtime=where, problem=small, form=form, opset=opset, options=chosen).result()
    if isinstance(where, GuardedRuntime):  # registered, so the name identifies it
        _CACHE[key] = found
    return found


_CACHE: dict[tuple[object, ...], WorkableForm | RefusedForm] = {}


def _unsupported_reason(problem: FormProblem, form: Form, opset: int, options: LowerOptions) -> str:
    """Why a form cannot express this attention; "" if it can."""
    _, attention = bare_attention(problem)
    needed = needed_opset(attention, form, options)
    if opset < needed:
        return f"Form '{form}' needs opset {needed} for this attention, not {opset}."
    return refusal(attention, form, opset=opset, options=options) or ""


@dataclass(slots=True, kw_only=True)
class _Failure:
    """A probe on which the runtime is not right."""

    probe: FormProbe
    outcome: ProbeOutcome

    @property
    def description(self) -> str:
        match self.outcome.kind:
            case Conformity.WRONG:
                verb = "is wrong"
            case _:
                verb = "does not run"
        return f"{verb} for {self.probe.label} ({self.probe.case.case_id}): {self.outcome.message}"

    @property
    def severity(self) -> tuple[int, float]:
        return _SEVERITIES.index(self.outcome.kind), self.outcome.max_bound_ratio


@dataclass(slots=True, kw_only=True)
class _Search:
    """Searches for the smallest set of workarounds with which every probe is right."""

    runtime: Runtime
    problem: FormProblem
    form: Form
    opset: int
    options: LowerOptions
    probe_count: int = 0
    # Probes on which an earlier set failed; they run first, because most sets fail on one of them.
    failed_probes: list[FormProbe] = field(default_factory=list)
    # Failures of the current set on empty arrays.
    limits: list[str] = field(default_factory=list)

    def result(self) -> WorkableForm | RefusedForm:
        """Try no workaround, then one, then two, ..., up to the first set that is right."""
        without_any: _Failure | None = None
        for chosen in _sets(self._applicable()):
            failure = self._first_failure(chosen)
            if failure is None:
                return self._workable(chosen, without_any)
            without_any = without_any or failure
        return self._refused(without_any)

    def _applicable(self) -> Sequence[Workaround]:
        """Workarounds that change what is written for this attention."""
        effective = _EFFECTIVE[self.form]
        spec = self.problem.spec
        conditions = {
            Workaround.SCALE_ON_QUERY: spec.scale != ScaleRule.INVERSE_SQRT,
            # Causality and windows become a mask below the opset that has them.
            Workaround.EXPAND_MASK: spec.mask is not MaskKind.NONE or spec.is_causal or spec.has_window,
            Workaround.FINITE_MASK: self.problem.has_mask,
            Workaround.CAUSAL_AS_MASK: spec.is_causal or spec.has_window,
            Workaround.EQUAL_BATCH: self.problem.has_single_keys,
        }
        given = self.options.workarounds
        return tuple(one for one, applies in conditions.items() if applies and one in effective and one not in given)

    def _options(self, chosen: frozenset[Workaround]) -> LowerOptions:
        return replace(self.options, workarounds=self.options.workarounds | chosen)

    def _first_failure(self, chosen: frozenset[Workaround]) -> _Failure | None:
        """The first probe that is not right, or None; probes that failed before run first."""
        self.limits.clear()
        with self._sessions(chosen) as sessions:
            for probe in self.failed_probes:
                failure = self._run(sessions, probe)
                if failure is not None:
                    return failure
            done = {probe.label for probe in self.failed_probes}
            for probe in draw_probes(self.problem):
                failure = None if probe.label in done else self._run(sessions, probe)
                if failure is not None:
                    self.failed_probes.append(probe)
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

    def _run(self, sessions: FormSessions, probe: FormProbe) -> _Failure | None:
        self.probe_count += 1
        outcome = sessions.run_probe(probe.inputs, mask_shape=probe.mask_shape, oracle_inputs=probe.oracle_inputs)
        if outcome.kind is Conformity.RIGHT:
            return None
        failure = _Failure(probe=probe, outcome=outcome)
        if probe.is_empty and outcome.kind is not Conformity.WRONG:  # only a warning: it affects empty arrays only
            self.limits.append(f"On {self.runtime.name} form '{self.form}' {failure.description}")
            return None
        return failure

    def _worst(self) -> _Failure | None:
        """The most severe failure of the form without workarounds."""
        with self._sessions(frozenset()) as sessions:
            failures = [self._run(sessions, probe) for probe in draw_probes(self.problem)]
        return max((one for one in failures if one is not None), key=lambda one: one.severity, default=None)

    def _workable(self, chosen: frozenset[Workaround], without_any: _Failure | None) -> WorkableForm:
        options = self._options(chosen)
        record = msgspec.structs.replace(
            self._record(),
            workarounds=tuple(sorted(options.workarounds)),
            verdict=Conformity.RIGHT,
            warnings=tuple(self.limits),
            evidence=f"Without {_listed(chosen)} it {without_any.description}" if without_any is not None else "",
        )
        return WorkableForm(options=options, record=record)

    def _refused(self, without_any: _Failure | None) -> RefusedForm:
        worst = self._worst() or without_any
        kind = Conformity.WRONG if worst is None else worst.outcome.kind
        reason = f"On {self.runtime.name} form '{self.form}' {worst.description if worst else 'is wrong'}"
        record = msgspec.structs.replace(self._record(), verdict=kind, outcome=kind.outcome, reason=reason)
        if worst is not None and worst.outcome.is_timeout:
            record = msgspec.structs.replace(record, outcome=Outcome.TIMED_OUT)
            reason = f"{worst.outcome.message.rstrip('.')}: this form could not be probed."
        return RefusedForm(reason=reason, record=record)

    def _record(self) -> FormRecord:
        record = _record(self.runtime, self.problem, self.form, self.opset)
        return msgspec.structs.replace(record, probes=self.probe_count)


def _record(runtime: Runtime, problem: FormProblem, form: Form, opset: int) -> FormRecord:
    return FormRecord(form=form, opset=opset, runtime=runtime.name, dtype=problem.dtype)


def _sets(applicable: Sequence[Workaround]) -> Iterator[frozenset[Workaround]]:
    """Every set, smallest first; sets of one size in the given order."""
    for count in range(len(applicable) + 1):
        for chosen in combinations(applicable, count):
            yield frozenset(chosen)


def _listed(chosen: frozenset[Workaround]) -> str:
    return " and ".join(sorted(chosen))
