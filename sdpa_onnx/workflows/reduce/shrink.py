"""Shrink one failing attention to a fixed point: sizes, options, then the numbers in its arrays.

Does not propose candidates or run them: `case`, `options` and `inputs` propose, `ReductionTrials` runs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sdpa_onnx.workflows.check.case_trial import CaseTrial, TrialResult
from sdpa_onnx.workflows.reduce.case import SIZE_PASSES
from sdpa_onnx.workflows.reduce.inputs import elements_to_simplify, simpler_arrays, simpler_element
from sdpa_onnx.workflows.reduce.options import OPTION_PASSES
from sdpa_onnx.workflows.reduce.trials import OutOfTimeError, ReductionTrials

__all__ = ["ShrunkCase", "shrink_case"]

# Number of new draws of a smaller case that are tried where no slice of the failing arrays fails.
_REDRAWS = 2


@dataclass(slots=True, kw_only=True)
class ShrunkCase:
    """The smallest failing case so far.

    Args:
        trial: The case, with its arrays.
        result: Its result.
        is_finished: True if no smaller candidate fails, False if the time limit was reached first.
    """

    trial: CaseTrial
    result: TrialResult
    is_finished: bool = True

    def update(self, found: tuple[CaseTrial, TrialResult] | None) -> bool:
        """Replace the case with a smaller one; False if there is none."""
        if found is None:
            return False
        self.trial, self.result = found
        return True


def shrink_case(trial: CaseTrial, result: TrialResult, trials: ReductionTrials, *, may_redraw: bool) -> ShrunkCase:
    """Make a failing attention as small and as simple as possible.

    Args:
        trial: A failing trial; its inputs are set.
        result: Its result.
        trials: Runs the candidates and holds the failure that must stay the same.
        may_redraw: Whether new random arrays may replace the failing ones. False for the user's arrays.
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
    """Shrink sizes and options to a fixed point; True if anything changed."""
    any_change = False
    changed = True
    while changed:
        changed = False
        for shrink in SIZE_PASSES:
            while best.update(
                trials.first_failing(
                    _with_redraws(shrink(best.trial, _worst(best.result)), best, may_redraw=may_redraw)
                )
            ):
                changed = True
        for simplify in OPTION_PASSES:
            while best.update(trials.first_failing(_allowed(simplify(best.trial), best.trial))):
                changed = True
        any_change = any_change or changed
    return any_change


def _simpler(best: ShrunkCase, trials: ReductionTrials) -> bool:
    """Simplify the numbers: whole arrays, then element by element; True if anything changed."""
    changed = False
    depends_on_numbers = best.result.kind.disagrees
    while best.update(trials.first_failing(simpler_arrays(best.trial, only_rounded=not depends_on_numbers))):
        changed = True
    if not depends_on_numbers:
        return changed
    for name, index in elements_to_simplify(best.trial):
        changed = best.update(trials.first_failing(simpler_element(best.trial, name, index))) or changed
    return changed


def _with_redraws(candidates: Iterable[CaseTrial], best: ShrunkCase, *, may_redraw: bool) -> Iterator[CaseTrial]:
    """The candidates with sliced arrays; then, if allowed, new draws of the same cases."""
    seen = {}
    for trial in _allowed(candidates, best.trial):
        seen[trial.case] = trial
        yield trial
    if not may_redraw or not best.result.kind.disagrees:
        return
    for trial in seen.values():
        mask = trial.draw().attn_mask
        if mask is not None and mask.shape != trial.case.input_shapes().get("attn_mask"):
            continue
        for seed in range(trial.seed, trial.seed + _REDRAWS):
            drawn = replace(trial, inputs=None, seed=seed)
            yield replace(trial, inputs=drawn.draw())


def _allowed(candidates: Iterable[CaseTrial], now: CaseTrial) -> Iterator[CaseTrial]:
    """The candidates that a given graph allows: it keeps its spec and type, only its sizes change."""
    for trial in candidates:
        same = (trial.case.spec, trial.case.dtype) == (now.case.spec, now.case.dtype)
        if now.graph is None or same:
            yield trial


def _worst(result: TrialResult) -> tuple[int, int, int, int] | None:
    return None if result.agreement is None else result.agreement.worst
