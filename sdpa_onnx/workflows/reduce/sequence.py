"""Reduce a fault of state: the fewest runs of one session after which a run is wrong, at the smallest sizes.

The last run must stay right in a fresh session, or the fault is another one. Does not search for faults in single runs.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.judge.agreement import Agreement
from sdpa_onnx.core.records.records import AgreementRecord, Conformity, Verdict
from sdpa_onnx.errors import CaseError, ExportError, ModelError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.check.case_trial import CaseTrial, TrialResult, trial_model
from sdpa_onnx.workflows.check.feeds import Feeds, draw_feeds
from sdpa_onnx.workflows.check.session_sequence import SessionRun, planned_sizes, run_after
from sdpa_onnx.workflows.reduce.case import MODEL_PASSES, RUN_PASSES, targets
from sdpa_onnx.workflows.reduce.expected import BoundedOutput, expected_outputs
from sdpa_onnx.workflows.reduce.find import FailureSearch, FoundFailure, case_of
from sdpa_onnx.workflows.reduce.options import OPTION_PASSES
from sdpa_onnx.workflows.reduce.reduced_case import ReducedCase
from sdpa_onnx.workflows.reduce.trials import KeptFailure, OutOfTimeError
from sdpa_onnx.workflows.verify.axis_links import axis_links, complete_sizes
from sdpa_onnx.workflows.verify.session_state import SessionJudge, StateFault, find_state_fault, state_behind

__all__ = ["SequenceReduction", "find_sequence"]

_NOTHING_SMALLER = "No smaller sequence fails."


def find_sequence(search: FailureSearch, found: FoundFailure | None) -> StateFault | None:
    """The fault of state behind a failure, or, where nothing failed, the one that a planned sequence of sizes shows.

    Args:
        search: The search, with the runs that it made in one session.
        found: Its result.
    """
    model, runtime, check = search.model, search.runtime, search.check
    if found is not None:
        if found.site is None or not found.failure.kind.disagrees:
            return None
        return state_behind(model, runtime, check, [*search.history, found.feeds], target="")
    if check.inputs is not None or not model.sites:
        return None
    links = axis_links(model, runtime, traced=model.facts.traced, seed=check.seed)
    sizes = complete_sizes(model.facts, links, check.sizes)
    judge = SessionJudge(model=model, runtime=runtime, check=replace(check, sizes=sizes))
    plan = planned_sizes(model.facts, sizes, fixed=check.sizes, with_empty=model.is_bare_attention)
    drawn = (judge.drawn(one, number) for number, one in enumerate(plan))
    fault = find_state_fault(judge, [run for run in drawn if run is not None])
    return None if fault is None or fault.is_shared else fault


@dataclass(slots=True, kw_only=True)
class SequenceReduction:
    """Makes every run of a fault of state as small as possible.

    Args:
        judge: Judges a run after others.
        is_late: Whether the time limit is reached.
        count: Number of sequences that were tried.
    """

    judge: SessionJudge
    is_late: Callable[[], bool]
    count: int = 0

    def reduced(self, fault: StateFault) -> ReducedCase:
        """The smallest sequence of runs.

        Args:
            fault: Its runs are as few as needed.
        """
        model = self.judge.model
        best = _Sequence(model=model, runs=(*fault.earlier, fault.run), records=fault.records)
        shrink = self._shrink_runs
        if model.is_bare_attention:
            best.trials = tuple(_as_trial(model, run, self.judge.check.seed) for run in best.runs)
            shrink = self._shrink_trials
        is_finished = True
        try:
            shrink(best)
        except OutOfTimeError:
            is_finished = False
        return self._result(best, fault, is_finished=is_finished)

    def _shrink_trials(self, best: "_Sequence") -> None:
        if self.judge.model.facts.form == "attention":
            self._take(best, tuple(replace(trial, graph=None) for trial in best.trials))
        rejected: set[tuple[object, ...]] = set()

        def smaller(trials: tuple[CaseTrial, ...]) -> bool:
            # Which elements a cut keeps does not matter: a fault of state does not depend on the numbers.
            key = tuple((trial.case, trial.used_opset) for trial in trials)
            if key in rejected:
                return False
            rejected.add(key)
            return self._take(best, trials)

        while any(smaller(candidate) for candidate in self._candidates(best.trials)):
            pass

    @staticmethod
    def _candidates(best: tuple[CaseTrial, ...]) -> Iterator[tuple[CaseTrial, ...]]:
        """Each run shorter by itself; then, unless the graph is given, all runs with fewer heads and options."""
        for place, trial in enumerate(best):
            for shrink in RUN_PASSES:
                for smaller in _valid(shrink(trial, None)):
                    yield (*best[:place], smaller, *best[place + 1 :])
        if best[-1].graph is not None:
            return
        for resize in MODEL_PASSES:
            yield from zip(*(_valid(resize(trial, None)) for trial in best), strict=False)
        for simplify in OPTION_PASSES:
            yield from zip(*(_valid(simplify(trial)) for trial in best), strict=False)

    def _take(self, best: "_Sequence", trials: tuple[CaseTrial, ...]) -> bool:
        """Keep these cases if they fail."""
        if len({(trial.case.spec, trial.case.dtype, trial.used_opset) for trial in trials}) > 1:
            return False  # one model computes all runs
        try:
            model = trial_model(trials[-1], trials[-1].draw())
            runs = tuple(SessionRun.of(model, trial.feeds(trial.draw())) for trial in trials)
        except (CaseError, ExportError, ModelError):
            return False
        if not self._keep(best, model, runs):
            return False
        best.trials = trials
        return True

    def _shrink_runs(self, best: "_Sequence") -> None:
        """Runs of a larger model: all axes of one size become shorter together, because they may belong together."""

        def candidates() -> Iterator[tuple[SessionRun, ...]]:
            for place, run in enumerate(best.runs):
                for smaller in _shorter(best.model, run, self.judge.check.seed + place):
                    yield (*best.runs[:place], smaller, *best.runs[place + 1 :])

        while any(self._keep(best, best.model, runs) for runs in candidates()):
            pass

    def _keep(self, best: "_Sequence", model: OnnxModel, runs: tuple[SessionRun, ...]) -> bool:
        """Keep these runs if the same output of the last one is wrong after the others and right alone."""
        if self.is_late():
            raise OutOfTimeError
        self.count += 1
        records = replace(self.judge, model=model).wrong_after(runs[:-1], runs[-1])
        if not records or records[0].subject is not best.records[0].subject:
            return False
        best.model, best.runs, best.records = model, runs, records
        return True

    def _result(self, best: "_Sequence", fault: StateFault, *, is_finished: bool) -> ReducedCase:
        runtime, record = self.judge.runtime, best.records[0]
        verdict = record.verdict or Verdict.WRONG
        small = StateFault(earlier=best.runs[:-1], run=best.runs[-1], records=best.records)
        trial = best.trials[-1] if best.trials else None
        return ReducedCase(
            model=best.model,
            feeds=dict(small.run.feeds),
            expected=self._expected(best, trial),
            failure=KeptFailure(kind=verdict.conformity, output=record.site),
            agreement=Agreement(
                verdict=verdict,
                diagnosis=small.sentence(),
                max_abs_error=record.max_abs_error,
                max_bound_ratio=record.max_bound_ratio,
                not_finite=record.not_finite or 0,
            ),
            message=small.sentence(),
            case="" if trial is None else trial.case.case_id,
            trial=trial,
            found_in=f"runs of one session: {fault.sentence()}",
            dropped=_dropped(fault, small),
            trials=self.count,
            seconds=0.0,
            is_finished=is_finished,
            stopped=_NOTHING_SMALLER,
            runtime=runtime.name,
            runtime_version=runtime.version(),
            precision="" if trial is None else record.precision,
            before=tuple(dict(run.feeds) for run in small.earlier),
        )

    def _expected(self, best: "_Sequence", trial: CaseTrial | None) -> dict[str, BoundedOutput]:
        """The oracle of an attention; for a larger model the outputs of a fresh session, with half of the limit."""
        record, last = best.records[0], best.runs[-1]
        if trial is not None:
            result = TrialResult(kind=Conformity.WRONG, message="", precision=record.precision, inputs=trial.draw())
            named = expected_outputs(trial, result)
            return {name: bounded for name, bounded in named.items() if name in best.model.output_names}
        fresh = run_after(best.model, self.judge.runtime, (), last.feeds, threads=self.judge.check.threads)
        limit = (
            record.max_abs_error / record.max_bound_ratio / 2.0
            if record.max_abs_error and record.max_bound_ratio
            else 0.0
        )
        oracle = fresh.outputs[record.site].astype(np.float64)
        return {record.site: BoundedOutput(oracle=oracle, bound=np.full(oracle.shape, limit))}


@dataclass(slots=True, kw_only=True)
class _Sequence:
    """The smallest runs so far; `trials` are the same as cases, for a bare attention."""

    model: OnnxModel
    runs: tuple[SessionRun, ...]
    records: tuple[AgreementRecord, ...]
    trials: tuple[CaseTrial, ...] = ()


def _as_trial(model: OnnxModel, run: SessionRun, seed: int) -> CaseTrial:
    """A run of a bare attention as a case, so that its sizes and options can be cut with their meaning."""
    site = model.sites[0]
    inputs = site.arrays_in({**model.constants(), **run.feeds})
    return CaseTrial(
        case=case_of(site.spec, inputs),
        inputs=inputs,
        seed=seed,
        graph=model,
        opset=min(model.opset, 25),
        qk_mode=site.scores_mode if OutputRole.QK in site.outputs else None,
    )


def _valid(candidates: Iterable[CaseTrial]) -> Iterator[CaseTrial]:
    """Candidates as far as they can be made: a cut may not be possible on one of the runs."""
    try:
        yield from candidates
    except (CaseError, ValueError, IndexError):
        return


def _shorter(model: OnnxModel, run: SessionRun, seed: int) -> Iterator[SessionRun]:
    for size in sorted({*run.sizes.values()}, reverse=True):
        for target in targets(size, min(1, size)):
            sizes = {axis: target if old == size else old for axis, old in run.sizes.items()}
            try:
                feeds: Feeds = draw_feeds(model, sizes, spread=1.0, seed=seed)
            except (ModelError, CaseError, ValueError):
                continue
            yield SessionRun(sizes=sizes, feeds=feeds)


def _dropped(old: StateFault, new: StateFault) -> tuple[str, ...]:
    """The sizes that changed, run by run, such as "run 2 kv_seq_len 34 -> 2"."""
    pairs = zip((*old.earlier, old.run), (*new.earlier, new.run), strict=True)
    return tuple(
        f"run {place} {axis} {size} -> {after.sizes[axis]}"
        for place, (before, after) in enumerate(pairs, 1)
        for axis, size in before.sizes.items()
        if after.sizes.get(axis, size) != size
    )
