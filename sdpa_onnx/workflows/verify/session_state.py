"""Run one session at a planned sequence of sizes, and judge each run: what an earlier run leaves must change nothing.

A run that is wrong here and right in a fresh session is a fault of state. One that is wrong in both is none: the other
checks of `verify` report it.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from sdpa_onnx.core.attention.axis_limits import fit_sizes
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.judge.agreement import Agreement
from sdpa_onnx.core.records.records import AgreementRecord, Conformity, Outcome, Subject, Verdict
from sdpa_onnx.errors import CaseError, ModelError, SessionError
from sdpa_onnx.graph.files.large import is_large
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Runtime, Unsupported
from sdpa_onnx.workflows.check.case_trial import judge_attention
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import Feeds, draw_feeds, runs_at
from sdpa_onnx.workflows.check.run_context import MODULE_RUNTIME, RunContext, end_sizes, failed_record, site_sizes
from sdpa_onnx.workflows.check.session_sequence import (
    LastRun,
    SessionRun,
    after_words,
    planned_sizes,
    run_after,
    smallest_sequence,
)
from sdpa_onnx.workflows.isolate.isolated_runtime import ProcessDiedError
from sdpa_onnx.workflows.locate.record import Arrays
from sdpa_onnx.workflows.verify.differing_outputs import DifferingOutputs, NoVerdict, same_bits

__all__ = ["SessionJudge", "StateFault", "check_state", "find_state_fault", "state_behind"]

_RIGHT_ALONE = "right in a fresh session"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFault:
    """A run that is right in a fresh session and wrong after other runs.

    Args:
        earlier: The runs before it, as few as needed.
        run: The run that is wrong.
        records: The judgements of its outputs that disagree.
        is_shared: Whether `run` changed an output of the earlier run, which the session had returned.
    """

    earlier: tuple[SessionRun, ...]
    run: SessionRun
    records: tuple[AgreementRecord, ...]
    is_shared: bool = False

    @property
    def sequence(self) -> tuple[dict[str, int], ...]:
        """The sizes of all runs in their order."""
        return tuple(dict(one.sizes) for one in (*self.earlier, self.run))

    def as_records(self) -> Iterator[AgreementRecord]:
        """The judgements, with the sequence of runs."""
        for record in self.records:
            yield msgspec.structs.replace(
                record, reason=self.sentence(), diagnosis=self.sentence(), sequence=self.sequence
            )

    def sentence(self) -> str:
        """When it is wrong and when it is right, and the evidence."""
        if self.is_shared:
            return self.records[0].diagnosis
        after = after_words([one.sizes for one in self.earlier])
        verdict = (self.records[0].verdict or Verdict.WRONG).value.capitalize()
        return f"{verdict} {after}; {_RIGHT_ALONE}. {self.records[0].diagnosis}"


@dataclass(slots=True, kw_only=True)
class SessionJudge:
    """Judges a run of a session that is not fresh.

    Args:
        model: The model; an attention alone is judged by the oracle, others are compared with a fresh session.
        runtime: Where it runs.
        check: Seed and threads.
        target: Name for the records.
    """

    model: OnnxModel
    runtime: Runtime
    check: CheckOptions
    target: str = ""
    _differing: DifferingOutputs | None = field(default=None, init=False)

    def drawn(self, sizes: dict[str, int], number: int) -> SessionRun | None:
        """A run with inputs of its own; None if none can be drawn at these sizes, or the module refuses them."""
        try:
            feeds = draw_feeds(self.model, sizes, spread=1.0, seed=self.check.seed + number)
        except (ModelError, CaseError, ValueError):  # sizes that do not fit together
            return None
        return SessionRun(sizes=sizes, feeds=feeds) if runs_at(self.model, feeds) else None

    def wrong_after(
        self, earlier: Sequence[SessionRun], run: SessionRun, last: LastRun | None = None
    ) -> tuple[AgreementRecord, ...]:
        """The judgements that disagree after these runs and not in a fresh session; () if there is no fault of state.

        Args:
            earlier: The runs before.
            run: The run to judge.
            last: Its result after them; None = it is run in a session of its own.
        """
        try:
            used = last or self._ran(earlier, run)
            if self.model.is_bare_attention:
                wrong = self._by_oracle(run, used)
                return wrong if wrong and not self._by_oracle(run, self._ran((), run)) else ()
            return self._by_fresh_session(run, used, self._ran((), run))
        except ProcessDiedError:
            raise
        except (SessionError, CaseError):  # refused in a fresh session, or values that fit no attention
            return ()

    def _ran(self, earlier: Sequence[SessionRun], run: SessionRun) -> LastRun:
        before = [one.feeds for one in earlier]
        return run_after(self.model, self.runtime, before, run.feeds, threads=self.check.threads)

    def _by_oracle(self, run: SessionRun, last: LastRun) -> tuple[AgreementRecord, ...]:
        """The first wrong output of an attention; which fault it resembles is no question here."""
        site = self.model.sites[0]
        arrays = {**self.model.constants(), **run.feeds, **last.outputs}
        inputs = site.arrays_in(arrays)
        found = judge_attention(
            site.spec,
            inputs,
            site.outputs_in(arrays),
            precision=last.ran.precision,
            seed=self.check.seed,
            qk_modes=site.scores_modes,
            mask_rule=site.mask_rule,
            cache=site.cache_rule_in(arrays),
            nan_rows=site.name in self.model.facts.without_row_guard,
        )
        if found.agreement is None or found.kind is Conformity.RIGHT:
            return ()
        name = site.name if found.output == OutputRole.OUTPUT else found.output
        record = self.context(run, last.ran).record(
            found.agreement, spread=None, site=name, sizes=site_sizes(site, inputs)
        )
        return (record,)

    def _by_fresh_session(self, run: SessionRun, used: LastRun, fresh: LastRun) -> tuple[AgreementRecord, ...]:
        self._differing = self._differing or DifferingOutputs(model=self.model)
        judged = self._differing.judge(run.feeds, fresh.outputs, used.outputs, name="a fresh session")
        context = self.context(run, used.ran)
        return tuple(
            context.record(found, spread=None, subject=Subject.OUTPUT, site=name, sizes=end_sizes(context.check))
            for name, found in judged.items()
            if not isinstance(found, NoVerdict) and not found.verdict.is_right
        )

    def context(self, run: SessionRun, ran: RanReport) -> RunContext:
        """What a record says about this run."""
        return RunContext(
            model=self.model,
            runtime=self.runtime.name,
            ran=ran,
            check=replace(self.check, sizes=run.sizes, inputs=None),
            step="a used session",
            target=self.target,
        )


def check_state(
    model: OnnxModel, runtime: Runtime, check: CheckOptions, *, target: str, fixed: Collection[str] = ()
) -> Iterator[AgreementRecord]:
    """Run a planned sequence of sizes in one session; one record per wrong output of the first fault, if there is any.

    Args:
        model: The model, without taps: what a user runs.
        runtime: Where to run it; that of a module is left out, since its sessions share the module.
        check: Sizes at which it is known to run, seed, threads.
        target: Name for the records.
        fixed: Axes that keep their size.

    Raises:
        SessionError: If the model does not load.
        ProcessDiedError: If the runtime crashed or did not answer.
    """
    if runtime.name == MODULE_RUNTIME or isinstance(runtime.supports(model), Unsupported):
        return
    if is_large(model.ir):
        reason = "Runs of other sizes in one session were not tried: the model is above 500 MB."
        yield msgspec.structs.replace(
            failed_record(model, runtime.name, check, target=target, reason=reason, outcome=Outcome.SKIPPED)
        )
        return
    judge = SessionJudge(model=model, runtime=runtime, check=check, target=target)
    plan = planned_sizes(model.facts, check.sizes, fixed=fixed, with_empty=model.is_bare_attention)
    sizes = [fit_sizes(model.facts.limits, one, keep=fixed) for one in plan]
    drawn = (judge.drawn(one, number) for number, one in enumerate(sizes))
    found = find_state_fault(judge, [run for run in drawn if run is not None])
    if found is not None:
        yield from found.as_records()


def state_behind(
    model: OnnxModel, runtime: Runtime, check: CheckOptions, steps: Sequence[Arrays], *, target: str
) -> StateFault | None:
    """The fault of state because of which the last of these runs of one session is wrong; None if it is wrong alone.

    Args:
        model: The model.
        runtime: Where it ran; that of a module is left out.
        check: Seed and threads.
        steps: The arrays of every run, inputs among them, in their order.
        target: Name for the records.

    Raises:
        ProcessDiedError: If the runtime crashed or did not answer.
    """
    if runtime.name == MODULE_RUNTIME or len(steps) < 2 or is_large(model.ir):
        return None
    judge = SessionJudge(model=model, runtime=runtime, check=check, target=target)
    *done, run = (SessionRun.of(model, feeds) for feeds in steps)
    records = judge.wrong_after(done, run)
    return _reduced(judge, done, run, records) if records else None


def find_state_fault(judge: SessionJudge, runs: Sequence[SessionRun]) -> StateFault | None:
    """Run these in one session, and return the first fault with the fewest runs that show it.

    An output that was returned earlier must not change either when the session runs again.
    """
    done: list[SessionRun] = []
    returned: list[_Returned] = []
    with judge.runtime.load(judge.model, LoadOptions(threads=judge.check.threads)) as session:
        for run in runs:
            try:
                outputs = session.run(run.feeds)
            except ProcessDiedError:
                raise
            except SessionError:
                done.append(run)  # refused at these sizes; it may have left something even so
                continue
            ran = session.ran()
            changed = next((one for one in returned if one.changed()), None)
            if changed is not None:
                return changed.fault(judge, run, ran)
            records = judge.wrong_after(done, run, LastRun(outputs=outputs, ran=ran)) if done else ()
            if records:
                return _reduced(judge, done, run, records)
            done.append(run)
            returned.append(_Returned(run=run, outputs=outputs))
    return None


def _reduced(
    judge: SessionJudge, done: Sequence[SessionRun], run: SessionRun, records: tuple[AgreementRecord, ...]
) -> StateFault:
    """The fault after as few runs as possible, in sessions of their own; after all of them if it then does not show."""
    few = smallest_sequence(done, lambda earlier: bool(judge.wrong_after(earlier, run)))
    kept = tuple(done) if few is None else few
    return StateFault(earlier=kept, run=run, records=(few and judge.wrong_after(kept, run)) or records)


class _Returned:
    """The outputs that a session returned, with copies."""

    def __init__(self, run: SessionRun, outputs: Feeds) -> None:
        self._run, self._outputs = run, outputs
        self._copies = {name: array.copy() for name, array in outputs.items()}

    def changed(self) -> str:
        """Name of the first output that is no longer as it was; "" if all are."""
        return next((name for name, array in self._outputs.items() if not same_bits(array, self._copies[name])), "")

    def fault(self, judge: SessionJudge, later: SessionRun, ran: RanReport) -> StateFault:
        """The fault that a later run changed an output of this one."""
        name = self.changed()
        diagnosis = (
            f"Output '{name}' of an earlier run changed when the session ran again: it is memory of the runtime, not a "
            "copy."
        )
        agreement = Agreement(verdict=Verdict.WRONG, diagnosis=diagnosis, total=self._copies[name].size)
        context = judge.context(self._run, ran)
        record = context.record(
            agreement, spread=None, subject=Subject.OUTPUT, site=name, sizes=end_sizes(context.check)
        )
        return StateFault(earlier=(self._run,), run=later, records=(record,), is_shared=True)
