"""Prove that the axes of a model may change: run it at sizes never traced, judge each time.

Reports each axis that is declared dynamic and is not, with the node where the runtime
stops if the runtime names it, and each setting of an attention that follows a
size in the module and is fixed in the graph.
"""

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from sdpa_onnx.core.attention.axis_limits import AxisLimit, broken_limit, edge_sizes, fit_sizes, read_expression
from sdpa_onnx.core.records.records import AgreementRecord, BakedAxis, BakedSetting, Outcome, outcome_of_error
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.workflows.check.long_sizes import (
    alike_guesses,
    fits_memory,
    known_lengths,
    long_runs,
    longest_of,
    reach_in_words,
    sizes_in_words,
    untested,
)
from sdpa_onnx.workflows.isolate.isolated_runtime import ProcessDiedError
from sdpa_onnx.workflows.verify.axis_links import SETS, axis_links, first_that_runs, follow, size_sets
from sdpa_onnx.workflows.verify.baked_settings import baked_settings, likely_sizes
from sdpa_onnx.workflows.verify.fixed_number import fixed_number
from sdpa_onnx.workflows.verify.found_limits import LONGEST_EDGE, limits_of_file, limits_of_module
from sdpa_onnx.workflows.verify.size_walk import SizeFailure, SizeSetTrial, SizeWalk, is_meaningful

__all__ = ["AxesProof", "prove_axes"]

# Size sets to try for a graph that ran at no other, made of the numbers in it.
_GUESSES = 400
# The size set that is small in every axis, but no single key.
_SMALL_SET = 2
# Parts of the names of axes that may be empty: nothing is cached before the first call.
_CACHES = ("past", "cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class AxesProof:
    """What running at other sizes showed.

    Args:
        dynamic_axes: Names of the axes that may change.
        limits: The sizes that they may have: stated, or found where the module or the file refuses others.
        refusals: Why the module itself did not run at some sizes, if no limit explains it.
        baked: Axes that do not really change.
        settings: Settings of attentions that do not follow a size as the module's do.
        links: Axes that have to be as long as another one, by that other.
        failure: Why it is wrong at the sizes tried, if no axis is the cause; "" if it is right.
        died: Where the runtime crashed or did not answer, which ended the proof; "" if it did not.
        ended: FAILED if it crashed, TIMED_OUT if it did not answer in time; OK otherwise.
        sizes_tried: Size sets that were run.
        longest: The longest length among them; 0 where no length may change.
        untested: Windows and compared numbers that no length tried goes beyond.
        records: The judgements at these sizes.
    """

    dynamic_axes: tuple[str, ...]
    limits: tuple[AxisLimit, ...] = ()
    refusals: tuple[str, ...] = ()
    baked: tuple[BakedAxis, ...] = ()
    settings: tuple[BakedSetting, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""
    died: str = ""
    ended: Outcome = Outcome.OK
    sizes_tried: int
    longest: int = 0
    untested: tuple[int, ...] = ()
    records: tuple[AgreementRecord, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """OK if every axis was proved, FAILED or TIMED_OUT if the runtime ended the proof before anything was wrong."""
        if self.baked or self.settings or self.failure:
            return Outcome.DISAGREES
        return self.ended

    @property
    def doubts(self) -> tuple[str, ...]:
        """What was not reached, one sentence; nothing if every known number was."""
        return (reach_in_words(self.longest, self.untested),) if self.untested else ()

    @property
    def reason(self) -> str:
        """What is wrong, one sentence; "" if nothing is."""
        if self.settings:
            text = "; ".join(setting.evidence for setting in self.settings)
            return f"{text[:1].upper()}{text[1:]}."
        parts = [f"axis '{axis.axis}' is fixed" + (f" at '{axis.node}'" if axis.node else "") for axis in self.baked]
        wrong = f"{'; '.join(parts)} ({self.baked[0].evidence})" if self.baked else self.failure
        return " ".join(filter(None, (wrong, self.died)))


def prove_axes(
    model: OnnxModel,
    runtime: Runtime,
    *,
    target: str,
    traced: Mapping[str, int] | None = None,
    count: int = SETS,
    seed: int = 0,
    on_size: Callable[[int, int], None] | None = None,
    is_enough: Callable[[], bool] = lambda: False,
) -> AxesProof:
    """Run a model at sizes never traced and judge every attention each time.

    Args:
        model: The model; its axes are read from its inputs.
        runtime: Where to run it.
        target: Name for the records.
        traced: Sizes it was exported at, where every change of one axis starts.
        count: Size sets.
        seed: Seed of the inputs.
        on_size: Called with (done, total) after each size set, for progress.
        is_enough: Called before each size set but the first; True ends the proof with the sizes tried so far.
    """
    axes = model.facts.axes
    try:
        links = axis_links(model, runtime, traced=traced, seed=seed)
    except ProcessDiedError as error:
        return AxesProof(dynamic_axes=axes, died=str(error), ended=outcome_of_error(error), sizes_tried=0)
    heads = [axis for axis in axes if axis not in links]
    trial = SizeSetTrial(model=model, runtime=runtime, target=target, seed=seed, links=links, is_enough=is_enough)
    walk = SizeWalk(good=[dict(traced)] if traced else [], batches=model.facts.batch_axes, on_size=on_size)
    limits = model.facts.limits if axes else ()
    try:
        limits = _walked(trial, walk, heads, count) if axes else ()
    except ProcessDiedError as error:
        walk.died, walk.ended = f"The search for the limits ended: {error}", outcome_of_error(error)
    if not walk.failures and not walk.died and not is_enough():
        _go_beyond(trial, walk, heads, limits)
    longest = longest_of(walk.tried, model.facts.batch_axes)
    proof = AxesProof(
        dynamic_axes=axes,
        limits=limits,
        links=links,
        refusals=tuple(_refusal_text(*one) for one in walk.refused[-1:]),
        died=walk.died,
        ended=walk.ended,
        sizes_tried=len(walk.tried),
        longest=longest,
        untested=untested(known_lengths([model]), longest),
        records=tuple(walk.records),
    )
    return _judged_walk(proof, trial, walk, traced)


def _judged_walk(proof: AxesProof, trial: SizeSetTrial, walk: SizeWalk, traced: Mapping[str, int] | None) -> AxesProof:
    """The proof with what failed, and the axis or number that is fixed where one is found."""
    if not walk.failures:
        nowhere = walk.refused and not walk.tried and not walk.died
        return replace(proof, failure=f"{_refusal_text(*walk.refused[-1])}, nor elsewhere.") if nowhere else proof
    sizes, first = walk.failures[-1]
    found = replace(proof, failure=f"It is wrong at {sizes_in_words(sizes)}: {first.evidence}")
    if walk.died:
        return found
    try:
        return _explained(proof, trial, walk.failures, walk.good, walk.tried, traced)
    except ProcessDiedError as error:
        return replace(found, died=f"The search for the axis ended: {error}", ended=outcome_of_error(error))


def _walked(trial: SizeSetTrial, walk: SizeWalk, heads: Sequence[str], count: int) -> tuple[AxisLimit, ...]:
    """Run at usual sizes and at the edges of the limits; return the limits, also those found, with what was tested."""
    facts = trial.model.facts
    limits = facts.limits
    planned = size_sets(heads, count=count, batches=facts.batch_axes, limits=limits)
    walk.go(trial, planned)
    found = _found_limits(trial, walk, heads)
    if found:
        limits = (*limits, *found)
        allowed = [sizes for sizes in (fit_sizes(limits, one) for one in planned) if sizes not in walk.tried]
        walk.go(trial, [sizes for number, sizes in enumerate(allowed) if sizes not in allowed[:number]])
    small = size_sets(heads, count=_SMALL_SET, batches=facts.batch_axes, limits=limits)[-1]
    if walk.failures or walk.died:
        return limits
    limits = (*limits, *_empty_caches(trial, walk, small, limits))
    edges = [edge for edge in edge_sizes(limits, small, longest=LONGEST_EDGE) if edge[2] not in walk.tried]
    walk.go(trial, [sizes for _, _, sizes in edges])
    return tuple(_tested(limit, walk.right()) for limit in limits)


def _empty_caches(
    trial: SizeSetTrial, walk: SizeWalk, small: Mapping[str, int], limits: Sequence[AxisLimit]
) -> Iterator[AxisLimit]:
    """Run once without anything in each cache; one that the runtime refuses is a limit.

    A bare attention has its own check of lengths of 0.
    """
    for axis in small:
        sizes = {**small, axis: 0}
        is_cache = any(name in axis.lower() for name in _CACHES) and not trial.model.is_bare_attention
        if not is_cache or broken_limit(limits, sizes) is not None or trial.is_enough():
            continue
        known = len(walk.failures)
        walk.go(trial, [sizes])
        if len(walk.failures) > known and walk.failures[-1][1].is_refusal:
            _, failure = walk.failures.pop()
            yield AxisLimit(size=axis, smallest=1, source=f"the file does not run at {axis} 0: {failure.evidence}")


def _go_beyond(trial: SizeSetTrial, walk: SizeWalk, heads: Sequence[str], limits: Sequence[AxisLimit]) -> None:
    """Run beyond every window and compared number; a length that graph or module refuse is a limit, no fault."""

    def runs(sizes: dict[str, int]) -> bool:
        followed = follow(trial.links, sizes)
        is_allowed = broken_limit(limits, followed) is None
        return is_allowed and first_that_runs(trial.model, trial.runtime, [followed], seed=trial.seed) is not None

    batches = trial.model.facts.batch_axes
    try:
        planned = long_runs([trial.model], heads, batches=batches, tried=walk.tried, runs=runs)
    except ProcessDiedError as error:
        walk.ended = outcome_of_error(error)
        walk.died = f"Beyond {longest_of(walk.tried, batches)}: {error}"
        return
    walk.go(trial, planned)


def _found_limits(trial: SizeSetTrial, walk: SizeWalk, heads: Sequence[str]) -> tuple[AxisLimit, ...]:
    """Limits that explain every refusal of the module, or of the file without one; the refusals are then forgotten."""
    model = trial.model
    start = next((sizes for sizes in walk.good if {*heads} <= {*sizes}), None)
    found: tuple[AxisLimit, ...] = ()
    if walk.died or not heads:
        return ()
    if walk.refused and start is not None:
        begin = {axis: start[axis] for axis in heads}
        found = limits_of_module(model, begin, walk.refused, links=trial.links, seed=trial.seed)
        walk.refused = [] if found else walk.refused
    refusals = [(sizes, failure.evidence) for sizes, failure in walk.failures if failure.is_refusal]
    is_refused = len(refusals) == len(walk.failures)
    refusals += walk.illegal
    if model.source is not None or not refusals or not is_refused or trial.is_enough():
        return found
    start = start or _guessed(trial, heads, [why for _, why in refusals])
    if start is not None:
        begin = {axis: start[axis] for axis in heads}
        found = limits_of_file(model, trial.runtime, begin, refusals, links=trial.links, seed=trial.seed)
        if found:
            walk.tried, walk.failures = walk.right(), []
    return found


def _tested(limit: AxisLimit, right: Sequence[Mapping[str, int]]) -> AxisLimit:
    """The limit with its smallest and largest values that ran and were right."""
    inside = (sizes for sizes in right if {*limit.names} <= {*sizes} and limit.allows(sizes))
    values = sorted({read_expression(limit.size).at(sizes) for sizes in inside})
    return replace(limit, tested=tuple(dict.fromkeys((*values[:1], *values[-1:]))))


def _refusal_text(sizes: Mapping[str, int], why: str) -> str:
    return f"The module itself does not run at {sizes_in_words(sizes)}: {why}"


def _explained(
    proof: AxesProof,
    trial: SizeSetTrial,
    failures: Sequence[tuple[dict[str, int], SizeFailure]],
    good: Sequence[Mapping[str, int]],
    tried: Sequence[Mapping[str, int]],
    traced: Mapping[str, int] | None,
) -> AxesProof:
    """The proof with the setting or the axis that causes the failures, or with their evidence."""
    wrong = [follow(trial.links, sizes) for sizes, _ in failures]
    settings = baked_settings(trial.model, trial.runtime, traced=traced, wrong=wrong, seed=trial.seed)
    if settings:
        return replace(proof, settings=settings)
    heads = [axis for axis in proof.dynamic_axes if axis not in trial.links]
    working = next((sizes for sizes in good if trial.run(sizes, []) is None), None) or _guessed(
        trial, heads, [failure.evidence for _, failure in failures]
    )
    sizes, first = failures[-1]
    if working is None:
        refused = all(failure.is_refusal for _, failure in failures)
        what = "It runs at none of the sizes that were tried" if refused else "It is wrong wherever it was tried"
        return replace(proof, failure=f"{what}, e.g. at {sizes_in_words(sizes)}: {first.evidence}")
    start = {axis: working[axis] for axis in heads}
    fixed = _Isolation(trial=trial, working=start, batches=trial.model.facts.batch_axes).fixed(tried)
    baked = [axis.baked for axis in fixed if not axis.is_number]
    if fixed and not baked:
        right, other = (follow(trial.links, one) for one in (start, fixed[0].wrong))
        changed = [axis for axis in start if start[axis] != other[axis]]
        evidence = fixed_number(trial.model, right, other, changed=changed, seed=trial.seed)
        return replace(proof, failure=f"{evidence} {fixed[0].says}")
    if baked:
        # A change of one axis may pass the checks of the runtime where a change of all axes did not.
        node = next((failure.node for _, failure in failures if failure.node), "")
        named = tuple(axis if axis.node else msgspec.structs.replace(axis, node=node) for axis in baked)
        return replace(proof, baked=named)
    return replace(
        proof,
        failure=f"It is right at {sizes_in_words(working)} and wrong at {sizes_in_words(sizes)}: {first.evidence}",
    )


def _guessed(trial: SizeSetTrial, heads: Sequence[str], errors: Sequence[str]) -> dict[str, int] | None:
    """Sizes at which the graph is right, made of the numbers in it; None if none are found.

    Numbers in the error messages of a runtime are tried first: a fixed size is often among them.
    """
    reported = {int(number) for error in errors for number in re.findall(r"\b\d{1,5}\b", error)}
    numbers = sorted(likely_sizes(trial.model), key=lambda number: number not in reported)
    guesses = itertools.islice(_guesses(trial.model, heads, numbers), _GUESSES)
    allowed = itertools.takewhile(lambda _: not trial.is_enough(), guesses)
    followed = (follow(trial.links, sizes) for sizes in allowed)
    found = first_that_runs(trial.model, trial.runtime, followed, seed=trial.seed)
    return found if found is not None and trial.run(found, []) is None else None


def _guesses(model: OnnxModel, heads: Sequence[str], numbers: Sequence[int]) -> Iterator[dict[str, int]]:
    """Sizes made of these numbers, and few samples: all axes alike, then mixed; those that take much memory never."""
    batches = model.facts.batch_axes
    choices = [(2, *numbers) if axis in batches else tuple(numbers) for axis in heads]
    mixed = (dict(zip(heads, sizes, strict=True)) for sizes in itertools.product(*choices))
    yield from alike_guesses(model, heads, numbers)
    yield from (sizes for sizes in itertools.islice(mixed, _GUESSES) if fits_memory(model, sizes, batches))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fixed:
    """An axis with which something is fixed: itself, or only a number in the graph; at what sizes, and why."""

    baked: BakedAxis
    is_number: bool
    wrong: Mapping[str, int]
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Isolation:
    """Sizes that work, from which one axis at a time is changed."""

    trial: SizeSetTrial
    working: Mapping[str, int]
    batches: Collection[str]

    def fixed(self, tried: Sequence[Mapping[str, int]]) -> tuple[_Fixed, ...]:
        """Axes that work at no other size. One that fails at some sizes only is no baked axis but a fault there."""
        found = (self._fixed(axis, [sizes[axis] for sizes in tried]) for axis in self.working)
        return tuple(axis for axis in found if axis is not None)

    def _fixed(self, axis: str, tried: Sequence[int]) -> _Fixed | None:
        failures: list[tuple[int, SizeFailure]] = []
        others = [
            size
            for size in dict.fromkeys(tried)
            if size != self.working[axis] and is_meaningful({axis: size}, self.batches)
        ]
        for size in others:
            changed = {**self.working, axis: size}
            failure = self.trial.run(changed, [])
            if failure is None:
                return None
            failures.append((size, failure))
        if not failures:
            return None
        size, failure = max(failures, key=lambda found: bool(found[1].node))
        evidence = f"{axis} {self.working[axis]} works, {size} does not: {failure.evidence}"
        return _Fixed(
            baked=BakedAxis(axis=axis, node=failure.node, evidence=evidence),
            is_number=all(found.is_number for _, found in failures),
            wrong={**self.working, axis: size},
            says=failure.evidence,
        )
