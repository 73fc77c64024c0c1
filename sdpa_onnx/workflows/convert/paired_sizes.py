"""Choose the sizes at which a source graph and its conversion, or two files, run: untraced, requested, and long ones.

Runs nothing itself; the caller supplies the trial.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sdpa_onnx.core.attention.axis_links import find_links
from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.lower.by_length import branch_lengths
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.workflows.check.long_sizes import alike_guesses, long_runs, sizes_in_words
from sdpa_onnx.workflows.check.mask_inputs import mask_only_axes
from sdpa_onnx.workflows.check.requested_sizes import require_axes
from sdpa_onnx.workflows.verify.axis_links import axis_links, complete_sizes, follow, size_sets
from sdpa_onnx.workflows.verify.baked_settings import likely_sizes

__all__ = ["PairedSizes", "edge_sets", "has_branches", "long_sets"]

Sizes = Mapping[str, int]

# It refuses sizes that do not match each other.
_STRICT_RUNTIME = "ort-cpu"
_CANDIDATES, _RAGGED = 8, 2
# Ragged, longer than the largest block of queries, and above the key length from which blocks are larger.
_LONG = (269, 521)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedSizes:
    """Sizes for a source and its result.

    Args:
        source: Its axes are named.
        result: The same interface.
        at_source: Where the source runs.
        runs: Whether it runs at these sizes there.
        seed: Seed of the inputs of a trial.
    """

    source: OnnxModel
    result: OnnxModel
    at_source: Runtime
    runs: Callable[[Sizes], bool]
    seed: int = 0

    def choose(self, *, count: int, requested: Sequence[Sizes] = (), least: int = 0) -> list[dict[str, int]]:
        """Size sets at which the source runs: untraced ones, else the sizes that are fixed in the graph.

        Long ones come first, see `long_runs`, then those that the caller requests; the last one is a large one.

        Args:
            count: Number of untraced ones.
            requested: Sizes of some axes; the others are chosen.
            least: A length that is tried in any case if a run can afford it.

        Raises:
            ModelError: If the source runs at none of the tried sizes, or not at a requested one.
            PlanError: If a size names no axis, or sizes that must be equal are not.
        """
        facts, runs = self.source.facts, self.runs
        axes, batches, traced = facts.axes, facts.batch_axes, facts.traced
        require_axes(facts, requested)
        if not axes:
            return [{}]
        links = self._links()
        heads = [axis for axis in axes if axis not in links]
        wanted = self._requested(links, requested)
        sets = size_sets(heads, count=_CANDIDATES, batches=batches, limits=facts.limits)
        # If few sets run, prefer the one of a usual ragged length, then one sample of one query.
        planned = (follow(links, sizes) for sizes in [sets[_RAGGED], *sets[:_RAGGED], *sets[_RAGGED + 1 :]])
        found = list(itertools.islice(filter(runs, planned), count))
        if has_branches(self.result):
            # Only long inputs reach all blocks and branches; a source that rejects such inputs has none.
            found += filter(runs, (follow(links, long) for long in long_sets(heads, batches)))
        edges = filter(runs, (follow(links, edge) for edge in edge_sets(self.result, heads, batches)))
        masks = mask_only_axes(self.source)
        if masks and not found:  # an axis that broadcasts in a mask has length 1, unlike every other axis
            ones = ({**follow(links, sizes), **dict.fromkeys(masks, 1)} for sizes in sets)
            found = list(itertools.islice(filter(runs, ones), count))
        elif masks:
            found += filter(runs, [{**found[0], axis: 1} for axis in masks])
        if found:
            # The last set runs with every spread and with hidden rows, so it must not be small.
            ordinary = [*wanted, *edges, *sorted(found, key=lambda sizes: sum(sizes.values()))]
            return [*self._long(heads, links, ordinary, least), *ordinary]
        if wanted:
            return wanted
        guesses = alike_guesses(self.source, axes, likely_sizes(self.source))
        guessed = next(filter(runs, itertools.chain([dict(traced)] if traced else [], guesses)), None)
        if guessed is None:
            raise ModelError(
                f"No sizes were found at which the source runs on {self.at_source.name}.",
                hint="Its axes may be fixed: run `inspect` on it.",
            )
        return [guessed]

    def _links(self) -> dict[str, str]:
        facts = self.source.facts
        if self.at_source.name == _STRICT_RUNTIME:
            sizes = {axis: (facts.traced or {}).get(axis) for axis in facts.axes}
            return find_links(sizes, batches=facts.batch_axes, runs=self.runs, limits=facts.limits)
        return axis_links(self.source, self.at_source, traced=facts.traced, seed=self.seed)

    def _requested(self, links: Mapping[str, str], requested: Sequence[Sizes]) -> list[dict[str, int]]:
        """The requested size sets, completed."""
        found: list[dict[str, int]] = []
        for given in requested:
            sizes = complete_sizes(self.source.facts, links, given)
            if not self.runs(sizes):
                raise ModelError(f"The source does not run at {sizes_in_words(sizes)} on {self.at_source.name}.")
            found.append(sizes)
        return found

    def _long(
        self, heads: Sequence[str], links: Mapping[str, str], tried: Sequence[Sizes], least: int
    ) -> Iterator[dict[str, int]]:
        """Size sets beyond every window and compared number of source and result, see `long_runs`."""
        found = long_runs(
            [self.source, self.result],
            heads,
            batches=self.source.facts.batch_axes,
            tried=tried,
            runs=lambda sizes: self.runs(follow(links, sizes)),
            least=least,
        )
        return (follow(links, sizes) for sizes in found)


def has_branches(model: OnnxModel) -> bool:
    """Whether a graph has loops or branches that only some lengths reach."""
    return any(node.op_type in ("Loop", "If", "Scan") for node in model.ir.graph)


def long_sets(heads: Sequence[str], batches: Collection[str]) -> list[dict[str, int]]:
    """Size sets of two samples in which every length axis has each long length once."""
    lengths = [axis for axis in heads if axis not in batches]
    return [
        {axis: 2 if axis in batches else _LONG[(number + lengths.index(axis)) % len(_LONG)] for axis in heads}
        for number in range(len(_LONG))
    ]


def edge_sets(model: OnnxModel, heads: Sequence[str], batches: Collection[str]) -> list[dict[str, int]]:
    """One sample at both sides of each branch length: the longest short input, and the shortest long input."""
    lengths = [at + beyond for at in branch_lengths(model.ir) for beyond in (0, 1) if at]
    return [{axis: 1 if axis in batches else length for axis in heads} for length in lengths]
