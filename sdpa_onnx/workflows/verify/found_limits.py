"""Sizes that a module or a file refuses by itself: its limits, found by running it, which are no fault of an export.

`dynamic_axes` has seen the refusals before.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sdpa_onnx.core.attention.axis_limits import AxisLimit, broken_limit, read_expression
from sdpa_onnx.core.attention.limit_search import search_limits
from sdpa_onnx.errors import ModelError, SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import Runtime, Unsupported, get_runtime
from sdpa_onnx.workflows.check.feeds import draw_feeds, refusal_of_module
from sdpa_onnx.workflows.isolate.isolated_runtime import ProcessDiedError
from sdpa_onnx.workflows.verify.axis_links import first_that_runs, follow, running

__all__ = ["LONGEST_EDGE", "limits_of_file", "limits_of_module", "module_refusal"]

Sizes = Mapping[str, int]

# The longest size that a search tries, and the longest edge that is judged: a row of scores per query, in float64.
LONGEST_EDGE = 1024
# Two runtimes that are always installed: what both refuse, the file refuses.
_RUNTIMES = ("ort-cpu", "onnx-reference")


def module_refusal(model: OnnxModel, sizes: Sizes, seed: int) -> str:
    """The error that the module itself raises at these sizes; "" if it runs or there is none."""
    if model.source is None or model.bind is None:
        return ""
    # A copy: what the module remembers of this call must not reach the judge.
    tried = replace(model, source=copy.deepcopy(model.source), sites=())
    try:
        return refusal_of_module(tried, draw_feeds(tried, sizes, spread=1.0, seed=seed))
    except ModelError as error:
        return str(error).rstrip(".")


def limits_of_module(
    model: OnnxModel, start: Sizes, refused: Sequence[tuple[Sizes, str]], *, links: Mapping[str, str], seed: int
) -> tuple[AxisLimit, ...]:
    """The limits of a module that raises at some sizes; none if they do not explain all of them.

    Args:
        model: The graph and its module.
        start: Sizes of the independent axes, at which it runs.
        refused: Sizes at which it raises, and the error.
        links: Axes as long as another one.
        seed: Seed of the inputs.
    """

    def runs(sizes: Sizes) -> bool:
        return not module_refusal(model, follow(links, sizes), seed)

    sizes, why = refused[-1]
    source = f"the module itself does not run at {_words(sizes)}: {why}"
    found = search_limits([*start], start, runs=runs, longest=LONGEST_EDGE, source=source)
    return found if all(broken_limit(found, sizes) for sizes, _ in refused) else ()


def limits_of_file(
    model: OnnxModel,
    runtime: Runtime,
    start: Sizes,
    refused: Sequence[tuple[Sizes, str]],
    *,
    links: Mapping[str, str],
    seed: int,
) -> tuple[AxisLimit, ...]:
    """The limits of a file without its module, whose runs end with an error at some sizes.

    None if they do not explain all of them, or if another runtime runs what this one refuses.

    Args:
        model: The graph.
        runtime: Where it was run.
        start: Sizes of the independent axes, at which it runs.
        refused: Sizes at which the runtime raises, and the error.
        links: Axes as long as another one.
        seed: Seed of the inputs.
    """
    sizes, why = refused[-1]
    source = f"the file does not run at {_words(sizes)}: {why.rstrip('.')}"
    try:
        with running(model, runtime, seed) as runs_at:

            def runs(one: Sizes) -> bool:
                return runs_at(follow(links, one))

            found = search_limits([*start], start, runs=runs, longest=LONGEST_EDGE, source=source)
    except ProcessDiedError:
        raise
    except SessionError:
        return ()
    if not all(broken_limit(found, sizes) for sizes, _ in refused):
        return ()
    other = get_runtime(next(name for name in _RUNTIMES if name != runtime.name))
    if isinstance(other.supports(model), Unsupported):
        return found
    outside = [follow(links, one) for one in (*(one for one, _ in refused), *_just_outside(found, start))]
    return found if first_that_runs(model, other, outside, seed=seed) is None else ()


def _just_outside(limits: Sequence[AxisLimit], start: Sizes) -> Iterator[dict[str, int]]:
    """Sizes that break one limit, next to its edges."""
    for limit in limits:
        axis = limit.names[-1]
        ends = (limit.smallest - limit.step, (limit.largest or 0) + limit.step, start[axis] + 1)
        for value in ends:
            solved = read_expression(limit.size).solved(value, {name: start[name] for name in start if name != axis})
            sizes = {**start, **solved}
            if all(size > 0 for size in sizes.values()) and not limit.allows(sizes):
                yield sizes


def _words(sizes: Sizes) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items())
