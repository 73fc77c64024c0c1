"""Verify a file: on all runtimes, at a size that was not traced, and its dynamic axes."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from sdpa_onnx.core.attention.axis_limits import AxisLimit, fit_sizes
from sdpa_onnx.core.records.records import (
    AgreementRecord,
    ExportRecord,
    Outcome,
    Record,
    Subject,
    Verdict,
    outcome_of_error,
)
from sdpa_onnx.errors import ModelError, PlanError, RuntimeUnavailableError, SdpaOnnxError, SessionError
from sdpa_onnx.graph.lift.found import GIVE_IT
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.opened_bodies import OpenedBody, opened_bodies
from sdpa_onnx.runtimes.base import Runtime, Unsupported, get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.file_feeds import named_axes
from sdpa_onnx.workflows.check.given_heads import with_given_heads
from sdpa_onnx.workflows.check.integer_draws import unknown_integers
from sdpa_onnx.workflows.check.legal_sizes import nearest_legal
from sdpa_onnx.workflows.check.lifted_model import LiftedModel, require_attention
from sdpa_onnx.workflows.check.requested_sizes import require_axes
from sdpa_onnx.workflows.check.run_context import MODULE_RUNTIME, failed_record
from sdpa_onnx.workflows.isolate.fenced_runtime import FencedRuntime
from sdpa_onnx.workflows.isolate.isolated_runtime import ProcessDiedError, own_process
from sdpa_onnx.workflows.locate.record import Arrays, StepRecorder, locate
from sdpa_onnx.workflows.verify.axis_links import axis_links, complete_sizes, follow, require_allowed
from sdpa_onnx.workflows.verify.dynamic_axes import prove_axes
from sdpa_onnx.workflows.verify.found_limits import module_refusal
from sdpa_onnx.workflows.verify.inspect_file import scale_doubts
from sdpa_onnx.workflows.verify.plant_faults import prove_sites
from sdpa_onnx.workflows.verify.plant_inputs import records_of_inputs
from sdpa_onnx.workflows.verify.session_state import check_state, state_behind
from sdpa_onnx.workflows.verify.site_probes import probe_sites, sites_alone
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model
from sdpa_onnx.workflows.verify.verify_parts import VerifyPart, VerifyParts, planned_parts

__all__ = ["VerifyExtras", "contradiction_records", "verify_file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyExtras:
    """What `verify_file` does beyond the judgement.

    Args:
        keep: Called with runtime, step and all arrays of every run at the chosen sizes.
        prove: Also plant every fault, to show that the check would notice.
        patience_seconds: Run each runtime in a process of its own, and stop it after
            this long without an answer; None = in this process, without a limit.
        axes: Also prove the axes.
        on_step: Called before each part of the work on a runtime: "ort-cpu: step 2 of 4, outputs".
        on_share: Called with the share of the work that is done, where it is known: one runtime, no planted faults.
    """

    keep: Callable[[str, str, Arrays], None] | None = None
    prove: bool = False
    patience_seconds: float | None = None
    axes: bool = True
    on_step: Callable[[str], None] = lambda _: None
    on_share: Callable[[float], None] = lambda _: None

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Runtime]:
        """A runtime by name; the runtime of a module has no file to send, and runs in this process."""
        patience_seconds = None if name == MODULE_RUNTIME else self.patience_seconds
        with own_process(get_runtime(name), patience_seconds) as runtime:
            yield runtime


def verify_file(
    model: OnnxModel,
    runtimes: Sequence[str],
    check: CheckOptions,
    *,
    target: str,
    extras: VerifyExtras | None = None,
) -> Iterator[Record]:
    """Judge a model on every runtime, then prove its axes where nothing was fixed by the caller.

    Attentions of a file that we did not export are judged where they were read, see `lifted_model`. If a model
    of several nodes disagrees, its first bad node is searched for.

    Args:
        model: The model.
        runtimes: Names of available runtimes.
        target: Name for the records.
        check: Sizes that the caller fixes (the others are chosen), threads, seed, and
            given inputs, with which the axes are not tried.
        extras: What else to do; None = nothing.

    Raises:
        PlanError: If a size names no axis, or sizes that must be equal are not.
        ModelError: If nothing in the model can be judged.
        SessionError: If every runtime refuses given inputs, or none runs them: the arrays may be wrong.
    """
    extras = extras or VerifyExtras()
    lifted, check = with_given_heads(model, check)
    model = lifted.model
    yield from contradiction_records(lifted, runtimes[0], target)
    bodies = [*opened_bodies(model)]
    has_own = bool(model.sites) or model.source is not None
    if bodies or len(runtimes) > 1 or extras.prove:
        extras = replace(extras, on_share=lambda _: None)
    if not has_own and not bodies:
        require_attention(lifted, target)
        yield from _without_attention(lifted, runtimes, target, check, extras)
        return
    if has_own:
        yield from _verify_one(model, runtimes, check, target, extras)
    else:
        yield from (one for name in runtimes if (one := _fixed_axes(model, name, target, check, extras)) is not None)
    yield from _verify_bodies(bodies, model, runtimes, check, target, extras)


def _verify_bodies(
    bodies: Sequence[OpenedBody],
    model: OnnxModel,
    runtimes: Sequence[str],
    check: CheckOptions,
    target: str,
    extras: VerifyExtras,
) -> Iterator[Record]:
    """Judge the attentions of each body in the body opened as a model; one that cannot be run is a record that fails.

    Raises:
        PlanError: If a size names no axis of the model and of no body.
    """
    parts = [named_axes(one.model) for one in bodies]
    axes = {*model.facts.axes}.union(*(part.facts.axes for part in parts))
    unknown = sorted(check.sizes.keys() - axes)
    if unknown and parts:
        require_axes(model.facts, [{unknown[0]: 1}])
    for body, part in zip(bodies, parts, strict=True):
        own = {axis: size for axis, size in check.sizes.items() if axis in part.facts.axes}
        named = replace(extras, on_step=partial(_named, body.place, extras.on_step))
        try:
            if check.inputs is not None:
                missing = [name for name in part.input_names if name not in check.inputs]
                if missing:
                    raise ModelError(f"The given arrays have none for its own inputs {', '.join(missing)}.")
            found = _verify_one(part, runtimes, replace(check, sizes=own), target, named)
            yield from (_with_assumption(record, body) for record in found)
        except ModelError as error:
            reason = f"The attention in {body.place} could not be judged: {error}"
            yield from (failed_record(part, name, check, target=target, reason=reason) for name in runtimes)


def _with_assumption(record: Record, body: OpenedBody) -> Record:
    if not isinstance(record, AgreementRecord):
        return record
    says = f"The attention in {body.place} is judged {body.body.assumption}."
    return msgspec.structs.replace(record, warnings=(*record.warnings, says))


def _verify_one(
    model: OnnxModel, runtimes: Sequence[str], check: CheckOptions, target: str, extras: VerifyExtras
) -> Iterator[Record]:
    """Judge the attentions of a graph that outputs can tap, on every runtime."""
    sizes = _sizes(model, check, runtimes, extras)
    expectations = ExpectationCache()
    refusals: list[SdpaOnnxError] = []
    for number, name in enumerate(runtimes, start=1):
        where = name if len(runtimes) == 1 else f"{name}, {number} of {len(runtimes)} runtimes"
        named = replace(extras, on_step=partial(_named, where, extras.on_step))
        whole = replace(check, sizes=sizes, probes=True)
        try:
            with extras.opened(name) as runtime:
                yield from _on_runtime(model, runtime, whole, check.sizes, target, expectations, named)
        except (SessionError, RuntimeUnavailableError) as error:
            if len(runtimes) == 1 and isinstance(error, RuntimeUnavailableError):
                raise
            if check.inputs is not None and not isinstance(error, ProcessDiedError):
                # The arrays of the caller may be wrong; they do not make a process die.
                refusals.append(error)
                if len(refusals) == len(runtimes):
                    raise refusals[0] from error
            # The refusal of one runtime is a result; the others still run.
            yield failed_record(model, name, whole, target=target, reason=str(error), outcome=outcome_of_error(error))


def _on_runtime(
    model: OnnxModel,
    runtime: Runtime,
    check: CheckOptions,
    given: Mapping[str, int],
    target: str,
    expectations: ExpectationCache,
    extras: VerifyExtras,
) -> Iterator[Record]:
    """Judge a model on one runtime, at sizes inside the limits that its axes have; the record of the axes is last."""
    axes: ExportRecord | None = None
    has_axes = extras.axes and check.inputs is None and not isinstance(runtime.supports(model), Unsupported)
    parts = VerifyParts(
        of=planned_parts(is_drawn=check.inputs is None, proves=extras.prove, has_axes=has_axes),
        on_step=extras.on_step,
        on_share=extras.on_share,
    )
    reach = parts.reach
    if has_axes:
        reach(VerifyPart.AXES)
        # First, for its limits: at other sizes nothing can be judged.
        axes = _axes_record(model, runtime, target, check.seed, on_size=parts.reach_size)
        check = replace(check, sizes=_allowed(axes.limits, check.sizes, given))
    yield from _judged(model, runtime, check, target, expectations, extras, reach)
    if check.inputs is None:
        reach(VerifyPart.STATE)
        yield from check_state(model, runtime, check, target=target, fixed=given)
    if axes is not None:
        yield axes


def _named(where: str, on_step: Callable[[str], None], step: str) -> None:
    on_step(f"{where}: {step}")


def _allowed(limits: Sequence[AxisLimit], sizes: Mapping[str, int], given: Mapping[str, int]) -> dict[str, int]:
    """Sizes inside the limits that were found; those that the caller gave must be.

    Raises:
        PlanError: If they are not.
    """
    found = fit_sizes(limits, sizes, keep=given)
    require_allowed(limits, found, given)
    return found


def contradiction_records(lifted: LiftedModel, runtime: str, target: str) -> Iterator[AgreementRecord]:
    """A record that fails for each contradiction between the metadata of a file and its nodes."""
    for site, text in lifted.contradictions.items():
        yield AgreementRecord(
            target=target,
            case=target,
            form=lifted.model.facts.form.value,
            opset=lifted.model.opset,
            runtime=runtime,
            outcome=Outcome.DISAGREES,
            reason=text,
            subject=Subject.READING,
            site=site or "metadata",
            dtype=lifted.model.facts.dtype.value,
            verdict=Verdict.WRONG,
            diagnosis=text,
        )


def _judged(
    model: OnnxModel,
    runtime: Runtime,
    check: CheckOptions,
    target: str,
    expectations: ExpectationCache,
    extras: VerifyExtras,
    reach: Callable[[VerifyPart], None],
) -> Iterator[Record]:
    """Run the ladder and the probes; find the run or the node behind a disagreement; plant faults if requested."""
    reach(VerifyPart.OUTPUTS)
    recorder = StepRecorder(also=extras.keep)
    found = check_model(model, runtime, check, target=target, expectations=expectations, keep=recorder)
    yield from found
    bad = next((record for record in found if record.outcome is Outcome.DISAGREES), None)
    if bad is not None:
        steps = [recorder.steps[word] for word in [*recorder.steps][: [*recorder.steps].index(bad.inputs) + 1]]
        state = state_behind(model, runtime, check, steps, target=target)
        if state is not None:
            yield from state.as_records()
            return
        located = locate(model, runtime, bad, recorder.steps[bad.inputs], threads=check.threads)
        if located is not None:
            yield located
    if check.inputs is not None and not extras.prove:
        return
    shapes = {name: array.shape for name, array in next(iter(recorder.steps.values()), {}).items()}
    reach(VerifyPart.ALONE)
    alone = list(sites_alone(model, runtime, check, shapes))
    if check.inputs is None:
        yield from probe_sites(alone, runtime, target=target, expectations=expectations)
    if extras.prove:
        reach(VerifyPart.FAULTS)
        yield from prove_sites(model, runtime, check, alone, target=target)
        yield from records_of_inputs(model, runtime, check, target=target)


def _without_attention(
    lifted: LiftedModel, runtimes: Sequence[str], target: str, check: CheckOptions, extras: VerifyExtras
) -> Iterator[ExportRecord]:
    """Run a file in which nothing can be judged: it may still have a fixed axis."""
    found = lifted.found
    tried = (_fixed_axes(lifted.model, name, target, check, extras) for name in runtimes)
    is_asked = any(GIVE_IT in one.reason for one in found)  # drawn integers would be no legal number of heads
    fixed = [] if is_asked else [record for record in tried if record is not None]
    if not fixed:
        raise ModelError(
            f"{target} has {len(found)} attention(s) ({found[0].dialect}), but {found[0].reason.rstrip('.')}.",
            hint="Compare its outputs with its module (--against), or export a module that calls "
            "scaled_dot_product_attention.",
        )
    yield from fixed


def _sizes(model: OnnxModel, check: CheckOptions, runtimes: Sequence[str], extras: VerifyExtras) -> dict[str, int]:
    """The sizes that the caller fixes and a choice for the other axes; linked axes are equally long."""
    require_axes(model.facts, [check.sizes])
    able = [name for name in runtimes if not isinstance(FencedRuntime(get_runtime(name)).supports(model), Unsupported)]
    links: dict[str, str] = {}
    for name in able if check.inputs is None else ():
        # A runtime that dies here is reported when it is judged; another one may show what belongs together.
        with contextlib.suppress(ProcessDiedError, RuntimeUnavailableError), extras.opened(name) as runtime:
            links = axis_links(model, runtime, traced=model.facts.traced, seed=check.seed)
            break
    sizes = complete_sizes(model.facts, links, check.sizes)
    if check.inputs is None:
        heads = {axis: size for axis, size in sizes.items() if axis not in links}
        complete = partial(follow, links, given=check.sizes)
        legal = nearest_legal(model, heads, keep=check.sizes, complete=complete)
        sizes = sizes if legal is None else complete(legal)
    why = module_refusal(model, sizes, check.seed) if check.sizes else ""
    if why:
        at = ", ".join(f"{axis} {size}" for axis, size in sizes.items())
        raise PlanError(f"The module itself does not run at {at}: {why}.", hint="Choose other sizes with --size.")
    return sizes


def _fixed_axes(
    model: OnnxModel, name: str, target: str, check: CheckOptions, extras: VerifyExtras
) -> ExportRecord | None:
    """The fixed axes of a file in which nothing can be judged; None if it runs at all sizes."""
    if check.inputs is not None or isinstance(FencedRuntime(get_runtime(name)).supports(model), Unsupported):
        return None
    with extras.opened(name) as runtime:
        record = _axes_record(model, runtime, target, check.seed)
    return record if record.outcome is not Outcome.OK else None


def _axes_record(
    model: OnnxModel, runtime: Runtime, target: str, seed: int, on_size: Callable[[int, int], None] | None = None
) -> ExportRecord:
    proof = prove_axes(model, runtime, target=target, traced=model.facts.traced, seed=seed, on_size=on_size)
    return ExportRecord(
        target=target,
        case=target,
        form=model.facts.form.value,
        opset=model.opset,
        runtime=runtime.name,
        outcome=proof.outcome,
        reason=proof.reason,
        warnings=(
            *(proof.refusals if model.source is not None else scale_doubts(model)),
            *proof.doubts,
            *unknown_integers(model.ir),
        ),
        dynamic_axes=proof.dynamic_axes,
        limits=proof.limits,
        baked=proof.baked,
        settings=proof.settings,
        sizes_tried=proof.sizes_tried,
        longest=proof.longest,
        untested=proof.untested,
        nodes=model.node_counts(),
        model=target,
    )
