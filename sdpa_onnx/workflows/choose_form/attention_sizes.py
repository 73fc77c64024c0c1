"""Find the sizes of the attentions inside a model, from the sizes that the user sets for the model's axes.

Reads them from the arrays of one run. Does not choose forms.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.opened_bodies import opened_bodies
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.runtimes.base import LoadOptions, Runtime
from sdpa_onnx.workflows.check.feeds import draw_feeds
from sdpa_onnx.workflows.check.file_feeds import named_axes
from sdpa_onnx.workflows.check.lifted_model import lift
from sdpa_onnx.workflows.check.requested_sizes import require_axes, timed_sizes

__all__ = ["attention_sizes", "sizes_by_name"]


def sizes_by_name(
    model: OnnxModel, runtime: Runtime, size_sets: Sequence[Mapping[str, int]], *, seed: int = 0
) -> dict[str, tuple[dict[str, int], ...]]:
    """The sizes of every attention of a model, one for each set of sizes of the model's axes.

    Args:
        model: The model.
        runtime: The runtime that runs it.
        size_sets: Sizes of the model's axes; those of other axes are as in every timing, see `timed_sizes`.
        seed: Seed of the inputs.

    Raises:
        PlanError: If the model has no such axis.
        SessionError: If the runtime refuses the model or fails.
    """
    lifted = lift(model)
    require_axes(named_axes(model).facts, size_sets)
    found: dict[str, tuple[dict[str, int], ...]] = {}
    for part in (lifted.model, *(body.model for body in opened_bodies(lifted.model))):
        named, sites = named_axes(part), part.sites
        own = [{axis: size for axis, size in one.items() if axis in named.facts.axes} for one in size_sets]
        complete = [timed_sizes(named, one) for one in own]
        sets = [attention_sizes(part, sites, runtime, one, seed=seed) for one in complete if sites]
        found |= {site.name: tuple(one[site.name] for one in sets) for site in sites}
    return found


def attention_sizes(
    model: OnnxModel, sites: Sequence[AttentionSite], runtime: Runtime, sizes: Mapping[str, int], *, seed: int = 0
) -> dict[str, dict[str, int]]:
    """Run a model once and read the sizes of its attentions.

    Args:
        model: The model that contains them.
        sites: The attentions.
        runtime: The runtime that runs it.
        sizes: Size of every named axis of its inputs.
        seed: Seed of the inputs; the sizes do not depend on it.

    Returns:
        By name of the attention: batch_size, q_seq_len, kv_seq_len and, with a cache, past_seq_len.

    Raises:
        ModelError: If an axis has no size.
        SessionError: If the runtime refuses the model or fails.
    """
    tapped = named_axes(model.tapped(list(dict.fromkeys(name for site in sites for name in _names(site)))))
    feeds = draw_feeds(tapped, sizes, spread=1.0, seed=seed)
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
