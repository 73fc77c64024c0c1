"""Find what fails in a model on a runtime: the first wrong attention, refusal or crash.

Asks what `verify` asks (the ladder, the probes, given arrays) at several sizes, and keeps
the arrays that entered and left, since a smaller case is cut out of them.
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
from sdpa_onnx.core.records.records import Conformity
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
    output_names,
    qk_mode_of,
    run_case,
)
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import GIVEN, Feeds, InputStep, draw_feeds, ladder, probe_steps
from sdpa_onnx.workflows.isolate.isolated_runtime import ProcessDiedError
from sdpa_onnx.workflows.reduce.memory import require_memory
from sdpa_onnx.workflows.reduce.trials import KeptFailure, failure_of, message_shape
from sdpa_onnx.workflows.verify.axis_links import size_sets

__all__ = ["FailureSearch", "FoundFailure", "case_of", "words_of"]

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFailure:
    """The first failure of a model.

    Args:
        failure: What must stay while it shrinks.
        message: The evidence or the error, one sentence.
        step: The inputs: "spread 1", "probe poison", "given".
        sizes: Sizes of the model's axes.
        feeds: What the model got.
        site: The wrong attention, or None if the whole model is refused.
        inputs: What that attention got.
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
    """Asks one model on one runtime.

    Args:
        model: The model.
        runtime: Where it runs.
        check: Seed, threads, given arrays, and the sizes that the caller fixes.
        tried: What was asked so far, in words.
        feeds: What the model got first, if it ran.
        clock: Monotonic seconds.
        deadline: Of that clock; after it nothing new is begun, except the very first run.
        is_finished: False if the time was up before everything was asked.
    """

    model: OnnxModel
    runtime: Runtime
    check: CheckOptions
    tried: list[str] = field(default_factory=list)
    feeds: Feeds = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    deadline: float = math.inf
    is_finished: bool = True

    def first(self) -> FoundFailure | None:
        """The first failure, or None.

        Raises:
            PlanError: If a size names no axis, the inputs cannot be held, or given arrays are not the model's.
        """
        self._require_axes()
        self._require_arrays()
        require_memory(self.model, self.size_sets() if self.check.sizes else ())
        model = self.model.tapped()
        support = self.runtime.supports(model)
        if isinstance(support, Unsupported):
            message = not_taken(self.runtime.name, support.reason)
            return self._refused(KeptFailure(kind=Conformity.REFUSED, sign=message_shape(message)), message)
        with ExitStack() as stack:
            try:
                session = stack.enter_context(self.runtime.load(model, LoadOptions(threads=self.check.threads)))
            except SessionError as error:
                return self._refused(_stopped(error), str(error))
            return self._first_of(session)

    def _first_of(self, session: Session) -> FoundFailure | None:
        for sizes in self.size_sets():
            if self.tried and self.is_over():
                return None
            check = replace(self.check, sizes=sizes)
            self._note(sizes)
            found = self._first_at(session, check)
            if found is not None:
                return found
        return None

    def _first_at(self, session: Session, check: CheckOptions) -> FoundFailure | None:
        feeds: Feeds = {}
        step = GIVEN
        try:
            for one in self._steps(session, check):
                if self.feeds and self.is_over():
                    return None
                step, feeds = one.word, one.feeds
                outputs = session.run(feeds)
                self.feeds = self.feeds or feeds
                found = self._wrong(one, {**self.model.constants(), **feeds, **outputs}, session.ran().precision)
                if found is not None:
                    return found
        except SessionError as error:
            feeds = feeds or draw_feeds(self.model, check.sizes, spread=1.0, seed=check.seed)
            return FoundFailure(failure=_stopped(error), message=str(error), step=step, sizes=check.sizes, feeds=feeds)
        if check.inputs is None and not self.model.is_bare_attention and feeds:
            return self._probed(session, check, feeds)
        return None

    def _steps(self, session: Session, check: CheckOptions) -> Iterator[InputStep]:
        yield from ladder(self.model, session, check)
        if check.inputs is None:
            yield from probe_steps(self.model, check)

    def _wrong(self, step: InputStep, arrays: Feeds, precision: str) -> FoundFailure | None:
        for site in self.model.sites:
            inputs = AttentionInputs(**{name: arrays[value] for name, value in site.inputs.items()})
            names = output_names(self.model, site)
            outputs = {name: arrays[own] for name, own in names.items() if own in arrays}
            mode = qk_mode_of(self.model, site)
            seed = self.check.seed
            result = judge_attention(site.spec, inputs, outputs, precision=precision, seed=seed, qk_mode=mode)
            failure = failure_of(result)
            if failure is not None:
                return FoundFailure(
                    failure=failure,
                    message=result.message,
                    step=step.word,
                    sizes=step.check.sizes,
                    feeds=step.feeds,
                    site=site,
                    inputs=inputs,
                )
        return None

    def _probed(self, session: Session, check: CheckOptions, feeds: Feeds) -> FoundFailure | None:
        """The probes of every attention that can be cut out of a larger model."""
        arrays = {**self.model.constants(), **feeds, **session.run(feeds)}
        with Sessions(self.runtime) as sessions:
            for site in self.model.sites:
                part = cut_or_none(self.model, site)
                if part is None:
                    continue
                inputs = AttentionInputs(**{name: arrays[value] for name, value in site.inputs.items()})
                for trial in _probe_trials(part, site.spec, inputs, check):
                    if self.is_over():
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

    def is_over(self) -> bool:
        """Whether the time is up; noted, since something then was not asked."""
        if self.clock() < self.deadline:
            return False
        self.is_finished = False
        return True

    def _require_arrays(self) -> None:
        """Given arrays of another type or rank are the caller's fault, not the runtime's."""
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
        """The sizes that the caller fixes in each set; one set where arrays are given or nothing is left to choose."""
        if self.check.inputs is not None:
            return [dict(self.check.sizes)]
        axes = self.model.facts.axes
        sets = size_sets(axes, batches=self.model.facts.batch_axes)
        ordered = [sets[2], *sets] if axes else [{}]  # the set that `verify` uses comes first
        chosen = [{**sizes, **self.check.sizes} for sizes in ordered]
        return [sizes for place, sizes in enumerate(chosen) if sizes not in chosen[:place]]

    def _note(self, sizes: Mapping[str, int]) -> None:
        if self.check.inputs is not None:
            self.tried.append("the given arrays")
            return
        self.tried.append(words_of(sizes))

    def _refused(self, failure: KeptFailure, message: str) -> FoundFailure:
        sizes = self.size_sets()[0]
        feeds = self.check.inputs or draw_feeds(self.model, sizes, spread=1.0, seed=self.check.seed)
        step = "spread 1" if self.check.inputs is None else GIVEN
        self._note(sizes)
        return FoundFailure(failure=failure, message=message, step=step, sizes=sizes, feeds=dict(feeds))


def words_of(sizes: Mapping[str, int]) -> str:
    """Sizes in words, such as "batch_size 2, q_seq_len 13"."""
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items()) or "its fixed sizes"


def case_of(spec: AttentionSpec, inputs: AttentionInputs) -> AttentionCase:
    """The case that some arrays are of."""
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
    """One attention as a bare model; None where it cannot stand alone."""
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
    for probe in probes_for(spec):
        drawn = probe.draw(case, check.seed)
        shapes = [None if one.attn_mask is None else one.attn_mask.shape for one in (inputs, drawn)]
        if shapes[0] != shapes[1]:
            continue  # the graph has room for another mask than the probe draws
        yield CaseTrial(case=case, source=probe.name, inputs=drawn, seed=check.seed, graph=part, threads=check.threads)


def _stopped(error: SessionError) -> KeptFailure:
    if isinstance(error, ProcessDiedError):
        return KeptFailure(kind=Conformity.CRASHED)
    return KeptFailure(kind=Conformity.REFUSED, sign=message_shape(str(error)))
