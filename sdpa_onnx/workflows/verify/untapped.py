"""Compare a model with its tapped form: to return an inner value, a runtime may run other kernels.

Then the tapped values are not what the model's own kernels read and write, and cannot accuse them. The outputs of the
model without taps are judged instead, against float64.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

from sdpa_onnx.core.judge.agreement import Agreement
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Subject, Verdict
from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, RanReport
from sdpa_onnx.workflows.check.feeds import Feeds, InputStep
from sdpa_onnx.workflows.check.run_context import RunContext, end_sizes
from sdpa_onnx.workflows.isolate.isolated_runtime import ProcessDiedError
from sdpa_onnx.workflows.verify.differing_outputs import DifferingOutputs, NoVerdict

__all__ = ["LoadedModel", "TappedRun", "UntappedCheck", "changed_kernels"]

# Kinds of kernels that are named when their number changes.
_MOST_KERNELS = 4
_TAPPED, _PLAIN = "the tapped run", "the run without optimisation"


class LoadedModel(Protocol):
    """What is asked of a loaded model; see `runtimes.base.Session`."""

    def run(self, inputs: Feeds, /) -> Feeds: ...
    def ran(self) -> RanReport: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TappedRun:
    """One run of the tapped model.

    Args:
        checked: What ran, and how.
        step: Its inputs.
        outputs: All outputs, tapped values included.
        records: The judgements of its attentions.
    """

    checked: RunContext
    step: InputStep
    outputs: Feeds
    records: tuple[AgreementRecord, ...]


@dataclass(slots=True, kw_only=True)
class UntappedCheck:
    """Runs of a model without taps, beside its tapped runs on the same inputs.

    Args:
        model: The model, without taps.
        load: Loads a model where it runs, as `Runtime.load` does.
        judge_sites: Judges the attentions of a run of the tapped model.
        judge_own: Judges the model's own outputs by its module.
        has_module: Whether `judge_own` can judge numbers; if not, an output that the taps change is judged here.
    """

    model: OnnxModel
    load: Callable[[OnnxModel, LoadOptions], AbstractContextManager[LoadedModel]]
    judge_sites: Callable[[RunContext, InputStep, Feeds], Sequence[AgreementRecord]]
    judge_own: Callable[[RunContext, InputStep, Feeds], Sequence[AgreementRecord]]
    has_module: bool
    _differing: DifferingOutputs | None = field(default=None, init=False)

    def records(self, runs: Sequence[TappedRun]) -> Iterator[AgreementRecord]:
        """The judgements of all runs: of the attentions by the tapped runs, of the outputs by runs without taps.

        An attention that is wrong by its tapped values keeps that verdict if the same kernels run without the taps,
        or if it is also wrong where the runtime does not optimise. Otherwise it is not judged by itself, and the
        outputs without taps are compared with those of the run without optimisation.

        Args:
            runs: Every run of the tapped model.

        Raises:
            SessionError: If the model fails without its taps.
        """
        if not runs:
            return
        options = LoadOptions(threads=runs[0].checked.check.threads)
        with self.load(self.model, options) as session:
            outputs = [session.run(run.step.feeds) for run in runs]
            ran = session.ran()
        for run, own in zip(runs, outputs, strict=True):
            checked = replace(run.checked, ran=ran)
            changed = changed_kernels(ran, run.checked.ran)
            plain = self._plain(run) if changed and any(map(_accuses, run.records)) else None
            innocent = frozenset() if plain is None else plain.right_sites
            for record in run.records:
                is_innocent = _accuses(record) and record.site in innocent
                yield _not_judged(run.checked, record, changed) if is_innocent else record
            yield from self.judge_own(checked, run.step, own)
            if plain is not None and innocent:
                yield from self._compared(checked, run, plain.outputs, own, name=_PLAIN)
            elif not self.has_module:
                for record in self._compared(checked, run, run.outputs, own, name=_TAPPED):
                    if record.outcome is not Outcome.OK:
                        yield record

    def _plain(self, run: TappedRun) -> "_PlainRun | None":
        """The tapped model where the runtime runs each node as the file states it; None if it does not run so."""
        options = LoadOptions(threads=run.checked.check.threads, optimise=False)
        try:
            with self.load(self.model.tapped(), options) as session:
                outputs = session.run(run.step.feeds)
                checked = replace(run.checked, ran=session.ran())
        except ProcessDiedError:
            raise
        except SessionError:
            return None
        records = self.judge_sites(checked, run.step, outputs)
        wrong = {record.site for record in records if _accuses(record)}
        return _PlainRun(outputs=outputs, right_sites=frozenset({record.site for record in records} - wrong))

    def _compared(
        self, checked: RunContext, run: TappedRun, reference: Feeds, own: Feeds, *, name: str
    ) -> Iterator[AgreementRecord]:
        """A record for each output without taps: equal to the reference to the bit, or judged against float64."""
        self._differing = self._differing or DifferingOutputs(model=self.model)
        judged = self._differing.judge(run.step.feeds, reference, own, name=name)
        sizes = end_sizes(checked.check)
        for output in self.model.output_names:
            found = judged.get(output, Agreement(verdict=Verdict.OK, diagnosis=f"The bits are those of {name}."))
            if isinstance(found, NoVerdict):
                reason = f"Output '{output}' without taps differs from {name}, and is not judged: {found.reason}."
                yield checked.skipped(reason, spread=None, subject=Subject.OUTPUT, site=output, sizes=sizes)
                continue
            if not found.verdict.is_right:
                says = f"Output '{output}' is wrong without the taps, that of {name} is right. {found.diagnosis}"
                found = replace(found, diagnosis=says)
            yield checked.record(found, spread=None, subject=Subject.OUTPUT, site=output, sizes=sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlainRun:
    """A run without graph optimisation: its outputs, and the attentions that are right in it."""

    outputs: Feeds
    right_sites: frozenset[str]


def changed_kernels(without: RanReport, tapped: RanReport) -> str:
    """What runs otherwise because of the taps, such as "DequantizeLinear 10 -> 18"; "" if nothing does.

    Args:
        without: What runs without the taps.
        tapped: What runs with them.
    """
    if without.precision != tapped.precision:
        return f"precision {without.precision} -> {tapped.precision}"
    before, after = without.node_counts, tapped.node_counts
    names = [name for name in sorted({*before, *after}) if before.get(name, 0) != after.get(name, 0)]
    first = ", ".join(f"{name} {before.get(name, 0)} -> {after.get(name, 0)}" for name in names[:_MOST_KERNELS])
    return f"{first} and {len(names) - _MOST_KERNELS} more" if len(names) > _MOST_KERNELS else first


def _accuses(record: AgreementRecord) -> bool:
    return record.subject is Subject.ATTENTION and record.outcome is Outcome.DISAGREES


def _not_judged(checked: RunContext, record: AgreementRecord, changed: str) -> AgreementRecord:
    reason = (
        f"Not judged by itself: the tap changes what runs ({changed}). Without optimisation the attention is right; "
        "the outputs of the model without taps are compared with that run."
    )
    return checked.skipped(reason, spread=record.spread, subject=record.subject, site=record.site, sizes=record.sizes)
