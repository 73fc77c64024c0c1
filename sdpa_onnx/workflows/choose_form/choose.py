"""Choose the form of an attention for a runtime: every form probed there, those that are right timed, the fastest kept.

Where the winner changes with the length, one graph may hold two. Reads and writes no file.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from sdpa_onnx.core.attention.form_choice import TIE, best_overall, split_by_length
from sdpa_onnx.core.attention.forms import Form, LowerOptions, ScalePlacement
from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.records.form_records import FormRecord
from sdpa_onnx.core.records.verdicts import Outcome
from sdpa_onnx.graph.lower.lower import needed_opset
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.measure.pool import WorkerPool
from sdpa_onnx.runtimes.base import LoadOptions, Runtime
from sdpa_onnx.workflows.check.case_trial import judge_attention
from sdpa_onnx.workflows.check.feeds import draw_feeds
from sdpa_onnx.workflows.choose_form.choice import FormCandidate, FormChoice, named, size_words, timed_rows
from sdpa_onnx.workflows.choose_form.form_trial import FormProblem, bare_attention, form_model, set_opset
from sdpa_onnx.workflows.choose_form.race import FormRace, race
from sdpa_onnx.workflows.choose_form.workarounds import PATIENCE_SECONDS, RefusedForm, WorkableForm, workable
from sdpa_onnx.workflows.isolate.isolated_runtime import own_process

__all__ = ["RaceBudget", "choose_form", "default_sizes", "raised"]

# Where the user names no sizes: a short, a middling and a long sequence; with a cache, a prompt and a token after it.
_LENGTHS = (128, 512, 2048)
_CACHE = 1024
# Arms from the simplest to the least simple: a tie goes to the first.
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
# One call of the slowest arm at the longest sequence that anybody times.
_TRIAL_SECONDS = 600.0
# An `If` and the nodes of its condition take 2 us on onnxruntime's CPU provider: beside the shortest of
# attentions (30 us) more than a tie, and no reason to be several times slower at the longer ones.
_BRANCH_SECONDS = 5e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceBudget:
    """What is timed, and for how long.

    Args:
        sizes: The user's: batch_size, q_seq_len, kv_seq_len and, with a cache, past_seq_len; () = a ladder.
        threads: Threads inside one operator.
        seconds: For all comparisons together; slow arms may take longer.
        seed: Of inputs and order.
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
        problem: The attention and what its graph can feed it.
        runtime: Where the file will run.
        opset: The file's; a form that needs a higher one is tried at that.
        budget: What is timed; None = a ladder of lengths on one thread.
        forms: Those to try.
        cannot_hold: Why the graph cannot get an opset, as a clause; "" if it can.
        site: Name of the attention, for the records.
        on_step: Told what is being done, for a progress line.
    """
    asked = budget or RaceBudget()
    if any(one["q_seq_len"] != one["kv_seq_len"] for one in asked.sizes):
        problem = replace(problem, has_equal_lengths=False)
    on_step(f"probing {len(forms)} forms on {runtime.name}")
    ways, refused = _probed(problem, runtime, opset, forms, cannot_hold)
    if not ways or not runtime.measures_time:
        return named(_untimed(ways, refused, runtime), runtime, site)
    with WorkerPool(fresh=False, patience_seconds=_TRIAL_SECONDS) as pool:
        track = _Track(problem=problem, runtime=runtime, pool=pool, budget=asked, on_step=on_step)
        races = track.races(ways)
        pair = _pair(problem, runtime, ways, races)
        chosen = pair if pair is not None and track.keeps(pair, races) else _single(ways, races)
    rows = timed_rows(ways, races, chosen, spec=problem.spec, threads=asked.threads)
    return named(replace(chosen, records=(*refused, *rows)), runtime, site)


def default_sizes(spec: AttentionSpec) -> tuple[dict[str, int], ...]:
    """Sizes for who names none: a ladder of lengths; with a cache, a prompt and one token over a thousand."""
    if not spec.has_past:
        return tuple({"batch_size": 1, "q_seq_len": length, "kv_seq_len": length} for length in _LENGTHS)
    token = {"batch_size": 1, "q_seq_len": 1, "kv_seq_len": 1, "past_seq_len": _CACHE}
    prompt = {"batch_size": 1, "q_seq_len": _LENGTHS[1], "kv_seq_len": _LENGTHS[1], "past_seq_len": 0}
    return token, prompt


def _probed(
    problem: FormProblem,
    runtime: Runtime,
    opset: int,
    forms: Collection[Form],
    cannot_hold: Callable[[int], str],
) -> tuple[tuple[FormCandidate, ...], tuple[FormRecord, ...]]:
    """The ways that the runtime gets right, and the records of the others."""
    _, attention = bare_attention(problem)
    ways: list[FormCandidate] = []
    refused: list[FormRecord] = []
    with own_process(runtime, PATIENCE_SECONDS) as where:
        for arm, form, options in (one for one in _ARMS if one[1] in forms):
            needed = max(opset, needed_opset(attention, form, options))
            if needed > opset and (why := cannot_hold(needed)):
                reason = f"The form needs opset {needed}, and {why}"
                refused.append(_not_held(runtime, problem, arm, form, needed, reason))
                continue
            match workable(where, problem, form, opset=needed, options=options):
                case WorkableForm(options=written, record=record):
                    ways.append(
                        FormCandidate(arm=arm, form=form, opset=needed, options=written, record=_renamed(record, arm))
                    )
                case RefusedForm(record=record):
                    refused.append(_renamed(record, arm))
    return tuple(ways), tuple(refused)


def _not_held(runtime: Runtime, problem: FormProblem, arm: str, form: Form, opset: int, reason: str) -> FormRecord:
    """The record of a form that no file of this opset can hold; nothing was asked of the runtime."""
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


def _alone(problem: FormProblem, way: FormCandidate) -> OnnxModel:
    assumed = problem.with_lengths_for(way.form)
    return form_model(assumed, way.form, opset=way.opset, options=way.options, mask_shape=_timed_mask(problem))


def _timed_mask(problem: FormProblem) -> str:
    """The mask that is timed: all keys long, whatever its axis is called."""
    return problem.mask_shapes[0].replace("F", "T")


def _untimed(ways: Sequence[FormCandidate], refused: tuple[FormRecord, ...], runtime: Runtime) -> FormChoice:
    """The simplest way, where nothing is timed."""
    why = f"{runtime.name} is not timed: the simplest form that is right there is kept."
    rows = [
        msgspec.structs.replace(way.record, chosen=not number, reason="" if not number else why)
        for number, way in enumerate(ways)
    ]
    return FormChoice(records=(*refused, *rows), way=ways[0] if ways else None)


def _single(ways: Sequence[FormCandidate], races: Sequence[FormRace]) -> FormChoice:
    """One way for every length, or none if none ran everywhere."""
    best = best_overall({number: race.raced for number, race in enumerate(races)})
    return FormChoice(records=(), way=next((way for way in ways if way.arm == best), None))


def _pair(
    problem: FormProblem, runtime: Runtime, ways: Sequence[FormCandidate], races: Sequence[FormRace]
) -> FormChoice | None:
    """Two ways, one for short and one for long sequences, where that pays and both are right at one opset."""
    lengths = [race.sizes["q_seq_len"] for race in races]
    split = split_by_length(dict(zip(lengths, (race.raced for race in races), strict=True)))
    if split is None or len(set(lengths)) < len(lengths):
        return None
    arms = {way.arm: way for way in ways}
    opset = max(arms[arm].opset for arm in (split.short, split.long))
    short, long = (raised(problem, runtime, arms[arm], opset) for arm in (split.short, split.long))
    if short is None or long is None:
        return None
    return FormChoice(records=(), way=short, long=long, at=split.at)


def raised(problem: FormProblem, runtime: Runtime, way: FormCandidate, opset: int) -> FormCandidate | None:
    """The way at a higher opset, if it is right there too."""
    if way.opset == opset:
        return way
    plain = next(options for arm, _, options in _ARMS if arm == way.arm)
    found = workable(runtime, problem, way.form, opset=opset, options=plain)
    return replace(way, opset=opset, options=found.options) if isinstance(found, WorkableForm) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Track:
    """Where and how races are run."""

    problem: FormProblem
    runtime: Runtime
    pool: WorkerPool
    budget: RaceBudget
    on_step: Callable[[str], None]

    def races(self, ways: Sequence[FormCandidate]) -> list[FormRace]:
        """One race for each set of sizes."""
        models = {way.arm: _alone(self.problem, way) for way in ways}
        return [self._race(models, one) for one in self._sizes()]

    def keeps(self, pair: FormChoice, races: Sequence[FormRace]) -> bool:
        """Whether two ways in one file are as fast as the better of them everywhere, and right on both sides."""
        written = self.written(pair)
        return _costs_nothing(self.both(written, pair, races)) and self.is_right(written, pair)

    def written(self, pair: FormChoice) -> OnnxModel:
        """The two ways behind an `If`."""
        forms = {way.form for way in (pair.way, pair.long) if way is not None}
        assumed = self.problem.with_lengths_for(Form.ORT_GQA if Form.ORT_GQA in forms else Form.ATTENTION)
        model, attention = bare_attention(assumed, mask_shape=_timed_mask(assumed))
        set_opset(model, pair.opset)
        return OnnxModel(ir=model, sites=(pair.lower(model, attention).site,))

    def both(self, written: OnnxModel, pair: FormChoice, races: Sequence[FormRace]) -> list[FormRace]:
        """The two ways behind an `If` against each of them alone, at every set of sizes."""
        alone = {way.arm: _alone(self.problem, way) for way in (pair.way, pair.long) if way is not None}
        return [self._race({_BOTH: written, **alone}, one.sizes) for one in races]

    def is_right(self, written: OnnxModel, pair: FormChoice) -> bool:
        """Whether the oracle agrees at the last length of the one branch and the first of the other."""
        spec = self.problem.spec
        past = {"past_seq_len": 1} if spec.has_past else {}
        options = LoadOptions(threads=self.budget.threads)
        with own_process(self.runtime, _TRIAL_SECONDS) as where, where.load(written, options) as session:
            for length in (pair.at, pair.at + 1):
                sizes = {"batch_size": 1, "q_seq_len": length, "kv_seq_len": length, **past}
                feeds = draw_feeds(written, sizes, spread=1.0, seed=self.budget.seed)
                inputs, outputs = AttentionInputs.from_feeds(feeds), session.run(feeds)
                if judge_attention(spec, inputs, outputs, precision=session.ran().precision).output:
                    return False
        return True

    def _sizes(self) -> tuple[Mapping[str, int], ...]:
        return self.budget.sizes or default_sizes(self.problem.spec)

    def _race(self, models: Mapping[str, OnnxModel], sizes: Mapping[str, int]) -> FormRace:
        self.on_step(f"timing {len(models)} ways at {size_words(sizes)}")
        # Half for the forms, half for what may follow: two of them in one file.
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


def _costs_nothing(both: Sequence[FormRace]) -> bool:
    """Whether the `If` is as fast as the better of its branches at every set of sizes, but for its own few nodes."""
    return bool(both) and all(_is_as_fast(one) for one in both)


def _is_as_fast(both: FormRace) -> bool:
    lap = both.laps[_BOTH]
    if lap.failure:
        return False
    alone = min(other.seconds for name, other in both.laps.items() if name != _BOTH and not other.failure)
    return lap.ratio_low <= TIE or lap.seconds - alone <= _BRANCH_SECONDS
