"""Draw the integer inputs of a graph by what they mean: legal, varied, with their edges. Finds no meanings itself.

Source of what is legal: the table in `graph.integers.rules`.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph.given_numbers import given_number
from sdpa_onnx.graph.integers.allowed import Allowed, IntegerKind, IntegerMeaning
from sdpa_onnx.graph.integers.meaning import IntegerGraph

__all__ = ["IllegalSizesError", "draw_integers", "integer_masks", "unknown_integers"]

Array = NDArray[np.generic]
Integers = NDArray[np.int64]
Generator = np.random.Generator
Shapes = Mapping[str, tuple[int, ...]]

# Share of visible entries of a mask.
_VISIBLE = 0.75
# Positions of an input that nothing limits lie below this multiple of their number.
_POSITIONS_PER_ENTRY = 2
_ANY_SIZE = 5


class IllegalSizesError(ModelError):
    """No integers are legal at these sizes: an operator has no room for them."""


def draw_integers(model: ir.Model, shapes: Shapes, sizes: Mapping[str, int], rng: Generator) -> dict[str, Array]:
    """Draw every integer input of a graph.

    Args:
        model: The graph.
        shapes: Shape of every graph input by name.
        sizes: Size of every named axis.
        rng: Source of the numbers.

    Raises:
        IllegalSizesError: If no numbers are legal.
    """
    drawn: dict[str, Array] = {}
    if not any(value.dtype is not None and value.dtype.is_integer() for value in model.graph.inputs):
        return drawn
    graph = IntegerGraph(model, shapes, sizes)
    for value in graph.in_order:
        given = given_number(value)
        if given is not None:
            drawn[value.name or ""] = given
            graph.draw(value, given)
    for value in graph.in_order:
        if value.name in drawn:
            continue
        name, meaning = value.name or "", graph.meaning(value)
        array = _draw(name, meaning, shapes[name], _samples(shapes), rng)
        drawn[name] = array.astype(ir.DataType.INT64.numpy() if value.dtype is None else value.dtype.numpy())
        graph.draw(value, drawn[name])
    return drawn


def integer_masks(model: ir.Model, shapes: Shapes, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Names of the integer inputs of at least two axes that are masks, or of which nothing is known."""
    graph = IntegerGraph(model, shapes, sizes)
    kinds = {value.name or "": graph.meaning(value).kind for value in graph.in_order}
    masks = (IntegerKind.MASK, IntegerKind.UNKNOWN)
    return tuple(name for name, kind in kinds.items() if kind in masks and len(shapes[name]) >= 2)


def unknown_integers(model: ir.Model) -> tuple[str, ...]:
    """One sentence for each integer input whose meaning is unknown."""
    # What an input means does not depend on sizes; these are long enough to tell positions from constants.
    shapes = {
        value.name or "": tuple(size if isinstance(size, int) else _ANY_SIZE for size in value.shape or ())
        for value in model.graph.inputs
    }
    named = [size for one in model.graph.inputs for size in one.shape or () if not isinstance(size, int)]
    sizes = {str(size.value): _ANY_SIZE for size in named}
    graph = IntegerGraph(model, shapes, sizes)
    free = [value for value in graph.in_order if given_number(value) is None]
    unknown = [value for value in free if graph.meaning(value).kind is IntegerKind.UNKNOWN]
    return tuple(f"Input '{value.name}' is drawn as 0 or 1: its meaning is unknown." for value in unknown)


def _samples(shapes: Shapes) -> int:
    """The number of samples: the most frequent first axis of inputs of several axes."""
    firsts = [shape[0] for shape in shapes.values() if len(shape) > 1]
    return max(set(firsts), key=firsts.count) if firsts else 1


def _draw(name: str, meaning: IntegerMeaning, shape: tuple[int, ...], samples: int, rng: Generator) -> Array:
    allowed = meaning.allowed
    if allowed is not None and allowed.low > allowed.high:
        raise IllegalSizesError(
            f"No numbers of input '{name}' are legal at these sizes ({', '.join(meaning.where)}).",
            hint="The sizes do not fit together, or exceed what a table or a cache of the model holds.",
        )
    match meaning.kind:
        case IntegerKind.INDEX:
            return _any(allowed, shape, rng)
        case IntegerKind.POSITIONS | IntegerKind.SLOTS:
            return _rising(name, meaning, shape, rng)
        case IntegerKind.LENGTH | IntegerKind.START:
            return _varied(allowed, shape, rng)
        case IntegerKind.BOUNDS:
            return _bounds(allowed, shape, samples, rng)
        case IntegerKind.PREFIX:
            return _prefix(allowed, shape, rng)
        case IntegerKind.MASK | IntegerKind.UNKNOWN:
            return _zero_or_one(shape, rng)


def _any(allowed: Allowed | None, shape: tuple[int, ...], rng: Generator) -> Integers:
    if allowed is None:
        return _zero_or_one(shape, rng)
    return rng.integers(allowed.low, allowed.high + 1, shape)


def _zero_or_one(shape: tuple[int, ...], rng: Generator) -> Integers:
    """A mask that hides no row as a whole: 1 three times out of four, and always at position 0 of the last axis."""
    if len(shape) < 2:
        return rng.integers(0, 2, shape)
    mask = (rng.random(shape) < _VISIBLE).astype(np.int64)
    mask[..., :1] = 1
    return mask


def _varied(allowed: Allowed | None, shape: tuple[int, ...], rng: Generator) -> Integers:
    """Numbers of samples: one is the greatest, and no two are equal if there are enough."""
    if allowed is None:
        return _zero_or_one(shape, rng)
    if allowed.choices:
        return np.full(shape, rng.choice(np.array(allowed.choices)), np.int64)
    numbers, count = np.arange(allowed.low, allowed.high + 1), int(np.prod(shape))
    flat = rng.choice(numbers, count, replace=count > numbers.size)
    if allowed.high not in flat and (count > 1 or (allowed.is_reached and count)):
        flat[rng.integers(count)] = allowed.high
    return flat.reshape(shape)


def _rising(name: str, meaning: IntegerMeaning, shape: tuple[int, ...], rng: Generator) -> Integers:
    """Rows of positions that rise by 1, from a start of their own."""
    count = shape[-1] if shape else 1
    allowed = meaning.allowed or Allowed(low=0, high=max(1, _POSITIONS_PER_ENTRY * count))
    room = allowed.high - allowed.low + 1
    if meaning.kind is IntegerKind.SLOTS and count > room:
        raise IllegalSizesError(f"Input '{name}' has {count} entries, and there is room for {room}.")
    starts = _varied(Allowed(low=allowed.low, high=max(allowed.low, allowed.high + 1 - count)), (*shape[:-1], 1), rng)
    rows = starts + np.arange(count)
    rising = np.minimum(rows, allowed.high) if meaning.kind is IntegerKind.POSITIONS else rows
    return rising.reshape(shape)


def _bounds(allowed: Allowed | None, shape: tuple[int, ...], samples: int, rng: Generator) -> Integers:
    """Lengths; then starts if there are twice as many numbers, or offsets of queries and keys if thrice and two."""
    if allowed is None:
        return _zero_or_one(shape, rng)
    lengths = _varied(allowed, (min(samples, shape[0]),), rng)
    if shape[0] == 2 * samples:
        return np.concatenate([lengths, rng.integers(0, np.maximum(1, lengths))])
    if shape[0] == 3 * samples + 2:
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return np.concatenate([lengths, offsets, offsets])
    return np.resize(lengths, shape)


def _prefix(allowed: Allowed | None, shape: tuple[int, ...], rng: Generator) -> Integers:
    """Masks of which only the first entries are 1."""
    columns = shape[-1]
    limited = Allowed(low=min(1, columns), high=columns)
    # A mask of 0 and 1 is limited by its columns; one whose sum is a length, by what the length may be.
    rows = limited if allowed is None or allowed == Allowed(low=0, high=1) else limited.of(allowed)
    if rows.low > rows.high:
        raise IllegalSizesError(f"No mask of {columns} columns has a legal number of visible entries.")
    counts = _varied(replace(rows, choices=()), shape[:-1], rng)
    return (np.arange(columns) < counts[..., None]).astype(np.int64)
