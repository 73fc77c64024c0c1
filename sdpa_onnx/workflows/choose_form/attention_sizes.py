"""The sizes that attentions have inside a model when its own axes have the sizes that a user names.

Read off one run; knows nothing of forms.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.runtimes.base import LoadOptions, Runtime
from sdpa_onnx.workflows.check.feeds import draw_feeds
from sdpa_onnx.workflows.check.file_feeds import index_limits, legal, named_axes
from sdpa_onnx.workflows.check.lifted_model import lift

__all__ = ["attention_sizes", "sizes_by_name"]


def sizes_by_name(
    model: OnnxModel, runtime: Runtime, asked: Sequence[Mapping[str, int]], *, seed: int = 0
) -> dict[str, tuple[dict[str, int], ...]]:
    """The sizes of every attention of a model, one set for each that is asked for.

    Args:
        model: The model.
        runtime: Where it runs.
        asked: Sizes of its own axes. Axes of samples that are not named are 1, keys are as many as queries, and a
            cache is empty.
        seed: Of the inputs.

    Raises:
        PlanError: If the model has no such axis, or another axis has no size.
        SessionError: If the runtime refuses the model or fails.
    """
    lifted = lift(model)
    sites = tuple(attention.site for attention in lifted.read)
    named = named_axes(model)
    axes, batches = named.facts.axes, named.facts.batch_axes
    complete = [_completed(axes, batches, one) for one in asked]
    sets = [attention_sizes(lifted.model, sites, runtime, one, seed=seed) for one in complete]
    return {site.name: tuple(one[site.name] for one in sets) for site in sites}


def _completed(axes: Sequence[str], batches: Collection[str], given: Mapping[str, int]) -> dict[str, int]:
    words = ",".join(f"{axis}={size}" for axis, size in given.items())
    unknown = [axis for axis in given if axis not in axes]
    if unknown:
        raise PlanError(
            f"--at {words}: there is no axis '{unknown[0]}'; the axes are {', '.join(axes) or 'all fixed'}."
        )
    usual = {"kv_seq_len": given.get("q_seq_len"), "past_seq_len": 0}
    guessed = {axis: 1 if axis in batches or axis.startswith("batch") else usual.get(axis) for axis in axes}
    sizes = {**guessed, **given}
    if missing := [axis for axis, size in sizes.items() if size is None]:
        # As long as the longest that was named: mostly two lengths of one model go together.
        more = ",".join(f"{axis}={max(given.values())}" for axis in missing)
        raise PlanError(f"--at {words} leaves {_listed(missing)} without a size.", hint=f"E.g. --at {words},{more}.")
    return {axis: size for axis, size in sizes.items() if size is not None}


def _listed(axes: Sequence[str]) -> str:
    return " and ".join(f"axis '{axis}'" for axis in axes)


def attention_sizes(
    model: OnnxModel, sites: Sequence[AttentionSite], runtime: Runtime, sizes: Mapping[str, int], *, seed: int = 0
) -> dict[str, dict[str, int]]:
    """Run a model once and read the sizes of its attentions.

    Args:
        model: Whose values the sites name.
        sites: The attentions.
        runtime: Where it runs.
        sizes: Size of every named axis of its inputs.
        seed: Of the inputs, which do not change sizes.

    Returns:
        By the attention's name: batch_size, q_seq_len, kv_seq_len and, with a cache, past_seq_len.

    Raises:
        ModelError: If an axis has no size.
        SessionError: If the runtime refuses the model or fails.
    """
    tapped = named_axes(model.tapped(list(dict.fromkeys(name for site in sites for name in _names(site)))))
    feeds = legal(draw_feeds(tapped, sizes, spread=1.0, seed=seed), index_limits(tapped.ir), seed)
    with runtime.load(tapped, LoadOptions()) as session:
        arrays = {**tapped.constants(), **feeds, **session.run(feeds)}
    return {site.name: _sizes(site, arrays) for site in sites}


def _names(site: AttentionSite) -> Iterator[str]:
    yield from (site.query, site.key, *([site.past_key] if site.past_key is not None else []))


def _sizes(site: AttentionSite, arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, int]:
    query, key = arrays[site.query].shape, arrays[site.key].shape
    axis = 2 if len(query) == 4 else 1
    sizes = {"batch_size": query[0], "q_seq_len": query[axis], "kv_seq_len": key[axis]}
    past = {} if site.past_key is None else {"past_seq_len": arrays[site.past_key].shape[2]}
    return sizes | past
