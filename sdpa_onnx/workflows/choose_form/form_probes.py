"""Draw the probes of a form: arrays at unusual sizes, masks, and the structural probes of the core.

The structural probes use ordinary sizes; random arrays use sizes at which kernels are known to take
other code paths. Does not run anything.
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

__all__ = ["FormProbe", "draw_probes"]

Array = NDArray[np.generic]

# Share of keys hidden by a random mask.
_HIDDEN_SHARE = 0.35
# Standard deviation of the logits: large enough that a wrong key changes the output.
_SPREAD = 1.0


class _Size(NamedTuple):
    """Batch size, queries, new keys, cached keys (ignored without a cache), and the sizes as text."""

    batch_size: int
    q_seq_len: int
    kv_seq_len: int
    past_seq_len: int
    label: str

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
    _Size(2, 4, 4, 3, "equal numbers of queries and new keys"),
    _Size(1, 3, 8, 2, "fewer queries than new keys"),
    _Size(1, 1, 1, 0, "one query and one key"),
    # Above the vector widths and inner blocks of kernels, and no multiple of them.
    _Size(1, 131, 137, 3, "odd lengths above a block"),
    _Size(2, 73, 71, 3, "odd lengths, batch of two, more queries than keys"),
)
# The same for problems whose numbers of queries and new keys are always equal.
_EQUAL = _Size(2, 5, 5, 4, "several queries")
_EQUAL_ONE = _Size(2, 1, 1, 5, "one query")
_EQUAL_SIZES = (
    _EQUAL,
    _EQUAL_ONE,
    _Size(1, 1, 1, 0, "one query and one key"),
    _Size(1, 131, 131, 3, "odd lengths above a block"),
    _Size(2, 71, 71, 3, "odd lengths, batch of two"),
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
    """One set of arrays.

    Args:
        label: What it tests, as text.
        case: Its sizes.
        inputs: Inputs of the runtime.
        oracle_inputs: Inputs of the oracle, if they differ.
        mask_shape: Axes of the mask, see `FormProblem`.
        is_empty: Whether an axis has no elements. A runtime that refuses such arrays returns no wrong number.
    """

    label: str
    case: AttentionCase
    inputs: AttentionInputs
    oracle_inputs: AttentionInputs | None = None
    mask_shape: str
    is_empty: bool


def draw_probes(problem: FormProblem, *, seed: int = 0) -> Iterator[FormProbe]:
    """Draw the probes of a problem; the same seed gives the same arrays."""
    usual = problem.mask_shapes[0]
    shapes = problem.mask_shapes if problem.has_mask else (usual,)
    sizes = _sizes(problem)
    yield from (_sized(problem, size, shape, seed) for size in sizes for shape in shapes if not size.is_empty)
    for size in (_EQUAL, _EQUAL_ONE) if problem.has_equal_lengths else (_USUAL, _ONE_QUERY):
        yield from _structural_probes(problem, size, usual, seed)
    if problem.spec.mask is MaskKind.LENGTHS:
        yield from _lengths(problem, usual, seed)
    # Last, because some runtimes crash on them.
    yield from (_sized(problem, size, usual, seed) for size in sizes if size.is_empty)


def _sizes(problem: FormProblem) -> tuple[_Size, ...]:
    if problem.has_equal_lengths:
        return _EQUAL_SIZES
    sizes = (*_SIZES, *(_CACHE_SIZES if problem.spec.has_past else ()), *_EMPTY_SIZES)
    # One sample of keys cannot be broadcast to a batch of zero.
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
    """Random arrays at one size, with a mask of one shape that hides keys and whole rows."""
    case = _case(problem, size)
    inputs = draw_inputs(case, spread=_SPREAD, seed=seed)
    label = size.label
    if problem.has_mask:
        inputs = replace(inputs, attn_mask=_mask(problem, case, shape, np.random.default_rng((seed, *size[:4]))))
        label += f", mask ({_axes_text(shape)})"
    return _probe(problem, case, inputs, label, shape)


def _structural_probes(problem: FormProblem, size: _Size, shape: str, seed: int) -> Iterator[FormProbe]:
    """The structural probes, with masks of the shape of the model's mask."""
    case = _case(problem, size)
    if problem.has_mask:
        case = replace(case, mask_shape=_mask_sizes(case, shape))
    for probe in probes_for(problem.spec):
        yield _probe(problem, case, probe.draw(case, seed), f"probe {probe.name}, {size.label}", shape)


def _lengths(problem: FormProblem, shape: str, seed: int) -> Iterator[FormProbe]:
    """Lengths of 0, of all keys, and below the number of queries; with a float mask, rows of the lowest number too."""
    keys = 4 if problem.has_equal_lengths else 6
    case = _case(problem, _Size(2, 4, keys, 0, ""))
    drawn = draw_inputs(case, spread=_SPREAD, seed=seed)
    for lengths in ((0, keys), (2, 1), (keys, keys)):
        inputs = replace(drawn, nonpad_kv_seqlen=np.array(lengths, dtype=np.int64))
        label = f"valid keys {lengths[0]} and {lengths[1]} of {keys}"
        yield _probe(problem, case, inputs, label, shape)
        if problem.mask_kind is MaskKind.FLOAT:
            inputs = replace(inputs, attn_mask=np.full_like(_visible_mask(problem, case, shape), _lowest(case)))
            yield _probe(problem, case, inputs, f"{label}, mask of the lowest number", shape)


def _lowest(case: AttentionCase) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(numpy_dtype(case.dtype)).min)  # type: ignore[no-untyped-call]


def _probe(problem: FormProblem, case: AttentionCase, inputs: AttentionInputs, label: str, shape: str) -> FormProbe:
    if problem.has_mask and inputs.attn_mask is None:  # the probe sets only the lengths
        inputs = replace(inputs, attn_mask=_visible_mask(problem, case, shape))
    runtime_inputs = inputs
    if problem.has_single_keys:
        runtime_inputs, inputs = _with_single_keys(inputs)
    is_empty = not (case.batch_size and case.q_seq_len and case.kv_seq_len)
    return FormProbe(
        label=label, case=case, inputs=runtime_inputs, oracle_inputs=inputs, mask_shape=shape, is_empty=is_empty
    )


def _with_single_keys(inputs: AttentionInputs) -> tuple[AttentionInputs, AttentionInputs]:
    """Keys and values of the first sample only: with batch 1 for the graph, broadcast for the oracle."""
    names = [name for name in ("key", "value", "past_key", "past_value") if getattr(inputs, name) is not None]
    first = {name: getattr(inputs, name)[:1] for name in names}
    broadcast = {
        name: np.ascontiguousarray(np.broadcast_to(array, getattr(inputs, name).shape)) for name, array in first.items()
    }
    return replace(inputs, **first, quantisers=None), replace(inputs, **broadcast, quantisers=None)


def _mask(problem: FormProblem, case: AttentionCase, shape: str, rng: np.random.Generator) -> Array:
    """A mask that hides keys at random and, if it has several rows, masks some rows fully."""
    sizes = _mask_sizes(case, shape)
    visible = rng.random(sizes) >= _HIDDEN_SHARE
    if "S" in shape:
        visible[..., 1::3, :] = False
    if problem.mask_kind is MaskKind.BOOL:
        return visible
    additive = rng.standard_normal(sizes, dtype=np.float32).astype(numpy_dtype(case.dtype))
    additive[~visible] = -np.inf
    return additive


def _visible_mask(problem: FormProblem, case: AttentionCase, shape: str) -> Array:
    """A mask that hides no key."""
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


def _axes_text(shape: str) -> str:
    names = {"B": "batch", "H": "heads", "S": "queries", "T": "keys", "P": "fewer keys", "F": "keys", "1": "1"}
    return ", ".join(names[axis] for axis in shape)
