"""Find the sizes of the attentions inside a model, from the sizes that the user sets for the model's axes.

Reads them from the arrays of one run. Does not choose forms.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.site import AttentionSite
from sdpa_onnx.runtimes.base import LoadOptions, Runtime
from sdpa_onnx.workflows.check.feeds import draw_feeds
from sdpa_onnx.workflows.check.file_feeds import named_axes
from sdpa_onnx.workflows.check.lifted_model import lift

__all__ = ["attention_sizes", "sizes_by_name"]


def sizes_by_name(
    model: OnnxModel, runtime: Runtime, size_sets: Sequence[Mapping[str, int]], *, seed: int = 0
) -> dict[str, tuple[dict[str, int], ...]]:
    """The sizes of every attention of a model, one for each set of sizes of the model's axes.

    Args:
        model: The model.
        runtime: The runtime that runs it.
        size_sets: Sizes of the model's axes. Defaults of axes without a size: batch axes 1, kv_seq_len equal to
            q_seq_len, past_seq_len 0.
        seed: Seed of the inputs.

    Raises:
        PlanError: If the model has no such axis, or another axis has no size.
        SessionError: If the runtime refuses the model or fails.
    """
    lifted = lift(model)
    sites = tuple(attention.site for attention in lifted.read)
    named = named_axes(model)
    axes, batches = named.facts.axes, named.facts.batch_axes
    complete = [_completed(axes, batches, one) for one in size_sets]
    sets = [attention_sizes(lifted.model, sites, runtime, one, seed=seed) for one in complete]
    return {site.name: tuple(one[site.name] for one in sets) for site in sites}


def _completed(axes: Sequence[str], batches: Collection[str], given: Mapping[str, int]) -> dict[str, int]:
    option = ",".join(f"{axis}={size}" for axis, size in given.items())
    unknown = [axis for axis in given if axis not in axes]
    if unknown:
        raise PlanError(
            f"--at {option}: there is no axis '{unknown[0]}'; the axes are {', '.join(axes) or 'all fixed'}."
        )
    lengths = {"kv_seq_len": given.get("q_seq_len"), "past_seq_len": 0}
    defaults = {axis: 1 if axis in batches or axis.startswith("batch") else lengths.get(axis) for axis in axes}
    sizes = {**defaults, **given}
    if missing := [axis for axis, size in sizes.items() if size is None]:
        # The example uses the largest given size: two lengths of one model are usually equal.
        more = ",".join(f"{axis}={max(given.values())}" for axis in missing)
        raise PlanError(
            f"--at {option} does not set the size of {_listed(missing)}.", hint=f"Example: --at {option},{more}."
        )
    return {axis: size for axis, size in sizes.items() if size is not None}


def _listed(axes: Sequence[str]) -> str:
    return " and ".join(f"axis '{axis}'" for axis in axes)


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
