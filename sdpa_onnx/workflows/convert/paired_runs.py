"""Run a source graph and its conversion on the same inputs: at untraced sizes, every logit spread, with hidden rows.

Returns arrays and judges nothing: `proof` does.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.core.attention.axis_limits import broken_limit
from sdpa_onnx.core.attention.inputs import LADDER
from sdpa_onnx.errors import ModelError, RuntimeUnavailableError, SessionError
from sdpa_onnx.graph.files.large import is_large
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.nodes_apart import nodes_apart
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Runtime, Session, Unsupported, get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import GIVEN, Feeds, InputStep, draw_feeds, ladder
from sdpa_onnx.workflows.check.file_feeds import other_choices, sizes_of, with_hidden_rows
from sdpa_onnx.workflows.check.mask_inputs import drawn_as_masks
from sdpa_onnx.workflows.convert.entered_bodies import deciding_names
from sdpa_onnx.workflows.convert.paired_sizes import PairedSizes
from sdpa_onnx.workflows.isolate.isolated_runtime import ProcessDiedError
from sdpa_onnx.workflows.locate.float64_graph import Float64Graph, Float64Run
from sdpa_onnx.workflows.locate.reference_nodes import NoReference, rounded

__all__ = ["HIDDEN_ROWS", "PairRun", "PairedModels", "RunEffort"]

Array = NDArray[np.generic]

# Runtimes for a source that its own runtime refuses, in this order.
_OTHER_RUNTIMES = ("ort-cpu", "onnx-reference")
HIDDEN_ROWS = "hidden rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEffort:
    """Number of runs of the complete graph; every attention by itself runs the full ladder in any case.

    Args:
        count: Number of size sets.
        spreads: Logit spreads at the largest size set.
        rows_may_be_empty: Whether a mask is fed that hides every key of a query; else some keys stay visible.
        requested: Sizes of some axes at which the caller wants a run, one size set each; the other axes are chosen.
        inputs: Given arrays by input name: the only run.
        least: A length that is tried in any case if a run can afford it; 0 = none.
        alone: Whether each kind of attention of the result, and each body with attentions, is also run by itself.
    """

    count: int = 4
    spreads: Sequence[float] = LADDER
    rows_may_be_empty: bool = True
    requested: Sequence[Mapping[str, int]] = ()
    inputs: Feeds | None = None
    least: int = 0
    alone: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRun:
    """One set of inputs, and the values of source and result there.

    Args:
        step: The inputs.
        at_source: Name of the runtime that the source ran on.
        source: Values of the tapped source, constants and inputs included, by value name.
        source_ran: The kernels that ran for it.
        wide: The tapped source in float64.
        result: Outputs of the untapped converted graph, by name; or the error of the run.
        tapped: The same of the tapped graph, with constants and inputs.
        result_ran: The kernels that ran for it.
    """

    step: InputStep
    at_source: str
    source: Feeds
    source_ran: RanReport
    wide: Float64Run
    result: Feeds | SessionError
    tapped: Feeds | SessionError
    result_ran: RanReport | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourceRun:
    """Values of the tapped source at one step, and the kernels that ran."""

    step: InputStep
    outputs: Feeds
    ran: RanReport


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResultRun:
    """Outputs of the result at one step, or the error of the run; and the kernels that ran, if requested."""

    outputs: Feeds | SessionError
    ran: RanReport | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedModels:
    """A source graph and its conversion, to run on the same inputs.

    Args:
        source: Every lifted attention can be tapped.
        result: The same attentions in another form.
        runtime: Runtime of the proof.
        seed: Seed of the inputs.
        threads: Threads inside one operator.
        effort: Number of runs.
    """

    source: OnnxModel
    result: OnnxModel
    runtime: Runtime
    seed: int = 0
    threads: int = 1
    effort: RunEffort = RunEffort()

    def runs(self, on_size: Callable[[int, int], None] | None = None) -> Iterator[PairRun]:
        """Every run, size after size.

        Raises:
            ModelError: If the source runs on no runtime, or at none of the tried sizes.
            ProcessDiedError: If the runtime crashed on the source.
        """
        truth = Float64Graph(self.source)
        at_source, source = self._source_runs(truth.steps)
        steps = [run.step for run in source]
        bare = self.result.is_bare_attention
        result = self._result_runs(self.result, steps, with_report=bare)
        tapped = result if bare else self._result_runs(self.result.tapped(), steps, with_report=True)
        truth.stand_in = self._stand_in(at_source)
        given = [{name: run.outputs[name] for name in truth.steps if name in run.outputs} for run in source]
        numbers = range(len(steps))
        # A large model runs all sizes together, to widen each weight once; a small one reports after each size.
        groups = [list(numbers)] if is_large(self.source.ir) else _by_size(steps)
        wanted = [*self.source.output_names, *_taps(self.source)]
        for done, group in enumerate(groups):
            wide = truth.run_all([(steps[number].feeds, given[number]) for number in group], wanted)
            for number, exact in zip(group, wide, strict=True):
                yield self._pair(at_source, source[number], result[number], tapped[number], exact)
            if on_size is not None:
                on_size(done + 1, len(groups))

    def _source_runs(self, given: Sequence[str]) -> tuple[Runtime, "list[_SourceRun]"]:
        """Every step with the values of the source; the session is closed, so that no two hold a large model."""
        with contextlib.ExitStack() as stack:
            at_source, session = self._open_source(stack, given)
            chosen = [{}] if self.effort.inputs is not None else self._sizes(at_source, session)
            runs: list[_SourceRun] = []
            for number, sizes in enumerate(chosen):
                for step in self._steps(session, sizes, is_last=number == len(chosen) - 1):
                    runs.append(_SourceRun(step=step, outputs=session.run(step.feeds), ran=session.ran()))  # noqa: PERF401
            return at_source, runs

    def _result_runs(self, model: OnnxModel, steps: Sequence[InputStep], *, with_report: bool) -> "list[_ResultRun]":
        """Outputs of one form of the result at every step, in its own session."""
        with contextlib.ExitStack() as stack:
            session = self._loaded(model, stack)
            runs: list[_ResultRun] = []
            for step in steps:
                outputs = _outputs_or_error(session, step.feeds)
                ran = session.ran() if with_report and not isinstance(session, SessionError) else None
                runs.append(_ResultRun(outputs=outputs, ran=ran))
            return runs

    def _open_source(self, stack: contextlib.ExitStack, steps: Sequence[str]) -> tuple[Runtime, Session]:
        """Load the source on the runtime itself, else on another one that is always installed."""
        tapped = self.source
        if not self.source.is_bare_attention:
            known = {value.name for node in self.source.ir.graph for value in node.outputs}
            tapped = self.source.tapped(
                [*_taps(self.source), *(name for name in steps if name in known), *deciding_names(self.source)]
            )
        others = (get_runtime(name) for name in _OTHER_RUNTIMES if name != self.runtime.name)
        for candidate in (self.runtime, *others):
            if isinstance(candidate.supports(tapped), Unsupported):
                continue
            with contextlib.suppress(SessionError, RuntimeUnavailableError):
                return candidate, stack.enter_context(candidate.load(tapped, LoadOptions(threads=self.threads)))
        raise ModelError(
            f"The source itself runs neither on {self.runtime.name} nor on another runtime that is always installed, "
            "so nothing can be compared with it.",
            hint="Choose a runtime that runs it with --runtime.",
        )

    def _loaded(self, model: OnnxModel, stack: contextlib.ExitStack) -> Session | SessionError:
        try:
            return stack.enter_context(self.runtime.load(model, LoadOptions(threads=self.threads)))
        except SessionError as error:
            return error

    def _sizes(self, at_source: Runtime, session: Session) -> list[dict[str, int]]:
        limits = self.source.facts.limits
        choice = PairedSizes(
            source=self.source,
            result=self.result,
            at_source=at_source,
            runs=lambda sizes: broken_limit(limits, sizes) is None and self._runs_at(session, sizes),
            seed=self.seed,
        )
        return choice.choose(count=self.effort.count, requested=self.effort.requested, least=self.effort.least)

    def _runs_at(self, session: Session, sizes: Mapping[str, int]) -> bool:
        # Without its sites: for a bare attention the inputs would be drawn with equal lengths.
        try:
            outputs = session.run(draw_feeds(replace(self.source, sites=()), sizes, spread=1.0, seed=self.seed))
        except ProcessDiedError:
            raise
        except (SessionError, ModelError):
            return False
        # Where an attention has no element, such as behind a pooling of a short input, nothing can be judged.
        return all(outputs[site.output].size for site in self.source.sites if site.output in outputs)

    def _steps(self, session: Session, sizes: dict[str, int], *, is_last: bool) -> Iterator[InputStep]:
        given = self.effort.inputs
        if given is not None:
            check = CheckOptions(sizes=sizes_of(self.source, given), seed=self.seed, threads=self.threads, inputs=given)
            yield InputStep(word=GIVEN, spread=None, check=check, feeds=given)
            return
        check = CheckOptions(
            sizes=sizes, spreads=self.effort.spreads if is_last else (1.0,), seed=self.seed, threads=self.threads
        )
        step: InputStep | None = None
        for step in ladder(self.source, session, check):
            yield step
        if is_last and step is not None and not self.source.is_bare_attention:
            for word, chosen in other_choices(self.source, step.feeds):
                yield replace(step, word=f"{step.word}, {word}", feeds=chosen)
            keep = not self.effort.rows_may_be_empty
            hidden = with_hidden_rows(self.source, step.feeds, keep_visible=keep)
            if hidden is not None:
                yield replace(step, word=HIDDEN_ROWS, feeds=hidden)
            for masked in drawn_as_masks(self.source, step.feeds, keep_visible=keep, seed=self.seed):
                yield replace(step, word=HIDDEN_ROWS, feeds=masked)

    def _pair(
        self, at_source: Runtime, source: "_SourceRun", result: "_ResultRun", tapped: "_ResultRun", wide: Float64Run
    ) -> PairRun:
        values, feeds = tapped.outputs, source.step.feeds
        return PairRun(
            step=source.step,
            at_source=at_source.name,
            source={**self.source.constants(), **feeds, **source.outputs},
            source_ran=source.ran,
            wide=wide,
            result=result.outputs,
            tapped=values if isinstance(values, SessionError) else {**self.result.constants(), **feeds, **values},
            result_ran=tapped.ran,
        )

    def _stand_in(self, at_source: Runtime) -> Callable[[ir.Node, Mapping[str, Array]], "Feeds | NoReference"]:
        graph = self.source.ir

        def run_alone(node: ir.Node, reads: Mapping[str, Array]) -> "Feeds | NoReference":
            values = {value.name or "": value for value in node.inputs if value is not None}
            own = {name: _narrowed(array, values.get(name)) for name, array in reads.items()}
            constants = {name: array for name, array in own.items() if name in graph.graph.initializers}
            try:
                apart = nodes_apart(graph, [node], own, constants)
                with at_source.load(apart.model, LoadOptions(threads=self.threads)) as session:
                    return session.run(apart.feeds)
            except ProcessDiedError:
                raise
            except (SessionError, ModelError) as error:
                return NoReference(str(error).rstrip("."))

        return run_alone


def _by_size(steps: Sequence[InputStep]) -> list[list[int]]:
    """Indices of the steps, grouped by size set."""
    found: list[list[int]] = []
    for number, step in enumerate(steps):
        if not number or steps[number - 1].check.sizes != step.check.sizes:
            found.append([])
        found[-1].append(number)
    return found


def _taps(model: OnnxModel) -> list[str]:
    return [name for site in model.sites for name in (*site.inputs.values(), site.output)]


def _narrowed(array: Array, value: ir.Value | None) -> Array:
    if value is None or value.dtype is None:
        return array
    return rounded(array, value.dtype.numpy()) if value.dtype.is_floating_point() else array


def _outputs_or_error(session: Session | SessionError, feeds: Feeds) -> Feeds | SessionError:
    if isinstance(session, SessionError):
        return session
    try:
        return session.run(feeds)
    except SessionError as error:
        return error
