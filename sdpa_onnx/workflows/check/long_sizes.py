"""Size sets that reach beyond every window and every number with which a graph compares a length or a position.

A default check is short; a graph that lost its window differs only beyond the window. One run for each such number is
added where it fits the limits of memory and time below; what does not fit is reported. Runs nothing.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from sdpa_onnx.graph.compared_lengths import compared_lengths
from sdpa_onnx.graph.model import OnnxModel

__all__ = [
    "alike_guesses",
    "fits_memory",
    "is_affordable",
    "known_lengths",
    "long_runs",
    "longest_of",
    "reach_in_words",
    "sizes_in_words",
    "untested",
]

Sizes = Mapping[str, int]

# A run this far beyond a number hides or shows several keys in several rows, in a ragged last tile.
_BEYOND = 37
# Scores of one attention in float64, bytes: heads x queries x keys x 8. A float64 run holds several such arrays.
_MOST_SCORE_BYTES = 2**28
# Scores of all attentions: about 10 s in float64 on one core, at 130 ns each.
_MOST_SCORES = 2**26
# Scores of one attention at sizes that are only a guess: 512 MiB in float32, and a runtime holds two or three such
# arrays. One sample of 32 heads at length 2,048 has as many.
_MOST_GUESSED_SCORES = 2**27
# Multiplications with weights, weights x rows: about 10 s in float64 on one core.
_MOST_PRODUCTS = 2**35
# Lengths beyond those of the ordinary sizes that are tried, the longest first.
_MOST_LENGTHS = 3
# Heads where no attention could be read.
_USUAL_HEADS = 16
# Attributes of modules and their configurations that hold a length.
_LENGTH_NAMES = ("window", "position", "length", "max_len", "seq_len", "chunk", "block_size")


def known_lengths(models: Sequence[OnnxModel]) -> tuple[int, ...]:
    """Windows of attentions, compared numbers of graphs, and lengths in the attributes of modules; smallest first."""
    found: set[int] = set()
    for model in models:
        found |= set(compared_lengths(model.ir))
        found |= {window for site in model.sites for window in (site.spec.left_window, site.spec.right_window)}
        found |= set(_of_module(model.source))
    return tuple(sorted(number for number in found if number >= 2))  # a length of 1 is always tried


def long_runs(
    models: Sequence[OnnxModel],
    heads: Sequence[str],
    *,
    batches: Collection[str],
    tried: Sequence[Sizes],
    runs: Callable[[dict[str, int]], bool],
    least: int = 0,
) -> list[dict[str, int]]:
    """Choose long size sets: one for each number beyond the ordinary sizes that a run can afford; smallest first.

    Args:
        models: Whose numbers count; the first has the axes.
        heads: Its axes that may change independently.
        batches: Those that count samples; they are 1 in a long run.
        tried: Ordinary size sets.
        runs: Whether it runs at a size set of `heads`.
        least: A length that a run goes beyond in any case.
    """
    longest = longest_of(tried, batches)
    lengths = [axis for axis in heads if axis not in batches]
    numbers = sorted({*known_lengths(models), least}, reverse=True)
    beyond = [number for number in numbers if number >= longest > 0 or number > longest]
    found: list[dict[str, int]] = []
    for number in beyond if lengths else ():
        affordable = (
            sizes for sizes in _candidates(number, heads, batches) if is_affordable(models[0], sizes, batches)
        )
        first = next(filter(runs, affordable), None)
        found += [] if first is None else [first]
        if len(found) == _MOST_LENGTHS:
            break
    return found[::-1]


def longest_of(tried: Sequence[Sizes], batches: Collection[str]) -> int:
    """The longest length of any axis that does not count samples; 0 without any."""
    lengths = (size for sizes in tried for axis, size in sizes.items() if not _is_batch(axis, batches))
    return max(lengths, default=0)


def untested(known: Sequence[int], longest: int) -> tuple[int, ...]:
    """The known numbers that no length tried goes beyond; none where no length may change."""
    return tuple(number for number in known if longest and number >= longest)


def reach_in_words(longest: int, beyond: Sequence[int]) -> str:
    """What was reached, one sentence: "Longest length tried: 128."; "" where no length may change."""
    if longest <= 0:
        return ""
    if not beyond:
        return f"Longest length tried: {longest}."
    *first, last = (f"{number:,}" for number in beyond)
    numbers = f"{', '.join(first)} and {last}" if first else last
    return (
        f"Not tested beyond length {longest}. The graph compares lengths or positions with {numbers}, beyond which it "
        "may compute differently."
    )


def sizes_in_words(sizes: Sizes) -> str:
    """Sizes as "batch_size 2, x_seq_len 16"."""
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items())


def _is_batch(axis: str, batches: Collection[str]) -> bool:
    return axis.startswith("batch") or axis in batches


def _candidates(number: int, heads: Sequence[str], batches: Collection[str]) -> Iterator[dict[str, int]]:
    """Size sets beyond a number: all lengths, then one length at a time; a ragged length, a multiple, itself."""
    lengths = [axis for axis in heads if axis not in batches]
    single = ((axis,) for axis in lengths) if len(lengths) > 1 else ()
    for longs, length in itertools.product(
        itertools.chain([tuple(lengths)], single), (number + _BEYOND, 2 * number, number)
    ):
        yield {axis: 1 if axis in batches else length if axis in longs else _BEYOND for axis in heads}


def is_affordable(model: OnnxModel, sizes: Sizes, batches: Collection[str]) -> bool:
    """Whether a run stays below the limits; every length may be that of queries, and all may be that of keys."""
    lengths = [size for axis, size in sizes.items() if axis not in batches]
    scores = max(lengths) * sum(lengths)
    heads = _heads(model)
    tensors = (value.const_value for value in model.ir.graph.initializers.values())
    weights = sum(tensor.size for tensor in tensors if tensor is not None)
    return (
        max(heads) * scores * 8 <= _MOST_SCORE_BYTES
        and sum(heads) * scores <= _MOST_SCORES
        and weights * sum(lengths) <= _MOST_PRODUCTS
    )


def fits_memory(model: OnnxModel, sizes: Sizes, batches: Collection[str]) -> bool:
    """Whether the scores of one attention are few enough for sizes that are only a guess; all samples count."""
    lengths = [size for axis, size in sizes.items() if axis not in batches] or [1]
    samples = math.prod(size for axis, size in sizes.items() if axis in batches)
    return samples * max(_heads(model)) * max(lengths) * sum(lengths) <= _MOST_GUESSED_SCORES


def alike_guesses(model: OnnxModel, axes: Sequence[str], numbers: Iterable[int]) -> Iterator[dict[str, int]]:
    """For each number the sizes with every length as long; two samples, or one where two take too much memory."""
    batches = model.facts.batch_axes
    for number in numbers:
        samples = ({axis: few if axis in batches else number for axis in axes} for few in (2, 1))
        yield from itertools.islice((sizes for sizes in samples if fits_memory(model, sizes, batches)), 1)


def _heads(model: OnnxModel) -> list[int]:
    return [site.spec.q_num_heads for site in model.sites] or [_USUAL_HEADS]


def _of_module(source: object) -> Iterator[int]:
    """Whole numbers in the attributes of a module, its parts and their configurations that are named like a length."""
    modules = getattr(source, "modules", None)
    if modules is None:
        return
    for module in modules():
        for holder in (module, getattr(module, "config", None)):
            names = {**vars(type(holder)), **getattr(holder, "__dict__", {})} if holder is not None else {}
            for name, value in names.items():
                is_length = any(word in name for word in _LENGTH_NAMES)
                if is_length and isinstance(value, int) and not isinstance(value, bool):
                    yield value
