"""Choose the form of an attention for a runtime: probe every form, time those that are right, keep the fastest.

If the fastest form depends on the length, one graph may contain two forms. Does not read or write files.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from sdpa_onnx.core.attention.form_choice import TIE, best_overall, split_by_length
from sdpa_onnx.core.attention.forms import Form, LowerOptions, ScalePlacement
from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.records.form_records import FormRecord
from sdpa_onnx.core.records.verdicts import Outcome
from sdpa_onnx.graph.lower.lower import needed_opset
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Runtime
from sdpa_onnx.workflows.check.case_trial import judge_attention
from sdpa_onnx.workflows.check.feeds import draw_feeds
from sdpa_onnx.workflows.choose_form.choice import FormCandidate, FormChoice, named, sizes_text, timed_rows
from sdpa_onnx.workflows.choose_form.form_trial import FormProblem, bare_attention, form_model, set_opset
from sdpa_onnx.workflows.choose_form.race_time import FormRace
from sdpa_onnx.workflows.choose_form.workarounds import PATIENCE_SECONDS, RefusedForm, WorkableForm, probe_form
from sdpa_onnx.workflows.isolate.isolated_runtime import own_process

if TYPE_CHECKING:
    from sdpa_onnx.measure.pool import WorkerPool

__all__ = ["RaceBudget", "at_opset", "choose_form", "default_sizes"]

# Default sizes: a short, a medium and a long sequence; with a cache, one token and a prompt.
_LENGTHS = (128, 512, 2048)
_CACHE = 1024
# Arms from the simplest to the most complex: a tie goes to the first.
_ARMS: tuple[tuple[str, Form, LowerOptions], ...] = (
    ("attention", Form.ATTENTION, LowerOptions()),
    ("decomposed", Form.DECOMPOSED, LowerOptions()),
    ("decomposed/scores", Form.DECOMPOSED, LowerOptions(scale_placement=ScalePlacement.SCORES)),
    ("ort-mha", Form.ORT_MHA, LowerOptions()),
    ("ort-gqa", Form.ORT_GQA, LowerOptions()),
    ("blocked", Form.BLOCKED, LowerOptions(inner=Form.ATTENTION)),
    ("blocked/decomposed", Form.BLOCKED, LowerOptions(inner=Form.DECOMPOSED)),
)
_BOTH = "by length"
# Time limit of one call: enough for the slowest arm at the longest sequence that is timed in practice.
_TRIAL_SECONDS = 600.0
# An `If` and the nodes of its condition take 2 us on onnxruntime's CPU provider. For the shortest attentions (30 us)
# that is more than a tie, but no reason to be several times slower at longer ones.
_BRANCH_SECONDS = 5e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceBudget:
    """The sizes to time, and the time for it.

    Args:
        sizes: The user's: batch_size, q_seq_len, kv_seq_len and, with a cache, past_seq_len; () = `default_sizes`.
        threads: Threads inside one operator.
        seconds: Time for all comparisons together; slow arms may take longer.
        seed: Seed of inputs and order.
    """

    sizes: tuple[Mapping[str, int], ...] = ()
    threads: int = 1
    seconds: float = 20.0
    seed: int = 0


def choose_form(
    problem: FormProblem,
    runtime: Runtime,
    *,
    opset: int,
    budget: RaceBudget | None = None,
    forms: Collection[Form] = tuple(Form),
    cannot_hold: Callable[[int], str] = lambda _: "",
    site: str = "",
    on_step: Callable[[str], None] = lambda _: None,
) -> FormChoice:
    """Probe every form on a runtime, time those that are right, and choose.

    Args:
        problem: The attention and the inputs that its graph can feed it.
        runtime: The runtime that will run the file.
        opset: Opset of the file; a form that needs a higher one is tried at that one.
        budget: Sizes and time; None = `default_sizes` on one thread.
        forms: The forms to try.
        cannot_hold: Returns why the graph cannot have an opset, as a clause; "" if it can.
        site: Name of the attention, for the records.
        on_step: Called with the current step, for a progress line.
    """
    used = budget or RaceBudget()
    if any(one["q_seq_len"] != one["kv_seq_len"] for one in used.sizes):
        problem = replace(problem, has_equal_lengths=False)
    on_step(f"probing {len(forms)} forms on {runtime.name}")
    candidates, refused = _probe_forms(problem, runtime, opset, forms, cannot_hold)
    if not candidates or not runtime.measures_time:
        return named(_untimed(candidates, refused, runtime), runtime, site)
    from sdpa_onnx.measure.pool import WorkerPool

    with WorkerPool(fresh=False, patience_seconds=_TRIAL_SECONDS) as pool:
        races = _Races(problem=problem, runtime=runtime, pool=pool, budget=used, on_step=on_step)
        timed = races.of_all(candidates)
        pair = _pair(problem, runtime, candidates, timed)
        chosen = pair if pair is not None and races.keeps(pair, timed) else _single(candidates, timed)
    rows = timed_rows(candidates, timed, chosen, spec=problem.spec, threads=used.threads)
    return named(replace(chosen, records=(*refused, *rows)), runtime, site)


def default_sizes(spec: AttentionSpec) -> tuple[dict[str, int], ...]:
    """Sizes if the user sets none: three lengths; with a cache, one token over 1024 cached keys and a prompt."""
    if not spec.has_past:
        return tuple({"batch_size": 1, "q_seq_len": length, "kv_seq_len": length} for length in _LENGTHS)
    token = {"batch_size": 1, "q_seq_len": 1, "kv_seq_len": 1, "past_seq_len": _CACHE}
    prompt = {"batch_size": 1, "q_seq_len": _LENGTHS[1], "kv_seq_len": _LENGTHS[1], "past_seq_len": 0}
    return token, prompt


def _probe_forms(
    problem: FormProblem,
    runtime: Runtime,
    opset: int,
    forms: Collection[Form],
    cannot_hold: Callable[[int], str],
) -> tuple[tuple[FormCandidate, ...], tuple[FormRecord, ...]]:
    """The candidates on which the runtime is right, and the records of the other forms."""
    _, attention = bare_attention(problem)
    candidates: list[FormCandidate] = []
    refused: list[FormRecord] = []
    with own_process(runtime, PATIENCE_SECONDS) as where:
        for arm, form, options in (one for one in _ARMS if one[1] in forms):
            needed = max(opset, needed_opset(attention, form, options))
            if needed > opset and (cause := cannot_hold(needed)):
                reason = f"The form needs opset {needed}, and {cause}"
                refused.append(_not_held(runtime, problem, arm, form, needed, reason))
                continue
            match probe_form(where, problem, form, opset=needed, options=options):
                case WorkableForm(options=written, record=record):
                    candidates.append(
                        FormCandidate(arm=arm, form=form, opset=needed, options=written, record=_renamed(record, arm))
                    )
                case RefusedForm(record=record):
                    refused.append(_renamed(record, arm))
    return tuple(candidates), tuple(refused)


def _not_held(runtime: Runtime, problem: FormProblem, arm: str, form: Form, opset: int, reason: str) -> FormRecord:
    """The record of a form that needs an opset that the file cannot have; it was not run."""
    return FormRecord(
        form=form,
        arm=arm,
        opset=opset,
        runtime=runtime.name,
        dtype=problem.dtype,
        outcome=Outcome.UNSUPPORTED,
        reason=reason,
    )


def _renamed(record: FormRecord, arm: str) -> FormRecord:
    return msgspec.structs.replace(record, arm=arm)


def _single_model(problem: FormProblem, candidate: FormCandidate) -> OnnxModel:
    assumed = problem.with_lengths_for(candidate.form)
    mask_shape = _timed_mask(problem)
    return form_model(assumed, candidate.form, opset=candidate.opset, options=candidate.options, mask_shape=mask_shape)


def _timed_mask(problem: FormProblem) -> str:
    """The shape of the timed mask: as long as the keys, also if its axis has another name."""
    return problem.mask_shapes[0].replace("F", "T")


def _untimed(candidates: Sequence[FormCandidate], refused: tuple[FormRecord, ...], runtime: Runtime) -> FormChoice:
    """The simplest candidate, for a runtime that is not timed."""
    reason = f"{runtime.name} is not timed: the simplest form that is right there is chosen."
    rows = [
        msgspec.structs.replace(candidate.record, chosen=not number, reason="" if not number else reason)
        for number, candidate in enumerate(candidates)
    ]
    return FormChoice(records=(*refused, *rows), candidate=candidates[0] if candidates else None)


def _single(candidates: Sequence[FormCandidate], races: Sequence[FormRace]) -> FormChoice:
    """The best candidate for every length; None if none ran at every size."""
    best = best_overall({number: race.raced for number, race in enumerate(races)})
    return FormChoice(records=(), candidate=next((one for one in candidates if one.arm == best), None))


def _pair(
    problem: FormProblem, runtime: Runtime, candidates: Sequence[FormCandidate], races: Sequence[FormRace]
) -> FormChoice | None:
    """One candidate for short and one for long sequences, if that is faster and both are right at one opset."""
    lengths = [race.sizes["q_seq_len"] for race in races]
    split = split_by_length(dict(zip(lengths, (race.raced for race in races), strict=True)))
    if split is None or len(set(lengths)) < len(lengths):
        return None
    arms = {candidate.arm: candidate for candidate in candidates}
    opset = max(arms[arm].opset for arm in (split.short, split.long))
    short, long = (at_opset(problem, runtime, arms[arm], opset) for arm in (split.short, split.long))
    if short is None or long is None:
        return None
    return FormChoice(records=(), candidate=short, long=long, at=split.at)


def at_opset(problem: FormProblem, runtime: Runtime, candidate: FormCandidate, opset: int) -> FormCandidate | None:
    """The candidate at a higher opset, or None if the runtime is wrong there."""
    if candidate.opset == opset:
        return candidate
    options = next(options for arm, _, options in _ARMS if arm == candidate.arm)
    found = probe_form(runtime, problem, candidate.form, opset=opset, options=options)
    return replace(candidate, opset=opset, options=found.options) if isinstance(found, WorkableForm) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Races:
    """Runs the races of one problem on one runtime."""

    problem: FormProblem
    runtime: Runtime
    pool: "WorkerPool"
    budget: RaceBudget
    on_step: Callable[[str], None]

    def of_all(self, candidates: Sequence[FormCandidate]) -> list[FormRace]:
        """One race of all candidates for each set of sizes."""
        models = {candidate.arm: _single_model(self.problem, candidate) for candidate in candidates}
        return [self._race(models, one) for one in self._sizes()]

    def keeps(self, pair: FormChoice, races: Sequence[FormRace]) -> bool:
        """Whether two forms in one graph are as fast as the faster one at every size, and right in both branches."""
        written = self.pair_model(pair)
        return _is_free(self.of_pair(written, pair, races)) and self.is_right(written, pair)

    def pair_model(self, pair: FormChoice) -> OnnxModel:
        """A model with both forms, in the branches of an `If`."""
        forms = {one.form for one in (pair.candidate, pair.long) if one is not None}
        assumed = self.problem.with_lengths_for(Form.ORT_GQA if Form.ORT_GQA in forms else Form.ATTENTION)
        model, attention = bare_attention(assumed, mask_shape=_timed_mask(assumed))
        set_opset(model, pair.opset)
        return OnnxModel(ir=model, sites=(pair.lower(model, attention).site,))

    def of_pair(self, written: OnnxModel, pair: FormChoice, races: Sequence[FormRace]) -> list[FormRace]:
        """The model with both forms against each form alone, at every set of sizes."""
        singles = {one.arm: _single_model(self.problem, one) for one in (pair.candidate, pair.long) if one is not None}
        return [self._race({_BOTH: written, **singles}, one.sizes) for one in races]

    def is_right(self, written: OnnxModel, pair: FormChoice) -> bool:
        """Whether the runtime is right at the last length of one branch and the first length of the other."""
        spec = self.problem.spec
        past = {"past_seq_len": 1} if spec.has_past else {}
        options = LoadOptions(threads=self.budget.threads)
        with own_process(self.runtime, _TRIAL_SECONDS) as where, where.load(written, options) as session:
            for length in (pair.at, pair.at + 1):
                sizes = {"batch_size": 1, "q_seq_len": length, "kv_seq_len": length, **past}
                feeds = draw_feeds(written, sizes, spread=1.0, seed=self.budget.seed)
                inputs, outputs = AttentionInputs.from_feeds(feeds), written.sites[0].outputs_in(session.run(feeds))
                if judge_attention(spec, inputs, outputs, precision=session.ran().precision).output:
                    return False
        return True

    def _sizes(self) -> tuple[Mapping[str, int], ...]:
        return self.budget.sizes or default_sizes(self.problem.spec)

    def _race(self, models: Mapping[str, OnnxModel], sizes: Mapping[str, int]) -> FormRace:
        from sdpa_onnx.workflows.choose_form.race import race

        self.on_step(f"timing {len(models)} forms at {sizes_text(sizes)}")
        # Half of the time is for the forms, half for the model with two forms that may follow.
        seconds = 0.5 * self.budget.seconds / len(self._sizes())
        return race(
            models,
            self.runtime,
            sizes,
            threads=self.budget.threads,
            budget_seconds=seconds,
            seed=self.budget.seed,
            pool=self.pool,
        )


def _is_free(races: Sequence[FormRace]) -> bool:
    """Whether the `If` is as fast as its faster branch at every set of sizes, apart from its own few nodes."""
    return bool(races) and all(_is_as_fast(one) for one in races)


def _is_as_fast(race_: FormRace) -> bool:
    time = race_.times[_BOTH]
    if time.failure:
        return False
    single = min(other.seconds for name, other in race_.times.items() if name != _BOTH and not other.failure)
    return time.ratio_low <= TIE or time.seconds - single <= _BRANCH_SECONDS
