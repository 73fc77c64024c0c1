"""Prove that a check would notice: plant every fault that an attention can have, and judge it by the same inputs.

The fault replaces a real output: run, substitute, judge. Whether the runtime itself is
right is decided by `verify`.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.faults.fault_kind import Fault, Outputs
from sdpa_onnx.core.faults.planted_faults import faults_for, right_output
from sdpa_onnx.core.records.records import Outcome, PlantedRecord
from sdpa_onnx.core.records.verdicts import Verdict
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, Session, Unsupported
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import Feeds, InputStep, ladder, probe_steps
from sdpa_onnx.workflows.check.run_context import RunContext
from sdpa_onnx.workflows.verify.site_probes import SiteAlone
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, judge_outputs

__all__ = ["PlantedFault", "plant_in", "prove", "prove_sites"]

Array = NDArray[np.generic]

_NOTICED = (Verdict.WRONG, Verdict.SUSPICIOUS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedFault:
    """The result of one planted fault.

    Args:
        fault: The fault.
        caught_by: The first inputs that showed it, such as "probe uniform-codes"; None if none did.
        shows: Whether it changes an output on any of the inputs; if not, it is no fault
            there (one sample cannot be confused with another, and no input holds a NaN).
    """

    fault: Fault
    caught_by: str | None
    shows: bool


@dataclass(slots=True)
class _Trial:
    """One fault while the inputs are tried."""

    fault: Fault
    caught_by: str | None = None
    shows: bool = False

    @property
    def result(self) -> PlantedFault:
        return PlantedFault(fault=self.fault, caught_by=self.caught_by, shows=self.shows)


def prove_sites(
    model: OnnxModel, runtime: Runtime, check: CheckOptions, alone: Iterable[SiteAlone], *, target: str
) -> Iterator[PlantedRecord]:
    """Plant every fault that each attention can have, in the outputs of the same inputs that `check` judges.

    In an attention that cannot be cut out, it is planted in its output inside the model.

    Args:
        model: The model.
        runtime: Where it runs.
        check: Sizes, spreads or given inputs (these of a bare attention only).
        alone: The attentions inside a larger model, see `sites_alone`.
        target: Name for the records.

    Raises:
        SessionError: If the runtime fails on the model.
    """
    if isinstance(runtime.supports(model), Unsupported):
        return
    alone = list(alone)
    if model.is_bare_attention:
        alone = [SiteAlone(name=model.sites[0].name, model=model, check=replace(check, probes=True))]
    for site in alone:
        for planted in prove(site.model, runtime, site.check):
            yield _record(site.model, runtime.name, site.name, planted, target)
    apart = {one.name for one in alone}
    for name, planted in _prove_inside(model, runtime, check, [one for one in model.sites if one.name not in apart]):
        yield _record(model, runtime.name, name, planted, target)


def prove(
    model: OnnxModel, runtime: Runtime, check: CheckOptions, *, faults: Sequence[Fault] | None = None
) -> list[PlantedFault]:
    """Plant faults in the outputs of a runtime and find which inputs of a check catch them.

    Where the output of the runtime is wrong, the fault is planted in that of the oracle.

    Args:
        model: One attention and nothing around it.
        runtime: Where it runs.
        check: Sizes and inputs; with `probes`, the structural probes come first.
        faults: What to plant; None = every fault that this attention can have.

    Raises:
        ModelError: If the model is more than one attention.
        SessionError: If the runtime fails on it.
    """
    if not model.is_bare_attention:
        raise ModelError(
            "Faults can be planted only in a model that is one attention and nothing around it.",
            hint="Export the attention alone.",
        )
    trials = [_Trial(fault=fault) for fault in (_faults_of(model, model.sites[0]) if faults is None else faults)]
    with runtime.load(model, LoadOptions(threads=check.threads)) as session:
        for step in _steps(model, session, check):
            open_ = [trial for trial in trials if trial.caught_by is None]
            if not open_:
                break
            outputs = session.run(step.feeds)
            checked = RunContext(
                model=model, runtime=runtime.name, ran=session.ran(), check=step.check, step=step.word, target=""
            )
            _try_step(open_, checked, step, outputs, check.seed)
    return [trial.result for trial in trials]


def _prove_inside(
    model: OnnxModel, runtime: Runtime, check: CheckOptions, sites: Sequence[AttentionSite]
) -> Iterator[tuple[str, PlantedFault]]:
    """Plant faults in the tapped outputs of some attentions of a model: the name of each, and what was found."""
    if not sites:
        return
    trials = {site.name: [_Trial(fault=fault) for fault in _faults_of(model, site)] for site in sites}
    with runtime.load(model.tapped(), LoadOptions(threads=check.threads)) as session:
        for step in ladder(model, session, check):
            outputs = session.run(step.feeds)
            tapped = replace(step, feeds={**model.constants(), **step.feeds, **outputs})
            for site in sites:
                open_ = [trial for trial in trials[site.name] if trial.caught_by is None]
                checked = RunContext(
                    model=replace(model, sites=(site,)),
                    runtime=runtime.name,
                    ran=session.ran(),
                    check=step.check,
                    step=step.word,
                    target="",
                )
                if open_:
                    _try_step(open_, checked, tapped, outputs, check.seed)
    yield from ((name, trial.result) for name, tried in trials.items() for trial in tried)


def _faults_of(model: OnnxModel, site: AttentionSite) -> list[Fault]:
    """Every fault that one attention of a model can have."""
    faults = faults_for(site.spec, dtype=model.facts.dtype, outputs=set(site.outputs))
    if site.name in model.facts.without_row_guard:  # no output is wrong in a row for which the graph defines NaN
        return [fault for fault in faults if not fault.name.startswith("masked-row")]
    return list(faults)


def _steps(model: OnnxModel, session: Session, check: CheckOptions) -> Iterator[InputStep]:
    """The inputs of the check, the small ones first."""
    probes = probe_steps(model, check) if check.probes and check.inputs is None else iter(())
    return itertools.chain(probes, ladder(model, session, check))


def _try_step(trials: Sequence[_Trial], checked: RunContext, step: InputStep, outputs: Feeds, seed: int) -> None:
    """Plant each fault on one set of inputs, in the oracle's output where the runtime's own is not right."""
    expectations = ExpectationCache()
    site = checked.model.sites[0]
    inputs = site.arrays_in(step.feeds)
    exact = {**outputs, site.output: right_output(site.spec, inputs)}
    if _noticed(checked, step, outputs, expectations):
        outputs = exact
        if _noticed(checked, step, outputs, expectations):
            return  # the cache that it returns is wrong
    for trial in trials:
        planted = plant_in(site, trial.fault, step.feeds, outputs, seed=seed)
        if _same(planted, outputs) or _same(planted, exact):
            continue
        trial.shows = True
        if _noticed(checked, step, planted, expectations):
            trial.caught_by = step.word


def _same(some: Feeds, other: Feeds) -> bool:
    """Whether all outputs are equal to the last bit."""
    return all(array.tobytes() == other[name].tobytes() for name, array in some.items())


def _noticed(checked: RunContext, step: InputStep, outputs: Feeds, expectations: ExpectationCache) -> bool:
    return any(record.verdict in _NOTICED for record in judge_outputs(checked, step, outputs, expectations))


def _record(model: OnnxModel, runtime: str, site: str, planted: PlantedFault, target: str) -> PlantedRecord:
    if planted.caught_by is not None:
        outcome, reason = Outcome.OK, ""
    elif planted.shows:
        outcome, reason = Outcome.FAILED, f"These inputs would not have shown that {planted.fault.says}."
    else:
        outcome, reason = Outcome.SKIPPED, "It changes no output on any of these inputs."
    return PlantedRecord(
        target=target,
        case=target,
        form=model.facts.form.value,
        opset=model.opset,
        runtime=runtime,
        outcome=outcome,
        reason=reason,
        site=site,
        dtype=model.facts.dtype.value,
        fault=planted.fault.name,
        says=planted.fault.says,
        caught_by=planted.caught_by or "",
    )


def plant_in(
    site: AttentionSite, fault: Fault, feeds: Mapping[str, Array], outputs: Mapping[str, Array], *, seed: int
) -> dict[str, Array]:
    """Exchange the outputs of a bare attention for those of a fault.

    Args:
        site: Which value is what.
        fault: The fault.
        feeds: Inputs by graph name.
        outputs: Right outputs by graph name; not changed.
        seed: Seed of the faults that draw.
    """
    inputs = site.arrays_in(feeds)
    right: Outputs = site.outputs_in(outputs)
    planted = fault.plant(site.spec, inputs, right, np.random.default_rng(seed))
    return {**outputs, **{name: planted[role] for role, name in site.outputs.items() if role in right}}
