"""Verify a model: run it on a runtime, judge every attention inside and the outputs of the module.

Each attention is judged on its own tapped inputs, so that an error is reported where it is made; the outputs are those
of the model without taps. `bench` measures time, `dynamic_axes` tries other sizes.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.mask_rule import full_mask
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.attention.spec import AttentionSpec
from sdpa_onnx.core.attention.unusual_scale import unusual_scale
from sdpa_onnx.core.faults.output_diagnosis import explain_output
from sdpa_onnx.core.judge.agreement import Agreement, Expectation, expect
from sdpa_onnx.core.judge.attention_outputs import PermittedReading, judge_attention_outputs
from sdpa_onnx.core.judge.expectation import has_empty_rows
from sdpa_onnx.core.records.cause_text import looks_like
from sdpa_onnx.core.records.records import AgreementRecord, Subject, Verdict
from sdpa_onnx.errors import ExportError, ModelError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Runtime, Session, Unsupported, get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import Feeds, InputStep, ladder, logit_spread, probe_steps, resolve_shape
from sdpa_onnx.workflows.check.mask_inputs import with_hidden_row
from sdpa_onnx.workflows.check.module_output_check import Float64Module
from sdpa_onnx.workflows.check.run_context import RunContext, end_sizes, site_sizes, unsupported_record
from sdpa_onnx.workflows.verify.untapped import LoadedModel, TappedRun, UntappedCheck

__all__ = [
    "ExpectationCache",
    "check_model",
    "judge_outputs",
    "judge_sites",
    "tapped_run",
    "untapped_check",
    "verify",
]

Array = NDArray[np.generic]


@dataclass(slots=True)
class ExpectationCache:
    """The last few oracles, shared by runtimes with the same inputs, and the float64 copy of each module."""

    keep: int = 8
    made: dict[tuple[object, ...], Expectation] = field(default_factory=dict)
    truths: dict[int, tuple[object, Float64Module]] = field(default_factory=dict)

    def get(self, key: tuple[object, ...], make: Callable[[], Expectation]) -> Expectation:
        if key not in self.made:
            while len(self.made) >= self.keep:
                del self.made[next(iter(self.made))]
            self.made[key] = make()
        return self.made[key]

    def truth(self, model: OnnxModel) -> Float64Module | None:
        """The module of a graph with its float64 copy, made once; None for bare attention."""
        source = model.source
        if source is None or (model.is_bare_attention and model.bind is None):
            return None
        if id(source) not in self.truths:
            # The source is kept too, so that its id is not reused for another object.
            made = Float64Module.of(source, model.facts.dtype.value, model.bind)  # type: ignore[arg-type]  # a torch module
            self.truths[id(source)] = (source, made)
        return self.truths[id(source)][1]


def verify(
    model: OnnxModel, runtimes: Iterable[str], checks: Sequence[CheckOptions], *, target: str = ""
) -> Iterator[AgreementRecord]:
    """Judge a model on runtimes; one record per attention, check and spread.

    Raises:
        RuntimeNotFoundError, RuntimeUnavailableError: If a runtime is not there.
        SessionError: If a runtime fails on the model.
    """
    expectations = ExpectationCache()
    for name in runtimes:
        runtime = get_runtime(name)
        for check in checks:
            yield from check_model(model, runtime, check, target=target, expectations=expectations)


def check_model(
    model: OnnxModel,
    runtime: Runtime,
    check: CheckOptions,
    *,
    target: str,
    expectations: ExpectationCache,
    keep: Callable[[str, str, Feeds], None] | None = None,
    tapped: OnnxModel | None = None,
) -> list[AgreementRecord]:
    """Run one check on one runtime.

    Args:
        model: The model.
        runtime: Where to run it.
        check: Sizes and inputs.
        target: Name for the records.
        expectations: Oracles that other runtimes share.
        keep: Called with runtime, step and all arrays of every run.
        tapped: The tapped model, where several checks share it.

    Returns:
        Records of every attention and of the outputs of the module; one record with the
        reason if the runtime does not support the model.
    """
    support = runtime.supports(model)
    if isinstance(support, Unsupported):
        return [unsupported_record(model, runtime.name, check, target=target, reason=support.reason)]
    tapped = tapped or model.tapped()
    runs: list[TappedRun] = []
    found: list[AgreementRecord] = []
    with runtime.load(tapped, LoadOptions(threads=check.threads)) as session:
        for step, outputs, ran in _runs(model, session, check):
            if keep is not None:
                keep(runtime.name, step.word, {**step.feeds, **outputs})
            checked = RunContext(
                model=model, runtime=runtime.name, ran=ran, check=step.check, step=step.word, target=target
            )
            if tapped is model:
                found += judge_outputs(checked, step, outputs, expectations)
            else:
                runs.append(tapped_run(checked, step, outputs, expectations))
    return [*found, *untapped_check(model, runtime.load, expectations).records(runs)]


def _runs(model: OnnxModel, session: Session, check: CheckOptions) -> Iterator[tuple[InputStep, Feeds, RanReport]]:
    """Run every step; the report of what ran is read after the run: some runtimes choose their kernels only then."""
    steps = ladder(model, session, check)
    if check.probes and check.inputs is None and model.is_bare_attention:
        steps = itertools.chain(steps, probe_steps(model, check))
    first: InputStep | None = None
    for step in steps:
        first = first or step
        yield step, session.run(step.feeds), session.ran()
    if first is not None and _lacks_hidden_row(model, check):
        # The module may guard such a row, and its graph not.
        for number, feeds in enumerate(with_hidden_row(model, first.feeds), start=1):
            step = InputStep(word=f"hidden row {number}", spread=None, check=first.check, feeds=feeds)
            yield step, session.run(feeds), session.ran()


def _lacks_hidden_row(model: OnnxModel, check: CheckOptions) -> bool:
    """Whether the graph gives NaN in a row without a visible key, and no other step has such a row."""
    return (
        bool(model.facts.without_row_guard) and check.inputs is None and not (model.is_bare_attention and check.probes)
    )


def judge_outputs(
    checked: RunContext, step: InputStep, outputs: Feeds, expectations: ExpectationCache
) -> Iterator[AgreementRecord]:
    """Judge every attention and every output of one run of a model.

    Args:
        checked: The model, where it ran and how.
        step: Its inputs.
        outputs: Its outputs, tapped values included, by name.
        expectations: Oracles that other runtimes share.
    """
    yield from _judge_inside(checked, step, outputs, expectations)
    yield from _judge_own(checked, step, outputs, expectations)


def tapped_run(checked: RunContext, step: InputStep, outputs: Feeds, expectations: ExpectationCache) -> TappedRun:
    """One run of a tapped model with the judgements of its attentions; for the arguments see `judge_outputs`."""
    inside = tuple(_judge_inside(checked, step, outputs, expectations))
    own = {name: outputs[name] for name in checked.model.output_names}
    return TappedRun(checked=checked, step=step, outputs=own, records=inside)


def untapped_check(
    model: OnnxModel,
    load: Callable[[OnnxModel, LoadOptions], AbstractContextManager[LoadedModel]],
    expectations: ExpectationCache,
) -> UntappedCheck:
    """Judge tapped runs together with runs without the taps.

    Args:
        model: The model, without taps.
        load: Loads a model where it runs, as `Runtime.load` does.
        expectations: Oracles that other runtimes share.
    """
    return UntappedCheck(
        model=model,
        load=load,
        judge_sites=lambda checked, step, outputs: list(_judge_inside(checked, step, outputs, expectations)),
        judge_own=lambda checked, step, outputs: list(_judge_own(checked, step, outputs, expectations)),
        has_module=expectations.truth(model) is not None,
    )


def _judge_inside(
    checked: RunContext, step: InputStep, outputs: Feeds, expectations: ExpectationCache
) -> Iterator[AgreementRecord]:
    """Judge every attention of one run of the tapped model."""
    arrays = {**checked.model.constants(), **step.feeds, **outputs}
    yield from judge_sites(checked, arrays, step.spread, expectations)


def _judge_own(
    checked: RunContext, step: InputStep, outputs: Feeds, expectations: ExpectationCache
) -> Iterator[AgreementRecord]:
    """Judge the outputs that the model itself has: their shapes, and their numbers if there is a module."""
    yield from _judge_shapes(checked, outputs)
    truth = expectations.truth(checked.model)
    if truth is not None:
        yield from _judge_end(truth, checked, step.feeds, outputs)


def _judge_shapes(checked: RunContext, outputs: Feeds) -> Iterator[AgreementRecord]:
    """Outputs whose shape is not the one that the graph declares at these sizes: an axis that does not change."""
    if checked.check.inputs is not None:
        return
    for value in checked.model.ir.graph.outputs:
        name = value.name or ""
        try:
            declared = resolve_shape(value, checked.check.sizes)
        except ModelError:
            continue  # the graph does not declare it
        if outputs[name].shape != declared:
            found = f"Output '{name}' has shape {outputs[name].shape}, the graph declares {declared} at these sizes."
            wrong = Agreement(verdict=Verdict.WRONG, diagnosis=found)
            yield _output_record(checked, name, wrong)


def _output_record(checked: RunContext, name: str, agreement: Agreement) -> AgreementRecord:
    return checked.record(agreement, spread=None, subject=Subject.OUTPUT, site=name, sizes=end_sizes(checked.check))


def judge_sites(
    checked: RunContext, arrays: Feeds, spread: float | None, expectations: ExpectationCache
) -> Iterator[AgreementRecord]:
    """Judge each attention on its own tapped inputs.

    Args:
        checked: The model, where it ran and how.
        arrays: Constants, inputs and outputs of the run by name, tapped values included.
        spread: Standard deviation of the logits that was requested, or None.
        expectations: Oracles that other runtimes share.
    """
    for site in checked.model.sites:
        inputs, outputs = site.arrays_in(arrays), site.outputs_in(arrays)
        shared = checked.model.is_bare_attention and checked.check.inputs is None
        measured = spread if shared and spread is not None else logit_spread(site, inputs)
        for role, agreement in _judge_site(checked, site, inputs, arrays, expectations).items():
            yield checked.record(
                agreement,
                spread=measured,
                site=site.name if role is OutputRole.OUTPUT else _name_of(checked.model, site, role),
                sizes=site_sizes(site, inputs),
                is_empty=role is OutputRole.OUTPUT and not outputs[role].size,
                scale_note=unusual_scale(site.spec),
            )


def _name_of(model: OnnxModel, site: AttentionSite, role: OutputRole) -> str:
    """An optional output in records: what it is, and of which attention where there are several."""
    return role.value if len(model.sites) == 1 else f"{site.name}: {role.value}"


def _judge_site(
    checked: RunContext,
    site: AttentionSite,
    inputs: AttentionInputs,
    arrays: Feeds,
    expectations: ExpectationCache,
) -> dict[OutputRole, Agreement]:
    """Judge every output of one attention, with the named fault that a wrong one looks like."""
    nan_rows = site.name in checked.model.facts.without_row_guard
    check, declared, outputs = checked.check, _declared(checked, inputs), site.outputs_in(arrays)
    precision = find_precision(declared)
    shared = checked.model.is_bare_attention and check.inputs is None
    key = (site.spec, inputs.query.dtype, tuple(sorted(check.sizes.items())), checked.step, check.seed, declared)

    def expectation_of(reading: PermittedReading) -> Expectation:
        is_nan = nan_rows and has_empty_rows(site.spec, reading.inputs)  # else forms share what is expected
        make = partial(expect, site.spec, reading.inputs, precision=precision, seed=check.seed, nan_rows=is_nan)
        return expectations.get((*key, site.mask_rule, reading.name, is_nan), make) if shared else make()

    judged = judge_attention_outputs(
        site.spec,
        inputs,
        outputs,
        precision=precision,
        qk_modes=site.scores_modes,
        mask_rule=site.mask_rule,
        cache=site.cache_rule_in(arrays),
        expectation_of=expectation_of,
    )
    full = full_mask(inputs, site.mask_rule, layout=site.spec.layout)
    found = {
        role: _explained(agreement, site, role, full, outputs[role], declared) for role, agreement in judged.items()
    }
    end = found[OutputRole.OUTPUT]
    unseen = (*end.warnings, *_never_reached(site.spec, inputs))
    return {**found, OutputRole.OUTPUT: replace(end, warnings=unseen)}


def _declared(checked: RunContext, inputs: AttentionInputs) -> str:
    """The arithmetic that the runtime declares; in a model of several element types, that of this attention."""
    own = inputs.query.dtype.name
    return checked.ran.precision if own == checked.model.facts.attention_dtype.value else own


def _explained(
    agreement: Agreement, site: AttentionSite, role: OutputRole, inputs: AttentionInputs, actual: Array, precision: str
) -> Agreement:
    """Add the named fault that a disagreement looks like, if one fits."""
    if agreement.verdict.is_right or not agreement.total:
        return agreement
    found = explain_output(role, site.spec, inputs, actual, precision=precision, qk_mode=site.scores_mode)
    if found is None:
        return agreement
    return replace(agreement, diagnosis=f"{agreement.diagnosis} {looks_like(found.says, found.dated)}")


def _never_reached(spec: AttentionSpec, inputs: AttentionInputs) -> Iterator[str]:
    """Windows that hide nothing at these sizes, so that a runtime may ignore them unseen."""
    axis = 2 if inputs.query.ndim == 4 else 1
    queries, keys = inputs.query.shape[axis], inputs.key.shape[axis]
    if inputs.nonpad_kv_seqlen is not None or not queries or not keys:
        return
    past = 0 if inputs.past_key is None else inputs.past_key.shape[2]
    reach = {"left": (spec.left_window, past + queries - 1), "right": (spec.right_window, keys - 1)}
    for side, (window, farthest) in reach.items():
        if window >= farthest:
            yield f"The {side} window of {window} hides nothing at these sizes: not checked, give longer ones."


def _judge_end(truth: Float64Module, checked: RunContext, feeds: Feeds, outputs: Feeds) -> Iterator[AgreementRecord]:
    """Judge every output of the module; where the module itself raises, nothing is judged, and that is a failure."""
    names = checked.model.output_names
    try:
        agreements = truth.judge(
            feeds,
            [outputs[name] for name in names],
            nan_rows=bool(checked.model.facts.without_row_guard),
        )
    except ExportError as error:
        for name in names:
            reason = f"The output could not be compared: {error}"
            yield checked.not_compared(reason, output=name)
        return
    for name, agreement in zip(names, agreements, strict=False):
        yield _output_record(checked, name, agreement)
