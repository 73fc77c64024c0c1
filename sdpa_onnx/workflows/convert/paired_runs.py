"""Run a source graph and its rewriting side by side: at sizes never traced, at every logit spread, with hidden rows.

Gives arrays; `convert_proof` judges them.
"""

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.core.attention.axis_links import find_links
from sdpa_onnx.core.attention.inputs import LADDER
from sdpa_onnx.errors import ModelError, RuntimeUnavailableError, SessionError
from sdpa_onnx.graph.files.large import is_large
from sdpa_onnx.graph.lower.by_length import branch_lengths
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.nodes_apart import nodes_apart
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Runtime, Session, Unsupported, get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.feeds import Feeds, InputStep, draw_feeds, ladder
from sdpa_onnx.workflows.check.file_feeds import index_limits, legal, with_hidden_rows
from sdpa_onnx.workflows.check.mask_inputs import drawn_as_masks, mask_only_axes
from sdpa_onnx.workflows.convert.float64_graph import Float64Graph, Float64Run
from sdpa_onnx.workflows.isolate.isolated_runtime import ProcessDiedError
from sdpa_onnx.workflows.locate.reference_nodes import NoReference, rounded
from sdpa_onnx.workflows.verify.axis_links import axis_links, follow, size_sets
from sdpa_onnx.workflows.verify.baked_settings import likely_sizes

__all__ = ["HIDDEN_ROWS", "PairRun", "PairedModels", "RunEffort", "edge_sets", "has_branches", "long_sets"]

Array = NDArray[np.generic]

# Where a source is run whose own runtime refuses it, in this order.
_OTHER_RUNTIMES = ("ort-cpu", "onnx-reference")
# It refuses sizes that do not fit together.
_STRICT_RUNTIME = "ort-cpu"
HIDDEN_ROWS = "hidden rows"
_CANDIDATES, _RAGGED = 8, 2
# Ragged, and beyond the largest block of queries and the keys from which blocks are larger.
_LONG = (331, 577)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEffort:
    """How much of a whole graph is run; every attention by itself gets all of the ladder in any case.

    Args:
        count: Size sets.
        spreads: Logit spreads at the largest of them.
        rows_may_be_empty: Whether a mask is fed that hides every key of a query; else the first key stays visible.
    """

    count: int = 4
    spreads: Sequence[float] = LADDER
    rows_may_be_empty: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRun:
    """One set of inputs, and what came of it.

    Args:
        step: The inputs.
        at_source: Name of the runtime that the source ran on.
        source: What the source gave, tapped, constants and inputs included, by value name.
        source_ran: What ran for it.
        wide: The source in float64, tapped.
        result: What the rewritten graph gave by output name, untapped; or why it did not run.
        tapped: The same, tapped, with constants and inputs.
        result_ran: What ran for it.
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
    """What the source gave at one step, tapped, and what ran for it."""

    step: InputStep
    outputs: Feeds
    ran: RanReport


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResultRun:
    """What the result gave at one step, or why not, and what ran for it if that was asked."""

    outputs: Feeds | SessionError
    ran: RanReport | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedModels:
    """A source graph and its rewriting, to be run on the same inputs.

    Args:
        source: Tappable at every attention read.
        result: The same attentions in another form.
        runtime: Where the result is proved.
        seed: Seed of the inputs.
        threads: Threads inside one operator.
        effort: How much is run.
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
            ModelError: If the source runs nowhere, or at no sizes that were found.
            ProcessDiedError: If the runtime crashed on the source.
        """
        truth = Float64Graph(self.source)
        at_source, source = self._source_runs(truth.steps)
        steps = [run.step for run in source]
        bare = self.result.is_bare_attention
        result = self._result_runs(self.result, steps, is_told=bare)
        tapped = result if bare else self._result_runs(self.result.tapped(), steps, is_told=True)
        truth.stand_in = self._stand_in(at_source)
        given = [{name: run.outputs[name] for name in truth.steps if name in run.outputs} for run in source]
        numbers = range(len(steps))
        # What all sizes of a large model share is widened once; of a small one, who waits is told after each size.
        groups = [list(numbers)] if is_large(self.source.ir) else _by_size(steps)
        wanted = [*self.source.output_names, *_taps(self.source)]
        for done, group in enumerate(groups):
            wide = truth.run_all([(steps[number].feeds, given[number]) for number in group], wanted)
            for number, exact in zip(group, wide, strict=True):
                yield self._pair(at_source, source[number], result[number], tapped[number], exact)
            if on_size is not None:
                on_size(done + 1, len(groups))

    def _source_runs(self, given: Sequence[str]) -> tuple[Runtime, "list[_SourceRun]"]:
        """Every step, with what the source gives; its session is closed then, so that no two hold a large model."""
        with contextlib.ExitStack() as stack:
            at_source, session = self._open_source(stack, given)
            limits = index_limits(self.source.ir)
            chosen = self._sizes(at_source, session)
            runs: list[_SourceRun] = []
            for number, sizes in enumerate(chosen):
                for step in self._steps(session, sizes, limits, is_last=number == len(chosen) - 1):
                    runs.append(_SourceRun(step=step, outputs=session.run(step.feeds), ran=session.ran()))  # noqa: PERF401
            return at_source, runs

    def _result_runs(self, model: OnnxModel, steps: Sequence[InputStep], *, is_told: bool) -> "list[_ResultRun]":
        """What a form of the result gives at every step, in a session of its own."""
        with contextlib.ExitStack() as stack:
            session = self._opened(model, stack)
            runs: list[_ResultRun] = []
            for step in steps:
                outputs = _tried(session, step.feeds)
                ran = session.ran() if is_told and not isinstance(session, SessionError) else None
                runs.append(_ResultRun(outputs=outputs, ran=ran))
            return runs

    def _open_source(self, stack: contextlib.ExitStack, steps: Sequence[str]) -> tuple[Runtime, Session]:
        """Where the source can run: the runtime itself, else another one that is always installed."""
        tapped = self.source
        if not self.source.is_bare_attention:
            known = {value.name for node in self.source.ir.graph for value in node.outputs}
            tapped = self.source.tapped([*_taps(self.source), *(name for name in steps if name in known)])
        others = (get_runtime(name) for name in _OTHER_RUNTIMES if name != self.runtime.name)
        for candidate in (self.runtime, *others):
            if isinstance(candidate.supports(tapped), Unsupported):
                continue
            with contextlib.suppress(SessionError, RuntimeUnavailableError):
                return candidate, stack.enter_context(candidate.load(tapped, LoadOptions(threads=self.threads)))
        raise ModelError(
            f"The source itself runs neither on {self.runtime.name} nor on another runtime that is always there, so "
            "nothing can be compared with it.",
            hint="Prove it with --runtime of one that runs it.",
        )

    def _opened(self, model: OnnxModel, stack: contextlib.ExitStack) -> Session | SessionError:
        try:
            return stack.enter_context(self.runtime.load(model, LoadOptions(threads=self.threads)))
        except SessionError as error:
            return error

    def _sizes(self, at_source: Runtime, session: Session) -> list[dict[str, int]]:
        """Size sets at which the source runs: never traced ones first, else what stands in the graph."""
        axes, batches, traced = self.source.facts.axes, self.source.facts.batch_axes, self.source.facts.traced
        if not axes:
            return [{}]

        def runs(sizes: Mapping[str, int]) -> bool:
            return self._runs_at(session, sizes)

        if at_source.name == _STRICT_RUNTIME:
            links = find_links({axis: (traced or {}).get(axis) for axis in axes}, batches=batches, runs=runs)
        else:
            links = axis_links(self.source, at_source, traced=traced, seed=self.seed)
        heads = [axis for axis in axes if axis not in links]
        sets = size_sets(heads, count=_CANDIDATES, batches=batches)
        # Of few, the one of a usual ragged length comes first, then one sample of one query.
        planned = (follow(links, sizes) for sizes in [sets[_RAGGED], *sets[:_RAGGED], *sets[_RAGGED + 1 :]])
        found = list(itertools.islice(filter(runs, planned), self.effort.count))
        if has_branches(self.result):
            # Blocks and branches that only long inputs reach; a source that does not take these has none.
            found += filter(runs, (follow(links, long) for long in long_sets(heads, batches)))
        edges = filter(runs, (follow(links, edge) for edge in edge_sets(self.result, heads, batches)))
        masks = mask_only_axes(self.source)
        if masks and not found:  # what stands for all in a mask is as long as nothing else
            ones = ({**follow(links, sizes), **dict.fromkeys(masks, 1)} for sizes in sets)
            found = list(itertools.islice(filter(runs, ones), self.effort.count))
        elif masks:
            found += filter(runs, [{**found[0], axis: 1} for axis in masks])
        if found:
            # The last is run with every spread and with hidden rows, so it must not be a small one.
            return [*edges, *sorted(found, key=lambda sizes: sum(sizes.values()))]
        guesses = ({axis: 2 if axis in batches else number for axis in axes} for number in likely_sizes(self.source))
        guessed = next(filter(runs, itertools.chain([dict(traced)] if traced else [], guesses)), None)
        if guessed is None:
            raise ModelError(
                f"No sizes were found at which the source runs on {at_source.name}.",
                hint="Its axes may be fixed: see what `inspect` says.",
            )
        return [guessed]

    def _runs_at(self, session: Session, sizes: Mapping[str, int]) -> bool:
        # As a bare attention its inputs would be drawn with equal lengths.
        try:
            session.run(draw_feeds(replace(self.source, sites=()), sizes, spread=1.0, seed=self.seed))
        except ProcessDiedError:
            raise
        except (SessionError, ModelError):
            return False
        return True

    def _steps(
        self, session: Session, sizes: dict[str, int], limits: Mapping[str, int], *, is_last: bool
    ) -> Iterator[InputStep]:
        check = CheckOptions(
            sizes=sizes, spreads=self.effort.spreads if is_last else (1.0,), seed=self.seed, threads=self.threads
        )
        step: InputStep | None = None
        for plain in ladder(self.source, session, check):
            step = replace(plain, feeds=legal(plain.feeds, limits, self.seed))
            yield step
        if is_last and step is not None and not self.source.is_bare_attention:
            hidden = with_hidden_rows(self.source, step.feeds, limits, keep_first=not self.effort.rows_may_be_empty)
            if hidden is not None:
                yield replace(step, word=HIDDEN_ROWS, feeds=hidden)
            keep_first = not self.effort.rows_may_be_empty
            for masked in drawn_as_masks(self.source, step.feeds, keep_first=keep_first, seed=self.seed):
                yield replace(step, word=HIDDEN_ROWS, feeds=masked)

    def _pair(
        self, at_source: Runtime, source: "_SourceRun", result: "_ResultRun", tapped: "_ResultRun", wide: Float64Run
    ) -> PairRun:
        seen, feeds = tapped.outputs, source.step.feeds
        return PairRun(
            step=source.step,
            at_source=at_source.name,
            source={**self.source.constants(), **feeds, **source.outputs},
            source_ran=source.ran,
            wide=wide,
            result=result.outputs,
            tapped=seen if isinstance(seen, SessionError) else {**self.result.constants(), **feeds, **seen},
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


def has_branches(model: OnnxModel) -> bool:
    """Whether a graph has blocks or branches that only some lengths reach."""
    return any(node.op_type in ("Loop", "If", "Scan") for node in model.ir.graph)


def long_sets(heads: Sequence[str], batches: Collection[str]) -> list[dict[str, int]]:
    """Two samples of both long lengths, each once for every axis."""
    lengths = [axis for axis in heads if axis not in batches]
    return [
        {axis: 2 if axis in batches else _LONG[(number + lengths.index(axis)) % len(_LONG)] for axis in heads}
        for number in range(len(_LONG))
    ]


def edge_sets(model: OnnxModel, heads: Sequence[str], batches: Collection[str]) -> list[dict[str, int]]:
    """One sample of the last length of each branch for short inputs, and of the first of the one for long inputs."""
    lengths = [at + beyond for at in branch_lengths(model.ir) for beyond in (0, 1) if at]
    return [{axis: 1 if axis in batches else length for axis in heads} for length in lengths]


def _by_size(steps: Sequence[InputStep]) -> list[list[int]]:
    """Numbers of the steps, those of one size set together."""
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


def _tried(session: Session | SessionError, feeds: Feeds) -> Feeds | SessionError:
    if isinstance(session, SessionError):
        return session
    try:
        return session.run(feeds)
    except SessionError as error:
        return error
