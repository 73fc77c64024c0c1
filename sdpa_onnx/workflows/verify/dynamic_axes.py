"""Prove that the axes of a model may change: run it at sizes never traced, judge each time.

Reports each axis that is declared dynamic and is not, with the node where the runtime
stops if the runtime names it, and each setting of an attention that follows a
size in the module and is fixed in the graph.
"""

import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from sdpa_onnx.core.records.records import AgreementRecord, BakedAxis, BakedSetting, Outcome, Subject, outcome_of_error
from sdpa_onnx.errors import CaseError, ExportError, SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.runtimes.ort_errors import failing_node
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.isolate.isolated_runtime import ProcessDiedError
from sdpa_onnx.workflows.verify.axis_links import SETS, axis_links, first_that_runs, follow, size_sets
from sdpa_onnx.workflows.verify.baked_settings import baked_settings, likely_sizes
from sdpa_onnx.workflows.verify.fixed_number import fixed_number
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model

__all__ = ["AxesProof", "prove_axes"]

# Size sets to try for a graph that ran at no other, made of the numbers in it.
_GUESSES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class AxesProof:
    """What running at other sizes showed.

    Args:
        dynamic_axes: Names of the axes that may change.
        baked: Axes that do not really change.
        settings: Settings of attentions that do not follow a size as the module's do.
        links: Axes that have to be as long as another one, by that other.
        failure: Why it is wrong at the sizes tried, if no axis is the cause; "" if it is right.
        died: Where the runtime crashed or did not answer, which ended the proof; "" if it did not.
        ended: FAILED if it crashed, TIMED_OUT if it did not answer in time; OK otherwise.
        sizes_tried: Size sets that were run.
        records: The judgements at these sizes.
    """

    dynamic_axes: tuple[str, ...]
    baked: tuple[BakedAxis, ...] = ()
    settings: tuple[BakedSetting, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""
    died: str = ""
    ended: Outcome = Outcome.OK
    sizes_tried: int
    records: tuple[AgreementRecord, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """OK if every axis was proved, FAILED or TIMED_OUT if the runtime ended the proof before anything was wrong."""
        if self.baked or self.settings or self.failure:
            return Outcome.DISAGREES
        return self.ended

    @property
    def reason(self) -> str:
        """What is wrong, one sentence; "" if nothing is."""
        if self.settings:
            text = "; ".join(setting.evidence for setting in self.settings)
            return f"{text[:1].upper()}{text[1:]}."
        parts = [f"axis '{axis.axis}' is fixed" + (f" at '{axis.node}'" if axis.node else "") for axis in self.baked]
        wrong = f"{'; '.join(parts)} ({self.baked[0].evidence})" if self.baked else self.failure
        return " ".join(filter(None, (wrong, self.died)))


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why one size set failed.

    Args:
        evidence: In one sentence.
        node: Where, or "".
        is_number: It ran, the shapes of the outputs are right and the numbers are not.
        is_refusal: The runtime did not run it.
    """

    evidence: str
    node: str
    is_number: bool = False
    is_refusal: bool = False


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
    trial = _Trial(model=model, runtime=runtime, target=target, seed=seed, links=links, is_enough=is_enough)
    batches = model.facts.batch_axes
    walk = _Walk(good=[dict(traced)] if traced else [])
    walk.go(trial, size_sets(heads, count=count, batches=batches) if axes else [], batches, on_size)
    proof = AxesProof(
        dynamic_axes=axes,
        links=links,
        died=walk.died,
        ended=walk.ended,
        sizes_tried=len(walk.tried),
        records=tuple(walk.records),
    )
    if not walk.failures:
        return proof
    sizes, first = walk.failures[-1]
    found = replace(proof, failure=f"It is wrong at {_words(sizes)}: {first.evidence}")
    if walk.died:
        return found
    try:
        return _explained(proof, trial, walk.failures, walk.good, walk.tried, traced)
    except ProcessDiedError as error:
        return replace(found, died=f"The search for the axis ended: {error}", ended=outcome_of_error(error))


def _explained(
    proof: AxesProof,
    trial: "_Trial",
    failures: Sequence[tuple[dict[str, int], _Failure]],
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
        return replace(proof, failure=f"{what}, e.g. at {_words(sizes)}: {first.evidence}")
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
    return replace(proof, failure=f"It is right at {_words(working)} and wrong at {_words(sizes)}: {first.evidence}")


def _guessed(trial: "_Trial", heads: Sequence[str], errors: Sequence[str]) -> dict[str, int] | None:
    """Sizes at which the graph is right, made of the numbers in it; None if none are found.

    Numbers in the error messages of a runtime are tried first: a fixed size is often among them.
    """
    reported = {int(number) for error in errors for number in re.findall(r"\b\d{1,5}\b", error)}
    numbers = sorted(likely_sizes(trial.model), key=lambda number: number not in reported)
    batches = trial.model.facts.batch_axes
    choices = [(2, *numbers) if axis in batches else tuple(numbers) for axis in heads]
    alike = ({axis: 2 if axis in batches else number for axis in heads} for number in numbers)
    mixed = (dict(zip(heads, sizes, strict=True)) for sizes in itertools.product(*choices))
    guesses = itertools.islice(itertools.chain(alike, mixed), _GUESSES)
    allowed = itertools.takewhile(lambda _: not trial.is_enough(), guesses)
    followed = (follow(trial.links, sizes) for sizes in allowed)
    found = first_that_runs(trial.model, trial.runtime, followed, seed=trial.seed)
    return found if found is not None and trial.run(found, []) is None else None


def _is_meaningful(sizes: Mapping[str, int], batches: Collection[str]) -> bool:
    """Whether a right result proves anything: with one key the softmax is 1 whatever the scores are."""
    return all(size > 1 for axis, size in sizes.items() if not axis.startswith("batch") and axis not in batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """One model on one runtime, to be run at many sizes; the module's float64 copy is made once."""

    model: OnnxModel
    runtime: Runtime
    target: str
    seed: int
    links: Mapping[str, str]
    is_enough: Callable[[], bool]
    shared: ExpectationCache = field(default_factory=ExpectationCache)

    def run(self, sizes: Mapping[str, int], records: list[AgreementRecord]) -> _Failure | None:
        """Run one size set and add its records; None if everything is right.

        Raises:
            ProcessDiedError: If the runtime crashed or did not answer, which is no result about the graph.
        """
        check = CheckOptions(sizes=follow(self.links, sizes), spreads=(1.0,), seed=self.seed)
        try:
            found = check_model(self.model, self.runtime, check, target=self.target, expectations=self.shared)
        except ProcessDiedError:
            raise
        except SessionError as error:
            return _Failure(str(error), failing_node(str(error.__cause__ or error)) or "", is_refusal=True)
        except (ExportError, CaseError) as error:
            # CaseError: inner values that do not fit together, which only a fault of the runtime can cause.
            return _Failure(str(error), "")
        records.extend(found)
        wrong = next((record for record in found if record.outcome is Outcome.DISAGREES), None)
        if wrong is None:
            return None
        # Some sites are attentions, others outputs of the whole graph, which is no node.
        is_output = wrong.subject is Subject.OUTPUT
        # A wrong shape has no error of numbers.
        is_number = is_output and (wrong.max_bound_ratio > 0.0 or wrong.not_finite > 0)
        return _Failure(wrong.diagnosis, "" if is_output else wrong.site, is_number)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fixed:
    """An axis with which something is fixed: itself, or only a number in the graph; at what sizes, and why."""

    baked: BakedAxis
    is_number: bool
    wrong: Mapping[str, int]
    says: str


@dataclass(slots=True, kw_only=True)
class _Walk:
    """The results of running one size set after the other; private and short-lived."""

    good: list[dict[str, int]]
    tried: list[dict[str, int]] = field(default_factory=list)
    failures: list[tuple[dict[str, int], _Failure]] = field(default_factory=list)
    records: list[AgreementRecord] = field(default_factory=list)
    died: str = ""
    ended: Outcome = Outcome.OK

    def go(
        self,
        trial: _Trial,
        planned: Sequence[dict[str, int]],
        batches: Collection[str],
        on_size: Callable[[int, int], None] | None,
    ) -> None:
        """Run every planned size set, until it is enough or the runtime dies."""
        for sizes in planned:
            if self.tried and trial.is_enough():
                return
            try:
                failure = trial.run(sizes, self.records)
            except ProcessDiedError as error:
                self.ended = outcome_of_error(error)
                self.died = f"At {_words(follow(trial.links, sizes))}: {error}"
                return
            self.tried.append(sizes)
            if failure is not None:
                self.failures.append((sizes, failure))
            elif _is_meaningful(sizes, batches):
                self.good.append(sizes)
            if on_size is not None:
                on_size(len(self.tried), len(planned))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Isolation:
    """Sizes that work, from which one axis at a time is changed."""

    trial: _Trial
    working: Mapping[str, int]
    batches: Collection[str]

    def fixed(self, tried: Sequence[Mapping[str, int]]) -> tuple[_Fixed, ...]:
        """Axes that work at no other size. One that fails at some sizes only is no baked axis but a fault there."""
        found = (self._fixed(axis, [sizes[axis] for sizes in tried]) for axis in self.working)
        return tuple(axis for axis in found if axis is not None)

    def _fixed(self, axis: str, tried: Sequence[int]) -> _Fixed | None:
        failures: list[tuple[int, _Failure]] = []
        others = [
            size
            for size in dict.fromkeys(tried)
            if size != self.working[axis] and _is_meaningful({axis: size}, self.batches)
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


def _words(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items())
