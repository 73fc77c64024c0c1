"""Verify that a converted graph computes the same function as its source; any doubt is a record that disagrees.

Three judgements. The lift: the source in float64 against the oracle at each attention. The lowering: each attention
of the result, tapped on the runtime, and cut out under probes. The outputs: each one against the source in float64,
see `output_check`. Converts and saves nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import LADDER
from sdpa_onnx.core.judge.agreement import Agreement
from sdpa_onnx.core.judge.node_rule import format_of
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Subject, outcome_of_error
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.errors import ModelError, SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.opened_bodies import opened_bodies
from sdpa_onnx.runtimes.base import Runtime, Unsupported
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import Feeds
from sdpa_onnx.workflows.check.file_feeds import named_axes
from sdpa_onnx.workflows.check.long_sizes import known_lengths, longest_of, untested
from sdpa_onnx.workflows.check.output_check import (
    OutputRun,
    has_number,
    judge_output,
    relative_yardstick,
    source_agreement,
)
from sdpa_onnx.workflows.check.run_context import RunContext, end_sizes, failed_record, unsupported_record
from sdpa_onnx.workflows.convert.empty_rows import hint_of_empty_rows
from sdpa_onnx.workflows.convert.entered_bodies import EnteredBodies
from sdpa_onnx.workflows.convert.paired_runs import HIDDEN_ROWS, PairedModels, PairRun, RunEffort
from sdpa_onnx.workflows.convert.reading_check import judge_reading, judge_source
from sdpa_onnx.workflows.verify.site_probes import sites_alone
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model, judge_sites

__all__ = ["ConversionProof", "prove_conversion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionProof:
    """The judgements of a source and its conversion that ran on the same inputs.

    Args:
        records: Judgements of the lift, of the result's attentions and of its outputs; each decides.
        source: The source's own errors: the limit for the outputs, and where the source is wrong.
        sizes_tried: Number of size sets at which both ran.
        notes: Remarks for the user, one sentence each.
        sizes: These size sets, of the axes that may change.
        longest: The longest length among them; 0 where no length may change.
        untested: Windows and compared numbers of both that no length tried goes beyond.
        hint: What to do where only a mask that hides every key of a query makes it differ; "" otherwise.
    """

    records: tuple[AgreementRecord, ...]
    source: tuple[AgreementRecord, ...] = ()
    sizes_tried: int = 0
    notes: tuple[str, ...] = ()
    sizes: tuple[Mapping[str, int], ...] = ()
    longest: int = 0
    untested: tuple[int, ...] = ()
    hint: str = ""

    @property
    def is_right(self) -> bool:
        """Whether there are judgements and none fails."""
        return bool(self.records) and all(record.outcome is Outcome.OK for record in self.records)


def prove_conversion(
    source: OnnxModel,
    result: OnnxModel,
    runtime: Runtime,
    *,
    target: str,
    seed: int = 0,
    threads: int = 1,
    effort: RunEffort | None = None,
    on_size: Callable[[int, int], None] | None = None,
) -> ConversionProof:
    """Run source and result on the same inputs and judge every attention and every output.

    Args:
        source: Every lifted attention can be tapped, see `lifted_model.lift`.
        result: The same attentions in another form.
        runtime: Runtime on which the result must be right.
        target: Name for the records.
        seed: Seed of the inputs.
        threads: Threads inside one operator.
        effort: Number of runs; None = the default.
        on_size: Called with (done, of) after each size set.

    Raises:
        ModelError: If the source runs on no runtime, at none of the tried sizes, or no inputs can be drawn for it.
    """
    check = CheckOptions(sizes={}, seed=seed, threads=threads)
    source, result = named_axes(source), named_axes(result)
    support = runtime.supports(result)
    if isinstance(support, Unsupported):
        return ConversionProof(
            records=(unsupported_record(result, runtime.name, check, target=target, reason=support.reason),)
        )
    effort = effort or RunEffort()
    change = _interface_change(source, result, any_shape=effort.inputs is not None)
    if change:
        return ConversionProof(records=(failed_record(result, runtime.name, check, target=target, reason=change),))
    judgements = _Judgements(
        source=source,
        result=result,
        runtime=runtime,
        target=target,
        runs_alone=effort.alone and effort.inputs is None,
        rows_may_be_empty=effort.rows_may_be_empty,
    )
    pairs = PairedModels(source=source, result=result, runtime=runtime, seed=seed, threads=threads, effort=effort)
    for run in pairs.runs(on_size):
        judgements.add(run)
    proof = judgements.finished()
    if not effort.alone:
        return proof
    for one in _proved_bodies(source, result, runtime, target=target, seed=seed, threads=threads, effort=effort):
        proof = replace(
            proof,
            records=(*proof.records, *one.records),
            source=(*proof.source, *one.source),
            notes=tuple(dict.fromkeys((*proof.notes, *one.notes))),
            hint=proof.hint or one.hint,
        )
    return proof


def _proved_bodies(
    source: OnnxModel,
    result: OnnxModel,
    runtime: Runtime,
    *,
    target: str,
    seed: int,
    threads: int,
    effort: RunEffort,
) -> Iterator[ConversionProof]:
    """The proof of each body with attentions, opened in source and result, on drawn inputs."""
    after = {one.body.prefix: one.model for one in opened_bodies(result)}
    for before in opened_bodies(source):
        try:
            if before.body.prefix not in after:
                raise ModelError("The result has no such body.")
            yield prove_conversion(
                before.model,
                after[before.body.prefix],
                runtime,
                target=target,
                seed=seed,
                threads=threads,
                effort=replace(effort, requested=(), inputs=None),
            )
        except ModelError as error:
            check = CheckOptions(sizes={}, seed=seed, threads=threads)
            reason = f"The attention in {before.place} could not be judged: {error}"
            record = failed_record(named_axes(before.model), runtime.name, check, target=target, reason=reason)
            yield ConversionProof(records=(record,))


def _interface_change(source: OnnxModel, result: OnnxModel, *, any_shape: bool) -> str:
    """How inputs or outputs of the result differ from those of the source; "" if they do not.

    Given arrays have shapes of their own: names of axes then do not matter.
    """
    for what in ("inputs", "outputs"):
        before, after = (
            [(value.name, value.dtype) for value in getattr(model.ir.graph, what)] for model in (source, result)
        )
        if before != after:
            return f"The {what} changed: from {_listed(before)} to {_listed(after)}."
    if any_shape:
        return ""
    was, now = ([str(value.shape) for value in model.ir.graph.inputs] for model in (source, result))
    return "" if was == now else f"The shapes of the inputs changed: from {was} to {now}."


def _listed(values: "list[tuple[str | None, object]]") -> str:
    return ", ".join(f"'{name}' {kind}" for name, kind in values)


def _has_nan(array: NDArray[np.generic]) -> bool:
    return format_of(array.dtype) is not None and bool(np.isnan(array.astype(np.float64)).any())


@dataclass(slots=True, kw_only=True)
class _Judgements:
    """The judgements so far; private and short-lived."""

    source: OnnxModel
    result: OnnxModel
    runtime: Runtime
    target: str
    runs_alone: bool
    rows_may_be_empty: bool
    expectations: ExpectationCache = field(default_factory=ExpectationCache)
    records: list[AgreementRecord] = field(default_factory=list)
    own: list[AgreementRecord] = field(default_factory=list)
    outputs: dict[str, list[tuple[OutputRun, PairRun]]] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    sizes: list[Mapping[str, int]] = field(default_factory=list)
    around: Feeds = field(default_factory=dict)
    with_hidden: Feeds = field(default_factory=dict)
    entered: EnteredBodies = field(init=False)

    def __post_init__(self) -> None:
        self.entered = EnteredBodies(model=self.source)

    def add(self, run: PairRun) -> None:
        """Judge one run; its outputs are judged after all runs."""
        if run.step.check.sizes not in self.sizes:
            self.sizes.append(run.step.check.sizes)
        tapped = run.result if isinstance(run.result, SessionError) else run.tapped
        if isinstance(tapped, SessionError):
            reason = f"The result fails where the source runs: {tapped}"
            self.records.append(
                failed_record(
                    self.result,
                    self.runtime.name,
                    run.step.check,
                    target=self.target,
                    reason=reason,
                    outcome=outcome_of_error(tapped),
                )
            )
            return
        self.around = tapped
        if run.step.word == HIDDEN_ROWS and not run.wide.reason:
            self.with_hidden = run.source
        self.entered.note(run.source)
        own = list(judge_source(self._checked(run, self.source), run))
        readings = judge_reading(self._checked(run, self.source), run, own)
        self.records += [reading for reading in readings if reading is not None]
        wrong = [
            record
            for record, reading in zip(own, readings, strict=True)
            if record.outcome is not Outcome.OK and (reading is None or reading.outcome is Outcome.OK)
        ]
        if wrong and not self.source.is_bare_attention and run.at_source == self.runtime.name:
            rewritten = self._rewritten(self.source, run)
            wrong = [record for record in wrong if record.site not in rewritten]
        self.own += wrong
        self.records += self._result_sites(run, tapped)
        self._keep_outputs(run, is_source_right=not wrong)
        self._note(run)

    def _result_sites(self, run: PairRun, tapped: Feeds) -> list[AgreementRecord]:
        """The judgements of the result's attentions; where the taps change what runs, the outputs alone decide."""
        found = list(judge_sites(self._checked(run, self.result), tapped, run.step.spread, self.expectations))
        if self.result.is_bare_attention or all(record.outcome is Outcome.OK for record in found):
            return found
        rewritten = self._rewritten(self.result, run)
        self.notes |= {f"{site}: {reason}": None for site, reason in rewritten.items()}
        return [record for record in found if record.site not in rewritten]

    def _rewritten(self, model: OnnxModel, run: PairRun) -> dict[str, str]:
        """Attentions that tapped values accuse in error, because the taps change what runs; why, by name."""
        check = replace(run.step.check, inputs=run.step.feeds, probes=False)
        try:
            found = check_model(model, self.runtime, check, target=self.target, expectations=self.expectations)
        except SessionError:  # it ran with the taps: the accusation stays
            return {}
        return {record.site: record.reason for record in found if record.outcome is Outcome.SKIPPED}

    def _checked(self, run: PairRun, model: OnnxModel) -> RunContext:
        is_source = model is self.source
        ran = run.source_ran if is_source or run.result_ran is None else run.result_ran
        name = run.at_source if is_source else self.runtime.name
        return RunContext(
            model=model, runtime=name, ran=ran, check=run.step.check, step=run.step.word, target=self.target
        )

    def _keep_outputs(self, run: PairRun, *, is_source_right: bool) -> None:
        if isinstance(run.result, SessionError):
            return
        # The index of the largest among NaN is undefined, in either graph.
        has_nan = run.step.word == HIDDEN_ROWS and any(_has_nan(array) for array in run.source.values())
        for name in self.source.output_names:
            if has_nan and format_of(run.source[name].dtype) is None:
                continue
            output = OutputRun(
                truth=run.wide.values.get(name, run.source[name]),
                source=run.source[name],
                actual=run.result[name],
                is_source_right=is_source_right,
            )
            self.outputs.setdefault(name, []).append((output, run))

    def _note(self, run: PairRun) -> None:
        if run.at_source != self.runtime.name:
            self.notes[f"{self.runtime.name} does not run the source, which ran on {run.at_source}."] = None
        if run.wide.by_oracle:
            self.notes[
                f"The operators of {', '.join(run.wide.by_oracle)} have no float64 reference: how they were read is "
                f"judged by their outputs on {run.at_source} in their own type."
            ] = None
        if run.wide.stood_in:
            self.notes[
                f"{len(run.wide.stood_in)} nodes have no float64 reference, the first '{run.wide.stood_in[0]}': they "
                "ran in their own type, so the reference for the outputs is less accurate."
            ] = None
        if run.wide.reason:
            self.notes[
                f"The source has no float64 reference at {run.wide.reason}. Its outputs in its own type are used."
            ] = None

    def finished(self) -> ConversionProof:
        """All judgements; the outputs are judged with the source's own error over all runs."""
        for name, found in self.outputs.items():
            self.records += self._judged_output(name, found)
        if self.runs_alone:
            self.records += self._alone()
        longest = longest_of(self.sizes, self.source.facts.batch_axes)
        return ConversionProof(
            records=tuple(self.records),
            source=tuple(self.own),
            sizes_tried=len(self.sizes),
            notes=(*self.notes, *self.entered.remarks()),
            sizes=tuple(self.sizes),
            longest=longest,
            untested=untested(known_lengths([self.source, self.result]), longest),
            hint=hint_of_empty_rows(
                self.source.sites, self.with_hidden, self.records, rows_may_be_empty=self.rows_may_be_empty
            ),
        )

    def _judged_output(self, name: str, found: list[tuple[OutputRun, PairRun]]) -> Iterator[AgreementRecord]:
        outputs = [output for output, _ in found]
        if not any(output.is_source_right for output in outputs):
            where = found[0][1].at_source
            self.notes[
                f"The source is wrong on {where} in every run, by the oracle: its output '{name}' is no reference, and "
                "the result is judged by its attentions alone."
            ] = None
            return
        if not any(has_number(output) for output in outputs):
            nothing = Agreement(verdict=Verdict.SUSPICIOUS, diagnosis="The source returns no finite number in any run.")
            yield self._output_record(found[-1][1], self.result, name, nothing)
            return
        # Beside a mask of the lowest numbers the source's own error may be large, which is no limit for usual inputs.
        hidden = [output for output, run in found if run.step.word == HIDDEN_ROWS]
        usual = [output for output, run in found if run.step.word != HIDDEN_ROWS]
        yardsticks = {True: relative_yardstick(hidden), False: relative_yardstick(usual)}
        for output, run in found:
            yardstick = yardsticks[run.step.word == HIDDEN_ROWS]
            self.own.append(self._output_record(run, self.source, name, source_agreement(output)))
            yield self._output_record(run, self.result, name, judge_output(output, yardstick))

    def _output_record(self, run: PairRun, model: OnnxModel, name: str, agreement: Agreement) -> AgreementRecord:
        checked = self._checked(run, model)
        return checked.record(
            agreement, spread=None, subject=Subject.OUTPUT, site=name, sizes=end_sizes(run.step.check)
        )

    def _alone(self) -> Iterator[AgreementRecord]:
        """Every kind of attention of the result by itself, on every spread and probe."""
        if not self.sizes or any(record.outcome is not Outcome.OK for record in self.records):
            return  # the verdict is decided already
        check = CheckOptions(sizes=self.sizes[-1], spreads=(), probes=True)
        if self.result.is_bare_attention:
            yield from self._probed(self.result, check)
            return
        specs: list[object] = []
        try:
            shapes = {name: array.shape for name, array in self.around.items()}
            for alone in sites_alone(self.result, self.runtime, check, shapes):
                if alone.model.sites[0].spec not in specs:
                    specs.append(alone.model.sites[0].spec)
                    yield from self._probed(alone.model, replace(alone.check, spreads=LADDER))
        except ModelError:
            return  # inputs that must be legal indices: the paired runs have judged them

    def _probed(self, model: OnnxModel, check: CheckOptions) -> Iterator[AgreementRecord]:
        try:
            yield from check_model(model, self.runtime, check, target=self.target, expectations=self.expectations)
        except SessionError as error:
            yield failed_record(
                model, self.runtime.name, check, target=self.target, reason=str(error), outcome=outcome_of_error(error)
            )
