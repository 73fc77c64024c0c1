"""Axes that have names of their own and must be equally long, found by running graph and module.

torch.onnx gives the length of keys and that of values two names. A graph has no
meaning where they differ, which is no fault. Some runtimes run it there anyway
and return wrong shapes, so a stricter runtime is tried first.
"""

import contextlib
import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from sdpa_onnx.core.attention.axis_limits import AxisLimit, broken_limit, fit_sizes
from sdpa_onnx.core.attention.axis_links import find_links
from sdpa_onnx.errors import ModelError, PlanError, SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.model_facts import ModelFacts
from sdpa_onnx.runtimes.base import LoadOptions, Runtime, Unsupported, get_runtime
from sdpa_onnx.workflows.check.feeds import draw_feeds, runs_at
from sdpa_onnx.workflows.check.kept_sessions import KeptSessions
from sdpa_onnx.workflows.check.requested_sizes import with_key_length
from sdpa_onnx.workflows.isolate.isolated_runtime import GuardedRuntime, ProcessDiedError, own_process

__all__ = [
    "SETS",
    "axis_links",
    "complete_sizes",
    "first_that_runs",
    "follow",
    "require_allowed",
    "running",
    "size_sets",
]

# It is always installed and refuses sizes that do not fit together.
_STRICT_RUNTIME = "ort-cpu"
# 1, 2, primes, a power of two and something larger than any usual sample; neighbours differ, so q != kv.
_LENGTHS = (1, 2, 13, 64, 31, 97, 5, 128)
_BATCHES = (1, 3, 2, 5)
# How many size sets an export is run at; axes of one name always change together.
SETS = 8


def axis_links(model: OnnxModel, runtime: Runtime, *, traced: Mapping[str, int] | None, seed: int) -> dict[str, str]:
    """Find axes that must be as long as another axis; the other axis by the name of each.

    The links are a property of the graph: a runtime that refuses sizes that do not fit
    is tried first, and the given one if that finds no link.

    Args:
        model: The graph, and its module if it has one.
        runtime: Where it will be judged.
        traced: Sizes at which it is known to run: axes of one size may belong together.
        seed: Seed of the inputs.

    Raises:
        ProcessDiedError: If the given runtime crashed or did not answer.
    """
    axes = {axis: (traced or {}).get(axis) for axis in model.facts.axes}
    if len(axes) < 2:
        return {}
    return _strict_links(model, runtime, axes, seed) or _links(model, runtime, axes, seed)


def _strict_links(model: OnnxModel, runtime: Runtime, axes: Mapping[str, int | None], seed: int) -> dict[str, str]:
    """Links found on the strict runtime; none if it is the given one, or cannot run the graph."""
    strict = get_runtime(_STRICT_RUNTIME)
    if runtime.name == _STRICT_RUNTIME or isinstance(strict.supports(model), Unsupported):
        return {}
    real = runtime.real if isinstance(runtime, KeptSessions) else runtime
    patience_seconds = real.patience_seconds if isinstance(real, GuardedRuntime) else None
    # This runtime is not judged: its crash is no result.
    with contextlib.suppress(ProcessDiedError), own_process(strict, patience_seconds) as apart:
        return _links(model, apart, axes, seed)
    return {}


def _links(model: OnnxModel, runtime: Runtime, axes: Mapping[str, int | None], seed: int) -> dict[str, str]:
    try:
        with running(model, runtime, seed) as runs:
            return find_links(axes, batches=model.facts.batch_axes, runs=runs, limits=model.facts.limits)
    except ProcessDiedError:
        raise
    except SessionError:
        return {}


def first_that_runs(
    model: OnnxModel, runtime: Runtime, candidates: Iterable[dict[str, int]], *, seed: int
) -> dict[str, int] | None:
    """The first of these sizes at which graph and module run; None if none does.

    Raises:
        ProcessDiedError: If the runtime crashed or did not answer.
    """
    try:
        with running(model, runtime, seed) as runs:
            return next(filter(runs, candidates), None)
    except ProcessDiedError:
        raise
    except SessionError:
        return None


@contextlib.contextmanager
def running(model: OnnxModel, runtime: Runtime, seed: int) -> Iterator[Callable[[dict[str, int]], bool]]:
    """Load once; return a function that reports whether graph and module run at some sizes.

    Raises:
        SessionError: If the runtime does not load it.
    """
    # As a bare attention its inputs would be drawn with equal lengths.
    plain = replace(model, sites=())
    # A copy: what the module remembers of these calls must not reach the judge.
    tried = replace(model, source=copy.deepcopy(model.source)) if model.bind is not None else model
    with runtime.load(plain, LoadOptions()) as session:

        def runs(sizes: dict[str, int]) -> bool:
            try:
                feeds = draw_feeds(plain, sizes, spread=1.0, seed=seed)
                session.run(feeds)
            except ProcessDiedError:
                raise
            except (SessionError, ModelError):
                return False
            return runs_at(tried, feeds)

        yield runs


def follow(
    links: Mapping[str, str], sizes: Mapping[str, int], given: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Sizes with every linked axis as long as the axis that it follows; given sizes win, on either side."""
    given = given or {}
    found = {**sizes, **given}
    for axis, head in links.items():
        if axis in given and head not in given:
            found[head] = given[axis]
    for axis, head in links.items():
        if axis not in given:
            found[axis] = found[head]
    return found


def complete_sizes(facts: ModelFacts, links: Mapping[str, str], given: Mapping[str, int]) -> dict[str, int]:
    """Return the given sizes and a choice for the other axes; of keys, see `requested_sizes.with_key_length`.

    Args:
        facts: Of the graph.
        links: Axes as long as another one.
        given: What the caller fixes.

    Raises:
        PlanError: If given sizes differ where they must be equal, or are outside the limits of the file.
    """
    free = [axis for axis in facts.axes if axis not in links]
    chosen = size_sets(free, count=3, batches=facts.batch_axes, limits=facts.limits)[-1]
    named = {**chosen, **with_key_length(facts, given)}
    sizes = fit_sizes(facts.limits, follow(links, named, given), keep=given)
    require_allowed(facts.limits, sizes, given)
    unequal = next((axis for axis, head in links.items() if sizes[axis] != sizes[head]), None)
    if unequal is not None:
        head = links[unequal]
        raise PlanError(
            f"The model runs only where '{head}' and '{unequal}' are equally long, not at {sizes[head]} and "
            f"{sizes[unequal]}.",
            hint="Give both the same size, or only one of them.",
        )
    return sizes


def require_allowed(limits: Sequence[AxisLimit], sizes: Mapping[str, int], given: Mapping[str, int]) -> None:
    """Refuse sizes that the caller gave and that break a limit.

    Raises:
        PlanError: If one is outside; names the limit and what states it.
    """
    broken = broken_limit([limit for limit in limits if any(name in given for name in limit.names)], sizes)
    if broken is not None:
        asked = ", ".join(f"{name} {sizes[name]}" for name in broken.names)
        raise PlanError(
            f"{asked} is outside the limits of the file: it holds for {broken} only ({broken.source}).",
            hint="Choose sizes inside.",
        )


def size_sets(
    axes: Sequence[str], *, count: int = SETS, batches: Collection[str] = (), limits: Sequence[AxisLimit] = ()
) -> list[dict[str, int]]:
    """Choose sizes for named axes: 1, 2, primes, larger ones, and no two lengths alike.

    Args:
        axes: Their names.
        count: Size sets.
        batches: Axes that count samples, besides those called batch.
        limits: The sizes that the model allows.

    Example:
        >>> size_sets(["batch_size", "q_seq_len", "kv_seq_len"], count=2)
        [{'batch_size': 1, 'q_seq_len': 1, 'kv_seq_len': 64}, {'batch_size': 3, 'q_seq_len': 2, 'kv_seq_len': 31}]
    """
    sets = []
    for number in range(count):
        sizes = {}
        for position, axis in enumerate(axes):
            if axis.startswith("batch") or axis in batches:
                sizes[axis] = _BATCHES[number % len(_BATCHES)]
            else:
                sizes[axis] = _LENGTHS[(number + 3 * (position - 1)) % len(_LENGTHS)]
        sets.append(fit_sizes(limits, sizes))
    return sets
