"""Shrink one failing attention to a fixed point: sizes, options, then the numbers in its arrays."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sdpa_onnx.core.records.records import Conformity
from sdpa_onnx.workflows.check.case_trial import CaseTrial, TrialResult
from sdpa_onnx.workflows.reduce.case import SIZE_PASSES
from sdpa_onnx.workflows.reduce.inputs import element_places, simpler_arrays, simpler_element
from sdpa_onnx.workflows.reduce.options import OPTION_PASSES
from sdpa_onnx.workflows.reduce.trials import OutOfTimeError, ReductionTrials

__all__ = ["ShrunkCase", "shrink_case"]

# Fresh draws of a smaller case that are tried where no part of the failing arrays fails any more.
_REDRAWS = 2


@dataclass(slots=True, kw_only=True)
class ShrunkCase:
    """The smallest failing case so far.

    Args:
        trial: The case, with its arrays.
        result: What came of it.
        is_finished: Whether nothing smaller was found, rather than the time being up.
    """

    trial: CaseTrial
    result: TrialResult
    is_finished: bool = True

    def take(self, found: tuple[CaseTrial, TrialResult] | None) -> bool:
        """Put a smaller one in its place; whether there was one."""
        if found is None:
            return False
        self.trial, self.result = found
        return True


def shrink_case(trial: CaseTrial, result: TrialResult, trials: ReductionTrials, *, may_redraw: bool) -> ShrunkCase:
    """Make a failing attention as small and as plain as it goes.

    Args:
        trial: With given inputs; it fails.
        result: What came of it.
        trials: Runs the candidates and holds the failure that must stay.
        may_redraw: Whether the arrays were drawn by us, so that other draws are as good.
    """
    best = ShrunkCase(trial=trial, result=result)
    try:
        changed = True
        while changed:
            changed = _smaller(best, trials, may_redraw=may_redraw)
            changed = _simpler(best, trials) or changed
    except OutOfTimeError:
        best.is_finished = False
    return best


def _smaller(best: ShrunkCase, trials: ReductionTrials, *, may_redraw: bool) -> bool:
    """Sizes and options to a fixed point; whether anything changed."""
    any_change = False
    changed = True
    while changed:
        changed = False
        for shrink in SIZE_PASSES:
            while best.take(trials.first(_sized(shrink(best.trial, _worst(best.result)), best, may_redraw=may_redraw))):
                changed = True
        for plainer in OPTION_PASSES:
            while best.take(trials.first(_legal(plainer(best.trial), best.trial))):
                changed = True
        any_change = any_change or changed
    return any_change


def _simpler(best: ShrunkCase, trials: ReductionTrials) -> bool:
    """Plainer numbers: whole arrays, then element by element; whether anything changed."""
    changed = False
    of_numbers = best.result.kind is Conformity.WRONG
    while best.take(trials.first(simpler_arrays(best.trial, only_rounded=not of_numbers))):
        changed = True
    if not of_numbers:
        return changed
    for name, place in element_places(best.trial):
        changed = best.take(trials.first(simpler_element(best.trial, name, place))) or changed
    return changed


def _sized(candidates: Iterable[CaseTrial], best: ShrunkCase, *, may_redraw: bool) -> Iterator[CaseTrial]:
    """Cut arrays first; then, where that is allowed, new draws of the same cases."""
    seen = {}
    for trial in _legal(candidates, best.trial):
        seen[trial.case] = trial
        yield trial
    if not may_redraw or best.result.kind is not Conformity.WRONG:
        return
    for trial in seen.values():
        mask = trial.draw().attn_mask
        if mask is not None and mask.shape != trial.case.input_shapes().get("attn_mask"):
            continue
        for seed in range(trial.seed, trial.seed + _REDRAWS):
            drawn = replace(trial, inputs=None, seed=seed)
            yield replace(trial, inputs=drawn.draw())


def _legal(candidates: Iterable[CaseTrial], now: CaseTrial) -> Iterator[CaseTrial]:
    """A given graph keeps its spec and type: only its sizes change."""
    for trial in candidates:
        same = (trial.case.spec, trial.case.dtype) == (now.case.spec, now.case.dtype)
        if now.graph is None or same:
            yield trial


def _worst(result: TrialResult) -> tuple[int, int, int, int] | None:
    return None if result.agreement is None else result.agreement.worst
