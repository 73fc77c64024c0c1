"""What an attention in a form is asked before it is trusted on a runtime: awkward sizes, masks and structural probes.

The probes of the core at ordinary sizes, and random arrays at sizes where kernels are known to take
other paths. Draws arrays; runs nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs, numpy_dtype
from sdpa_onnx.core.attention.probes import probes_for
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, MaskKind
from sdpa_onnx.workflows.choose_form.form_trial import FormProblem

__all__ = ["FormProbe", "questions"]

Array = NDArray[np.generic]

# Share of keys that a random mask hides.
_HIDDEN_SHARE = 0.35
# What hides nothing and what hides much, in the logits of a row.
_SPREAD = 1.0


class _Size(NamedTuple):
    """Samples, queries, new keys, keys in the cache (only with one), and the sizes in words."""

    batch_size: int
    q_seq_len: int
    kv_seq_len: int
    past_seq_len: int
    words: str

    @property
    def is_empty(self) -> bool:
        """Whether an axis has no elements."""
        return not (self.batch_size and self.q_seq_len and self.kv_seq_len)


_USUAL = _Size(2, 5, 7, 4, "several queries and keys")
_ONE_QUERY = _Size(2, 1, 3, 4, "one query and several new keys")
_SIZES = (
    _USUAL,
    _ONE_QUERY,
    _Size(2, 1, 1, 5, "one query and one new key"),
    _Size(2, 6, 3, 2, "more queries than new keys"),
    _Size(2, 4, 4, 3, "as many queries as new keys"),
    _Size(1, 3, 8, 2, "fewer queries than new keys"),
    _Size(1, 1, 1, 0, "one query and one key"),
    # Beyond the vector widths and inner blocks of kernels, no multiple of any.
    _Size(1, 131, 137, 3, "odd lengths beyond a block"),
    _Size(2, 73, 71, 3, "odd lengths of two samples, more queries than keys"),
)
# The same where there are as many new keys as queries.
_EQUAL = _Size(2, 5, 5, 4, "several queries")
_EQUAL_ONE = _Size(2, 1, 1, 5, "one query")
_EQUAL_SIZES = (
    _EQUAL,
    _EQUAL_ONE,
    _Size(1, 1, 1, 0, "one query and one key"),
    _Size(1, 131, 131, 3, "odd lengths beyond a block"),
    _Size(2, 71, 71, 3, "odd lengths of two samples"),
    _Size(2, 3, 3, 0, "an empty cache"),
    _Size(2, 0, 0, 3, "no queries"),
    _Size(0, 3, 3, 2, "no samples"),
)
_CACHE_SIZES = (
    _Size(2, 3, 3, 0, "an empty cache"),
    _Size(2, 3, 0, 5, "a cache and no new keys"),
)
_EMPTY_SIZES = (
    _Size(2, 0, 5, 2, "no queries"),
    _Size(0, 3, 5, 2, "no samples"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormProbe:
    """One set of arrays and what it shows.

    Args:
        words: What is asked, for people.
        case: Its sizes.
        given: What the runtime gets.
        judged: What the oracle gets, where that differs.
        mask_shape: Axes of the mask, see `FormProblem`.
        is_empty: Whether an axis has no elements: then nobody gets a wrong number from a runtime that does not run.
    """

    words: str
    case: AttentionCase
    given: AttentionInputs
    judged: AttentionInputs | None = None
    mask_shape: str
    is_empty: bool


def questions(problem: FormProblem, *, seed: int = 0) -> Iterator[FormProbe]:
    """Go through what a form is asked; the same seed gives the same arrays."""
    usual = problem.mask_shapes[0]
    shapes = problem.mask_shapes if problem.has_mask else (usual,)
    sizes = _sizes(problem)
    yield from (_sized(problem, size, shape, seed) for size in sizes for shape in shapes if not size.is_empty)
    for size in (_EQUAL, _EQUAL_ONE) if problem.has_equal_lengths else (_USUAL, _ONE_QUERY):
        yield from _probes(problem, size, usual, seed)
    if problem.spec.mask is MaskKind.LENGTHS:
        yield from _lengths(problem, usual, seed)
    # Last: some runtimes take their process with them.
    yield from (_sized(problem, size, usual, seed) for size in sizes if size.is_empty)


def _sizes(problem: FormProblem) -> tuple[_Size, ...]:
    if problem.has_equal_lengths:
        return _EQUAL_SIZES
    sizes = (*_SIZES, *(_CACHE_SIZES if problem.spec.has_past else ()), *_EMPTY_SIZES)
    # Keys of one sample cannot serve none.
    return tuple(size for size in sizes if size.batch_size or not problem.has_single_keys)


def _case(problem: FormProblem, size: _Size) -> AttentionCase:
    past = size.past_seq_len if problem.spec.has_past else 0
    return AttentionCase(
        spec=problem.spec,
        dtype=problem.dtype,
        batch_size=size.batch_size,
        q_seq_len=size.q_seq_len,
        kv_seq_len=size.kv_seq_len,
        past_seq_len=past,
    )


def _sized(problem: FormProblem, size: _Size, shape: str, seed: int) -> FormProbe:
    """Random arrays at one size, under a mask of one shape that hides keys and whole rows."""
    case = _case(problem, size)
    inputs = draw_inputs(case, spread=_SPREAD, seed=seed)
    words = size.words
    if problem.has_mask:
        inputs = replace(inputs, attn_mask=_mask(problem, case, shape, np.random.default_rng((seed, *size[:4]))))
        words += f", mask ({_axes_in_words(shape)})"
    return _question(problem, case, inputs, words, shape)


def _probes(problem: FormProblem, size: _Size, shape: str, seed: int) -> Iterator[FormProbe]:
    """The structural probes, their masks cut down to the shape that comes."""
    case = _case(problem, size)
    for probe in probes_for(problem.spec):
        inputs = probe.draw(case, seed)
        if inputs.attn_mask is not None:
            inputs = replace(inputs, attn_mask=_cut(inputs.attn_mask, shape, case))
        yield _question(problem, case, inputs, f"probe {probe.name}, {size.words}", shape)


def _lengths(problem: FormProblem, shape: str, seed: int) -> Iterator[FormProbe]:
    """Lengths of 0, of all keys, and fewer than queries; beside a float mask, rows of its lowest number."""
    keys = 4 if problem.has_equal_lengths else 6
    case = _case(problem, _Size(2, 4, keys, 0, ""))
    drawn = draw_inputs(case, spread=_SPREAD, seed=seed)
    for lengths in ((0, keys), (2, 1), (keys, keys)):
        inputs = replace(drawn, nonpad_kv_seqlen=np.array(lengths, dtype=np.int64))
        words = f"valid keys {lengths[0]} and {lengths[1]} of {keys}"
        yield _question(problem, case, inputs, words, shape)
        if problem.mask_kind is MaskKind.FLOAT:
            inputs = replace(inputs, attn_mask=np.full_like(_open_mask(problem, case, shape), _lowest(case)))
            yield _question(problem, case, inputs, f"{words}, mask of the lowest number", shape)


def _lowest(case: AttentionCase) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(numpy_dtype(case.dtype)).min)  # type: ignore[no-untyped-call]


def _question(problem: FormProblem, case: AttentionCase, inputs: AttentionInputs, words: str, shape: str) -> FormProbe:
    if problem.has_mask and inputs.attn_mask is None:  # a probe of the lengths beside it
        inputs = replace(inputs, attn_mask=_open_mask(problem, case, shape))
    given = inputs
    if problem.has_single_keys:
        given, inputs = _with_single_keys(inputs)
    is_empty = not (case.batch_size and case.q_seq_len and case.kv_seq_len)
    return FormProbe(words=words, case=case, given=given, judged=inputs, mask_shape=shape, is_empty=is_empty)


def _with_single_keys(inputs: AttentionInputs) -> tuple[AttentionInputs, AttentionInputs]:
    """Keys and values of the first sample for all, as the graph has them and as the oracle reads them."""
    names = [name for name in ("key", "value", "past_key", "past_value") if getattr(inputs, name) is not None]
    first = {name: getattr(inputs, name)[:1] for name in names}
    all_of_them = {
        name: np.ascontiguousarray(np.broadcast_to(array, getattr(inputs, name).shape)) for name, array in first.items()
    }
    return replace(inputs, **first), replace(inputs, **all_of_them)


def _mask(problem: FormProblem, case: AttentionCase, shape: str, rng: np.random.Generator) -> Array:
    """A mask that hides keys at random and, where it has several rows, everything from some of them."""
    sizes = _mask_sizes(case, shape)
    visible = rng.random(sizes) >= _HIDDEN_SHARE
    if "S" in shape:
        visible[..., 1::3, :] = False
    if problem.mask_kind is MaskKind.BOOL:
        return visible
    added = rng.standard_normal(sizes, dtype=np.float32).astype(numpy_dtype(case.dtype))
    added[~visible] = -np.inf
    return added


def _open_mask(problem: FormProblem, case: AttentionCase, shape: str) -> Array:
    """A mask that hides nothing."""
    sizes = _mask_sizes(case, shape)
    is_boolean = problem.mask_kind is MaskKind.BOOL
    return np.ones(sizes, dtype=bool) if is_boolean else np.zeros(sizes, dtype=numpy_dtype(case.dtype))


def _mask_sizes(case: AttentionCase, shape: str) -> tuple[int, ...]:
    spec: AttentionSpec = case.spec
    total = case.total_seq_len
    sizes = {
        "B": case.batch_size,
        "H": spec.q_num_heads,
        "S": case.q_seq_len,
        "T": total,
        "P": max(total - 2, min(total, 1)),
        "F": total,
        "1": 1,
    }
    return tuple(sizes[axis] for axis in shape)


def _cut(mask: Array, shape: str, case: AttentionCase) -> Array:
    """A mask of four axes cut down or broadcast to another shape; the probe stays a probe of what is left."""
    sizes = _mask_sizes(case, shape)
    while mask.ndim > len(sizes):
        mask = mask[0]
    cut = mask[tuple(slice(0, size) for size in sizes)]
    return np.ascontiguousarray(np.broadcast_to(cut, sizes))


def _axes_in_words(shape: str) -> str:
    words = {"B": "samples", "H": "heads", "S": "queries", "T": "keys", "P": "fewer keys", "F": "keys", "1": "1"}
    return ", ".join(words[axis] for axis in shape)
