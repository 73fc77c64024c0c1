"""Reduce a failing model to the smallest case that still fails in the same way.

Finds the failure, cuts out the attention or the refused nodes, shrinks them within a time limit, and
returns the model, its inputs and the expected outputs. Does not write files.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.mask_rule import full_mask
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.faults.output_diagnosis import explain_output
from sdpa_onnx.core.records.cause_text import looks_like
from sdpa_onnx.errors import ModelError, SdpaOnnxError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.workflows.check.case_trial import CaseTrial, Sessions, TrialResult, run_case
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import GIVEN, Feeds, draw_feeds
from sdpa_onnx.workflows.check.lifted_model import with_lifted_sites
from sdpa_onnx.workflows.check.run_context import MODULE_RUNTIME
from sdpa_onnx.workflows.locate.bad_node import BadNode, BadNodeKind
from sdpa_onnx.workflows.locate.first_bad_node import first_bad_node
from sdpa_onnx.workflows.reduce.axes import ShrunkAxes, shrink_axes
from sdpa_onnx.workflows.reduce.expected import expected_outputs, static_model
from sdpa_onnx.workflows.reduce.find import FailureSearch, FoundFailure, case_of, cut_or_none, sizes_text
from sdpa_onnx.workflows.reduce.graph import record_values, run_failure, shrink_graph
from sdpa_onnx.workflows.reduce.node import BadPart, attention_trial, bad_failure, cut_found
from sdpa_onnx.workflows.reduce.node_survey import NodeSurvey, SurveyInputs, survey_nodes, unread_attentions
from sdpa_onnx.workflows.reduce.options import differences
from sdpa_onnx.workflows.reduce.reduced_case import NothingFails, ReducedCase
from sdpa_onnx.workflows.reduce.sequence import SequenceReduction, find_sequence
from sdpa_onnx.workflows.reduce.shrink import shrink_case
from sdpa_onnx.workflows.reduce.trials import ReductionTrials, failure_of
from sdpa_onnx.workflows.verify.inspect_file import inspect_model
from sdpa_onnx.workflows.verify.session_state import SessionJudge

__all__ = ["SECONDS", "NothingFails", "ReducedCase", "explained", "reduce_model"]

# Time limit of the search and the reduction.
SECONDS = 60.0
_NOTHING_SMALLER = "No smaller candidate fails in the same way."
_AXES_STAY = "No shorter axis fails in the same way. Sizes that the graph fixes, such as heads and widths, stay."
_NO_AXES = "The model has no named axes, so its sizes stay."


def reduce_model(
    model: OnnxModel,
    runtime: Runtime,
    check: CheckOptions,
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> ReducedCase | NothingFails:
    """Find the first failure and reduce it.

    Args:
        model: The model.
        runtime: The runtime on which it fails; wrap one that may crash in `GuardedRuntime`.
        check: Seed, threads, the user's arrays, sizes that the caller fixes.
        seconds: Time limit of the search and the reduction; at least one run is made.
        clock: Returns monotonic seconds.

    Raises:
        PlanError: If a size names no axis, the inputs do not fit into memory, or the user's arrays do not
            match the model.
        ModelError: If nothing in the model can be judged.
    """
    start = clock()
    deadline = start + seconds
    model = _with_read_sites(model)
    search = FailureSearch(model=model, runtime=runtime, check=check, clock=clock, deadline=deadline)
    found = search.first_failure()
    fault = find_sequence(search, found)
    if fault is not None:
        judge = SessionJudge(model=model, runtime=runtime, check=check)
        sequence = SequenceReduction(judge=judge, is_late=lambda: clock() >= deadline).reduced(fault)
        return replace(sequence, seconds=clock() - start)
    with Sessions(runtime) as sessions:
        if found is None:
            survey = _survey(search)
            if survey.bad is None or survey.bad_inputs is None:
                return _nothing_fails(search, survey)
            trials = ReductionTrials(sessions=sessions, failure=bad_failure(survey.bad), clock=clock, deadline=deadline)
            reduced = _reduce_bad_node(search, survey.bad, survey.bad_inputs, trials)
        else:
            trials = ReductionTrials(sessions=sessions, failure=found.failure, clock=clock)
            first = trials.first_failing(_attention_trials(model, found, check))  # before the deadline applies
            trials.deadline = deadline
            if first is None:
                reduced = _reduce_graph(model, found, trials, runtime, check)
            else:
                reduced = _reduce_attention(*first, found, trials, may_redraw=check.inputs is None)
        return replace(reduced, trials=trials.count, seconds=clock() - start)


def _with_read_sites(model: OnnxModel) -> OnnxModel:
    """The model with every attention that can be read, as `verify` judges it, if that replaces no node of it."""
    lifted = with_lifted_sites(model).model
    return model if _replaced_nodes(model, lifted) else lifted


def _replaced_nodes(model: OnnxModel, lifted: OnnxModel) -> Counter[str]:
    """The nodes of a model that reading its attentions replaced, by operator."""
    return Counter(model.node_counts()) - Counter(lifted.node_counts())


def _survey(search: FailureSearch) -> NodeSurvey:
    """Judge every node by itself: at all sizes if an attention could not be read, else on the first inputs that ran."""
    model, check = search.model, search.check
    if model.is_bare_attention or search.runtime.name == MODULE_RUNTIME:
        return NodeSurvey()
    input_sets = _survey_inputs(search)
    if model.sites and not unread_attentions(model):
        first = next(iter(input_sets), None) if search.feeds else None
        input_sets = iter([] if first is None else [replace(first, feeds=search.feeds)])
    return survey_nodes(model, search.runtime, input_sets, threads=check.threads, is_out_of_time=search.is_out_of_time)


def _survey_inputs(search: FailureSearch) -> Iterator[SurveyInputs]:
    check = search.check
    for sizes in search.size_sets():
        if check.inputs is not None:
            yield SurveyInputs(label="the given arrays", step=GIVEN, sizes=sizes, feeds=dict(check.inputs))
        else:
            feeds = draw_feeds(search.model, sizes, spread=1.0, seed=check.seed)
            yield SurveyInputs(label=sizes_text(sizes), step="spread 1", sizes=sizes, feeds=feeds)


def _nothing_fails(search: FailureSearch, survey: NodeSurvey) -> NothingFails:
    """The result if nothing fails; an error, as in `verify`, if nothing could be judged."""
    model = search.model
    if not model.sites and not survey.right:
        name = str(model.path or "The model")
        found = inspect_model(model, target=name)
        default = "only standard Attention nodes and files written by sdpa_onnx can be reduced"
        if with_lifted_sites(model).model.body_sites:
            default = "it is inside an If, Loop or Scan, where only verify judges it"
        reason = next((one.reason for one in found if one.reason), default)
        raise ModelError(
            f"{name} has {len(found)} attention(s) ({found[0].dialect}), but {reason}.",
            hint="No single node of the model could be judged either.",
        )
    replaced = Counter() if model.sites else _replaced_nodes(model, with_lifted_sites(model).model)
    return NothingFails(
        tried=tuple(search.tried),
        is_read=bool(model.sites),
        is_probed=model.is_bare_attention or all(cut_or_none(model, site) is not None for site in model.sites),
        is_given=search.check.inputs is not None,
        unread=unread_attentions(model),
        replaced=", ".join(f"{count} {operator}" for operator, count in replaced.items()),
        alone=tuple(survey.right),
        not_judged=survey.not_judged,
        is_finished=search.is_finished and survey.is_finished,
    )


def _reduce_bad_node(search: FailureSearch, bad: BadNode, inputs: SurveyInputs, trials: ReductionTrials) -> ReducedCase:
    """Reduce a bad node: an attention as a case with all its options, any other node by shorter axes."""
    model, runtime, check = search.model, search.runtime, search.check
    trial = attention_trial(model, runtime, inputs.feeds, bad, seed=check.seed, threads=check.threads)
    if trial is not None:
        result = run_case(trial, trials.sessions)
        failure = failure_of(result)
        if failure is not None:
            trials.failure = failure
            message = bad.sentence()
            found = FoundFailure(
                failure=failure, message=message, step=inputs.step, sizes=inputs.sizes, feeds=inputs.feeds
            )
            return _reduce_attention(trial, result, found, trials, may_redraw=check.inputs is None)
    seen = [bad]

    def still_fails(feeds: Feeds) -> bool:
        trials.check_time()
        trials.count += 1
        is_fused = bad.kind is BadNodeKind.FUSED
        try:
            now = first_bad_node(
                model, runtime, feeds, threads=check.threads, search_fusions=is_fused, findings_only=True
            )
        except SdpaOnnxError:
            return False
        same = (now.kind, now.node) == (bad.kind, bad.node) and trials.failure.is_same(bad_failure(now))
        if same:
            seen.append(now)
        return same

    seed = check.seed if check.inputs is None else None
    axes = shrink_axes(model, inputs.feeds, still_fails, seed=seed)
    part = cut_found(model, runtime, axes.feeds, seen[-1], threads=check.threads)
    at = "" if inputs.step == GIVEN else f" at {inputs.label}"
    return _part_case(model, part, runtime, axes, found_in=f"{inputs.step}{at}: {bad.sentence()}")


def _part_case(model: OnnxModel, part: BadPart, runtime: Runtime, axes: ShrunkAxes, *, found_in: str) -> ReducedCase:
    return ReducedCase(
        model=part.model,
        feeds=part.feeds,
        expected=part.expected,
        failure=part.failure,
        message=part.message,
        found_in=found_in,
        dropped=(*axes.dropped, *_fewer_nodes(model, part.model)),
        trials=0,
        seconds=0.0,
        is_finished=axes.is_finished,
        stopped=_AXES_STAY if axes.sizes else _NO_AXES,
        runtime=runtime.name,
        runtime_version=runtime.version(),
        precision=part.precision,
    )


def _fewer_nodes(model: OnnxModel, part: OnnxModel) -> tuple[str, ...]:
    old, new = (sum(one.node_counts().values()) for one in (model, part))
    return () if old == new else (f"nodes {old} -> {new}",)


def _attention_trials(model: OnnxModel, found: FoundFailure, check: CheckOptions) -> Iterator[CaseTrial]:
    """Each suspect attention rebuilt from its spec, so that every option can be removed; then cut out of the graph."""
    for site, feeds in _suspects(model, found):
        inputs = found.inputs if found.site is site else None
        if inputs is None:
            arrays = {name: feeds[value] for name, value in site.inputs.items() if value in feeds}
            if len(arrays) < len(site.inputs):
                continue
            inputs = AttentionInputs(**arrays, quantisers=None)
        case = case_of(site.spec, inputs)
        mode = None if site.scores is None else site.scores_mode
        trial = CaseTrial(case=case, inputs=inputs, seed=check.seed, threads=check.threads, qk_mode=mode)
        is_node = model.facts.form == "attention"
        opset = min(model.opset, 25)
        yield replace(trial, form="attention" if is_node else "decomposed", opset=opset)
        part = cut_or_none(model, site)
        if part is not None:
            yield replace(trial, graph=part)


def _suspects(model: OnnxModel, found: FoundFailure) -> Iterator[tuple[AttentionSite, Feeds]]:
    """The wrong attention; for a refused model, every attention with the values that would be its inputs."""
    if found.site is not None:
        yield found.site, {}
        return
    if not model.sites:
        return
    constants = model.constants()
    values = {**constants, **found.feeds}
    if not model.is_bare_attention:
        values = {**constants, **record_values(model, found.feeds)}
    for site in model.sites:
        yield site, values


def _reduce_attention(
    trial: CaseTrial, result: TrialResult, found: FoundFailure, trials: ReductionTrials, *, may_redraw: bool
) -> ReducedCase:
    best = shrink_case(trial, result, trials, may_redraw=may_redraw)
    model, last = static_model(best.trial, best.result, trials)
    expected = expected_outputs(best.trial, last)
    return ReducedCase(
        model=model,
        feeds=best.trial.feeds(last.inputs),
        expected=expected,
        failure=trials.failure,
        agreement=last.agreement,
        message=explained(best.trial, last),
        case=best.trial.case.case_id,
        trial=best.trial,
        found_in=_found_in(found),
        dropped=differences(trial, best.trial),
        trials=0,
        seconds=0.0,
        is_finished=best.is_finished,
        stopped=_NOTHING_SMALLER,
        runtime=trials.sessions.runtime.name,
        runtime_version=trials.sessions.runtime.version(),
        precision=last.precision,
    )


def _reduce_graph(
    model: OnnxModel, found: FoundFailure, trials: ReductionTrials, runtime: Runtime, check: CheckOptions
) -> ReducedCase:
    messages = [found.message]

    def still_fails(feeds: Feeds) -> bool:
        trials.check_time()
        trials.count += 1
        stop = run_failure(model, runtime, feeds, threads=check.threads)
        if stop is None or not trials.failure.is_same(stop[0]):
            return False
        messages.append(stop[1])
        return True

    axes = shrink_axes(model, found.feeds, still_fails, seed=check.seed if check.inputs is None else None)
    best = shrink_graph(model, axes.feeds, messages[-1], trials, runtime=runtime, threads=check.threads)
    return ReducedCase(
        model=best.model,
        feeds=best.feeds,
        failure=found.failure,
        message=best.message,
        found_in=_found_in(found),
        dropped=(*axes.dropped, *_fewer_nodes(model, best.model)),
        trials=0,
        seconds=0.0,
        is_finished=best.is_finished and axes.is_finished,
        stopped=_AXES_STAY if axes.sizes else _NO_AXES,
        runtime=runtime.name,
        runtime_version=runtime.version(),
    )


def _found_in(found: FoundFailure) -> str:
    at = ", ".join(f"{axis} {size}" for axis, size in found.sizes.items())
    return f"{found.step}{f' at {at}' if at else ''}: {found.message}"


def explained(trial: CaseTrial, result: TrialResult) -> str:
    """The evidence, with the known fault that explains it, if one does."""
    if not result.output:
        return result.message
    role = OutputRole(result.output)
    explanation = explain_output(
        role,
        trial.case.spec,
        full_mask(result.inputs, trial.mask_rule, layout=trial.case.spec.layout),
        result.outputs[role],
        precision=result.precision,
        qk_mode=trial.qk_mode or QkOutputMode.SCORES,
    )
    if explanation is None:
        return result.message
    return f"{result.message} {looks_like(explanation.says, explanation.dated)}"
