"""Which form of a file is the fastest, and where: advice derived from the timings; forms no commands.

A form is named only where it is proven to be faster than every other form on the same runtime, and its outputs are
right.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from sdpa_onnx.core.records.records import TimingRecord
from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.report.text.labels import CaseFactor
from sdpa_onnx.report.timing.case_groups import WrongArm
from sdpa_onnx.report.timing.case_names import is_masked
from sdpa_onnx.report.timing.comparisons import RecordedComparison
from sdpa_onnx.report.timing.slices import axis_value

__all__ = ["FormAdvice", "form_advice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormAdvice:
    """The form that is the fastest in most cases of one kind.

    Args:
        is_causal: Whether every case is causal or has a window; None if the advice is for all kinds of cases.
        runtime, form, opset: Of the arm.
        wins, cases: Number of cases in which it is the fastest form, and of cases with a choice of forms.
        from_length: Number of keys from which on it always wins and below which it never does; 0 if it wins everywhere,
            None if wins and losses are mixed.
        baseline: The arm to which its time is compared.
        slower_wins: In how many of its wins the baseline is still proven to be faster.
    """

    is_causal: bool | None
    runtime: str
    form: str
    opset: int | None
    wins: int
    cases: int
    from_length: int | None
    baseline: str
    slower_wins: int


def form_advice(found: Sequence[RecordedComparison], wrong: Collection[WrongArm] = ()) -> list[FormAdvice]:
    """Advice per runtime; cases with masked pairs are apart from the others unless the same form wins in both.

    Args:
        found: The comparisons of a run.
        wrong: Arms whose outputs are wrong; their form is not advised at all.
    """
    runtimes = dict.fromkeys(arm.runtime for one in found for arm in one.contenders if arm.form)
    return [advice for runtime in runtimes for advice in _of_runtime(found, runtime, wrong)]


def _of_runtime(found: Sequence[RecordedComparison], runtime: str, wrong: Collection[WrongArm]) -> Iterator[FormAdvice]:
    choices = [(one, arms) for one in found if len(arms := _right_forms(one, runtime, wrong)) > 1]
    plain, masked = ([pair for pair in choices if is_masked(pair[0].first) is kind] for kind in (False, True))
    parts = [_advice(plain, is_causal=False), _advice(masked, is_causal=True)]
    named = [one for one in parts if one is not None]
    is_one_kind = not plain or not masked or (len(named) > 1 and named[0].form == named[1].form)
    joined = _advice(choices, is_causal=None) if is_one_kind else None
    yield from named if joined is None else [joined]


def _right_forms(one: RecordedComparison, runtime: str, wrong: Collection[WrongArm]) -> list[TimingRecord]:
    """The arms that differ in the form only: one runtime, our environment, its default options."""
    bad = {arm[2:] for arm in wrong}
    mine = [arm for arm in one.contenders if arm.runtime == runtime and arm.form]
    return [arm for arm in mine if not arm.python and not arm.options and (arm.runtime, arm.form, arm.opset) not in bad]


def _advice(
    choices: Sequence[tuple[RecordedComparison, list[TimingRecord]]], *, is_causal: bool | None
) -> FormAdvice | None:
    won = [(one, arm) for one, arms in choices for arm in arms if _wins(one, arm, arms)]
    counts = Counter((arm.form, arm.opset) for _, arm in won)
    if not counts:
        return None
    (form, opset), wins = counts.most_common(1)[0]
    mine = [(one, arm) for one, arm in won if (arm.form, arm.opset) == (form, opset)]
    judged = [one.judged(arm) for one, arm in mine]
    first = mine[0][1]
    return FormAdvice(
        is_causal=is_causal,
        runtime=first.runtime,
        form=form,
        opset=opset,
        wins=wins,
        cases=len(choices),
        from_length=_from_length([one for one, _ in choices], [one for one, _ in mine]),
        baseline=first.baseline,
        slower_wins=sum(one.proven is RatioVerdict.SLOWER for one in judged),
    )


def _wins(one: RecordedComparison, arm: TimingRecord, arms: Sequence[TimingRecord]) -> bool:
    return all(one.between(arm, other).proven is RatioVerdict.FASTER for other in arms if other is not arm)


def _from_length(cases: Sequence[RecordedComparison], won: Sequence[RecordedComparison]) -> int | None:
    if len(won) == len(cases):
        return 0
    winners = {id(one) for one in won}
    lost = [axis_value(one.first, CaseFactor.LENGTH) for one in cases if id(one) not in winners]
    least = min(axis_value(one.first, CaseFactor.LENGTH) for one in won)
    return least if least > max(lost) else None
