"""Find the first failure of a model on a runtime: a wrong attention output, a refusal or a crash.

Runs the same inputs as `verify` (the ladder, the probes, the user's arrays) at several sizes, and keeps
the input arrays, because the smaller case is sliced out of them. Does not make the failure smaller.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.probes import probes_for
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype
from sdpa_onnx.core.records.records import Conformity, Outcome, Subject
from sdpa_onnx.errors import ModelError, PlanError, SessionError
from sdpa_onnx.graph.cut import cut_site
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, Session, Unsupported
from sdpa_onnx.runtimes.feeds import checked_feeds
from sdpa_onnx.workflows.check.case_trial import (
    CaseTrial,
    Sessions,
    judge_attention,
    not_taken,
    run_case,
)
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import GIVEN, Feeds, InputStep, draw_feeds, ladder, probe_steps
from sdpa_onnx.workflows.isolate.isolated_runtime import ProcessDiedError
from sdpa_onnx.workflows.reduce.memory import require_memory
from sdpa_onnx.workflows.reduce.trials import KeptFailure, failure_of, message_shape
from sdpa_onnx.workflows.verify.axis_links import size_sets
from sdpa_onnx.workflows.verify.verify_model import ExpectationCache, check_model

__all__ = ["FailureSearch", "FoundFailure", "case_of", "sizes_text"]

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFailure:
    """The first failure of a model.

    Args:
        failure: The kind of failure, which must stay the same while the case shrinks.
        message: The evidence or the runtime's error, one sentence.
        step: Name of the inputs: "spread 1", "probe poison", "given".
        sizes: Sizes of the model's axes.
        feeds: Inputs of the model.
        site: The wrong attention, or None if the whole model is refused.
        inputs: Inputs of that attention.
    """

    failure: KeptFailure
    message: str
    step: str
    sizes: Mapping[str, int]
    feeds: Feeds
    site: AttentionSite | None = None
    inputs: AttentionInputs | None = None


@dataclass(slots=True, kw_only=True)
class FailureSearch:
    """Searches for the first failure of one model on one runtime.

    Args:
        model: The model.
        runtime: The runtime that runs it.
        check: Seed, threads, the user's arrays, and the sizes that the caller fixes.
        tried: The sets of sizes tried so far, as text.
        feeds: Inputs of the first run that succeeded; empty if none did.
        history: Inputs of the runs that were right, in the order in which one session made them.
        clock: Returns monotonic seconds.
        deadline: Time of that clock after which no new run starts, except the first.
        is_finished: False if the deadline passed before everything was tried.
    """

    model: OnnxModel
    runtime: Runtime
    check: CheckOptions
    tried: list[str] = field(default_factory=list)
    feeds: Feeds = field(default_factory=dict)
    history: list[Feeds] = field(default_factory=list)
    clock: Callable[[], float] = time.monotonic
    deadline: float = math.inf
    is_finished: bool = True

    def first_failure(self) -> FoundFailure | None:
        """Find the first failure, or None.

        Raises:
            PlanError: If a size names no axis, the inputs do not fit into memory, or the user's arrays do not
                match the model.
        """
        self._require_axes()
        self._require_arrays()
        require_memory(self.model, self.size_sets() if self.check.sizes else ())
        model = self.model.tapped()
        support = self.runtime.supports(model)
        if isinstance(support, Unsupported):
            message = not_taken(self.runtime.name, support.reason)
            return self._refusal(KeptFailure(kind=Conformity.REFUSED, sign=message_shape(message)), message)
        with ExitStack() as stack:
            try:
                session = stack.enter_context(self.runtime.load(model, LoadOptions(threads=self.check.threads)))
            except SessionError as error:
                return self._refusal(_session_failure(error), str(error))
            return self._search_sizes(session)

    def _search_sizes(self, session: Session) -> FoundFailure | None:
        for sizes in self.size_sets():
            if self.tried and self.is_out_of_time():
                return None
            check = replace(self.check, sizes=sizes)
            self._note_tried(sizes)
            found = self._search_inputs(session, check)
            if found is not None:
                return found
        return None

    def _search_inputs(self, session: Session, check: CheckOptions) -> FoundFailure | None:
        feeds: Feeds = {}
        step = GIVEN
        try:
            for one in self._steps(session, check):
                if self.feeds and self.is_out_of_time():
                    return None
                step, feeds = one.word, one.feeds
                outputs = session.run(feeds)
                self.feeds = self.feeds or feeds
                arrays = {**self.model.constants(), **feeds, **outputs}
                found = self._wrong_attention(one, arrays, session.ran().precision)
                if found is not None:
                    return found
                self.history.append(feeds)
        except SessionError as error:
            feeds = feeds or draw_feeds(self.model, check.sizes, spread=1.0, seed=check.seed)
            return FoundFailure(
                failure=_session_failure(error), message=str(error), step=step, sizes=check.sizes, feeds=feeds
            )
        if check.inputs is None and not self.model.is_bare_attention and feeds:
            return self._run_probes(session, check, feeds)
        return None

    def _steps(self, session: Session, check: CheckOptions) -> Iterator[InputStep]:
        yield from ladder(self.model, session, check)
        if check.inputs is None:
            yield from probe_steps(self.model, check)

    def _wrong_attention(self, step: InputStep, arrays: Feeds, precision: str) -> FoundFailure | None:
        """The first wrong attention, else the first suspicious one."""
        found: FoundFailure | None = None
        for site in self.model.sites:
            inputs = site.arrays_in(arrays)
            result = judge_attention(
                site.spec,
                inputs,
                site.outputs_in(arrays),
                precision=precision,
                seed=self.check.seed,
                qk_modes=site.scores_modes,
                mask_rule=site.mask_rule,
                cache=site.cache_rule_in(arrays),
                nan_rows=site.name in self.model.facts.without_row_guard,
            )
            failure = failure_of(result)
            if failure is None or (found is not None and failure.kind is found.failure.kind):
                continue
            found = FoundFailure(
                failure=failure,
                message=result.message,
                step=step.word,
                sizes=step.check.sizes,
                feeds=step.feeds,
                site=site,
                inputs=inputs,
            )
            if failure.kind is Conformity.WRONG:
                break
        return found if found is not None and self._is_confirmed(step) else None

    def _is_confirmed(self, step: InputStep) -> bool:
        """Whether the taps that accuse an attention inside a larger model change nothing that runs."""
        if self.model.is_bare_attention:
            return True
        check = replace(step.check, inputs=step.feeds, probes=False)
        records = check_model(self.model, self.runtime, check, target="", expectations=ExpectationCache())
        return any(one.subject is Subject.ATTENTION and one.outcome is Outcome.DISAGREES for one in records)

    def _run_probes(self, session: Session, check: CheckOptions, feeds: Feeds) -> FoundFailure | None:
        """Run the probes on every attention that can be cut out of a larger model."""
        arrays = {**self.model.constants(), **feeds, **session.run(feeds)}
        with Sessions(self.runtime) as sessions:
            for site in self.model.sites:
                part = cut_or_none(self.model, site)
                if part is None:
                    continue
                inputs = site.arrays_in(arrays)
                for trial in _probe_trials(part, site.spec, inputs, check):
                    if self.is_out_of_time():
                        return None
                    result = run_case(trial, sessions)
                    failure = failure_of(result)
                    if failure is not None and failure.kind is not Conformity.REFUSED:
                        step = f"probe {trial.source}"
                        return FoundFailure(
                            failure=failure,
                            message=result.message,
                            step=step,
                            sizes=check.sizes,
                            feeds=feeds,
                            site=site,
                            inputs=result.inputs,
                        )
        return None

    def is_out_of_time(self) -> bool:
        """Whether the deadline has passed. Then `is_finished` becomes False: something was not tried."""
        if self.clock() < self.deadline:
            return False
        self.is_finished = False
        return True

    def _require_arrays(self) -> None:
        """Reject arrays of another type or rank: that is an error of the caller, not of the runtime."""
        if self.check.inputs is None:
            return
        try:
            checked_feeds(self.runtime.name, self.model, self.check.inputs)
        except SessionError as error:
            raise PlanError(str(error)) from error

    def _require_axes(self) -> None:
        axes = self.model.facts.axes if self.check.sizes else ()
        unknown = [axis for axis in self.check.sizes if axis not in axes]
        if unknown:
            raise PlanError(f"The model has no axis '{unknown[0]}'.", hint=f"It has {', '.join(axes) or 'none'}.")

    def size_sets(self) -> list[dict[str, int]]:
        """The sets of sizes to try, each with the sizes that the caller fixes; one set for the user's arrays."""
        if self.check.inputs is not None:
            return [dict(self.check.sizes)]
        axes = self.model.facts.axes
        sets = size_sets(axes, batches=self.model.facts.batch_axes)
        ordered = [sets[2], *sets] if axes else [{}]  # the set that `verify` uses comes first
        chosen = [{**sizes, **self.check.sizes} for sizes in ordered]
        return [sizes for place, sizes in enumerate(chosen) if sizes not in chosen[:place]]

    def _note_tried(self, sizes: Mapping[str, int]) -> None:
        if self.check.inputs is not None:
            self.tried.append("the given arrays")
            return
        self.tried.append(sizes_text(sizes))

    def _refusal(self, failure: KeptFailure, message: str) -> FoundFailure:
        sizes = self.size_sets()[0]
        feeds = self.check.inputs or draw_feeds(self.model, sizes, spread=1.0, seed=self.check.seed)
        step = "spread 1" if self.check.inputs is None else GIVEN
        self._note_tried(sizes)
        return FoundFailure(failure=failure, message=message, step=step, sizes=sizes, feeds=dict(feeds))


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Format sizes as text, such as "batch_size 2, q_seq_len 13"."""
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items()) or "its fixed sizes"


def case_of(spec: AttentionSpec, inputs: AttentionInputs) -> AttentionCase:
    """The case to which the arrays belong: the spec with their sizes and element type."""
    axis = 2 if inputs.query.ndim == 4 else 1
    return AttentionCase(
        spec=spec,
        batch_size=inputs.query.shape[0],
        q_seq_len=inputs.query.shape[axis],
        kv_seq_len=inputs.key.shape[axis],
        past_seq_len=0 if inputs.past_key is None else inputs.past_key.shape[2],
        dtype=Dtype(inputs.query.dtype.name),
    )


def cut_or_none(model: OnnxModel, site: AttentionSite) -> OnnxModel | None:
    """Cut one attention out as a model of its own; None if that is not possible."""
    if model.is_bare_attention:
        return model
    try:
        return cut_site(model, site)
    except ModelError:
        return None


def _probe_trials(
    part: OnnxModel, spec: AttentionSpec, inputs: AttentionInputs, check: CheckOptions
) -> Iterator[CaseTrial]:
    case = case_of(spec, inputs)
    drawn_as = case if inputs.attn_mask is None else replace(case, mask_shape=inputs.attn_mask.shape)
    for probe in probes_for(spec):
        drawn = probe.draw(drawn_as, check.seed)
        yield CaseTrial(case=case, source=probe.name, inputs=drawn, seed=check.seed, graph=part, threads=check.threads)


def _session_failure(error: SessionError) -> KeptFailure:
    if isinstance(error, ProcessDiedError):
        return KeptFailure(kind=Conformity.CRASHED)
    return KeptFailure(kind=Conformity.REFUSED, sign=message_shape(str(error)))
