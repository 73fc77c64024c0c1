"""Generates random valid attention cases by number, with every feature of the operator and small, odd sizes.

A pure function of (seed, number), so that any single case can be reproduced. Runs no model.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import LADDER, AttentionInputs, draw_inputs, numpy_dtype
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.probes import probes_for
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, Layout, MaskKind, ScaleRule

__all__ = ["CASES_PER_GRAPH", "RandomCase", "RandomGraph", "draw_case", "draw_graph"]

# Consecutive numbers share a graph and so a loaded model, because loading takes longer than a small run.
CASES_PER_GRAPH = 8

_Choice = TypeVar("_Choice")

# Sizes at and near the limits of tiles and vectors, primes, 1 and 2.
_LENGTHS = (1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 33, 64, 67, 129)
_PASTS = (0, 1, 2, 5, 16, 33)
_WIDTHS = (1, 2, 3, 4, 7, 8, 16, 32, 33, 64, 96)
_BATCHES = (1, 1, 2, 3)
# Checking takes time proportional to the number of heads, so most cases have few.
_KV_HEADS = (1, 1, 1, 2, 2, 3)
_HEADS_PER_KV = (1, 1, 1, 2, 3, 4)
# A node attribute is a float32, so the oracle must compute with that same number in float64.
_SCALES = tuple(float(np.float32(scale)) for scale in (0.05, 0.3, 1.0, 3.0, 0.0, -0.3))
_SOFTCAPS = (0.5, 2.0, 30.0)
_WINDOWS = (-1, 0, 1, 3, 8)
_DTYPES = (Dtype.FLOAT32,) * 12 + (Dtype.FLOAT16,) * 5 + (Dtype.FLOAT64,) * 3
# Probabilities; they only determine how often a feature occurs.
_EMPTY, _RARE, _SOME, _OFTEN = 0.01, 0.1, 0.25, 0.5

# The shape that `draw_inputs` and the probes give a mask.
_USUAL_MASK = "B1ST"


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomGraph:
    """The properties that a model fixes: a case without sizes and arrays.

    Args:
        spec: The attention to compute.
        dtype: Element type.
        opset: 23 to 25, one that can express the spec.
        mask_form: Axes of the mask, "" without one: B samples, H heads, S queries, T keys, P fewer keys than T, 1.
            A spec with lengths can also have a mask.
        mask_is_bool: Whether that mask is boolean.
        qk_mode: Stage of the requested fourth output, or None.
        softmax_precision: The attribute, or None if it is absent.
    """

    spec: AttentionSpec
    dtype: Dtype
    opset: int
    mask_form: str = ""
    mask_is_bool: bool = False
    qk_mode: QkOutputMode | None = None
    softmax_precision: Dtype | None = None

    @property
    def words(self) -> str:
        """Properties that are not in the case id."""
        parts = [f"opset {self.opset}"]
        if self.mask_form not in ("", _USUAL_MASK) or (self.spec.mask is MaskKind.LENGTHS and self.mask_form):
            kind = "bool" if self.mask_is_bool else "float"
            parts.append(f"{kind} mask with axes {self.mask_form}")
        if self.qk_mode is not None:
            parts.append(f"score output (mode {int(self.qk_mode)})")
        if self.softmax_precision is not None:
            parts.append(f"softmax_precision {self.softmax_precision}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomCase:
    """One drawn case with its inputs.

    Args:
        number: Its number; with the seed it determines the case.
        graph: The properties that its model fixes.
        case: The attention with sizes and type.
        source: Kind of inputs: "spread 1", "probe poison".
        inputs: The arrays; the mask may have any shape that broadcasts.
    """

    number: int
    graph: RandomGraph
    case: AttentionCase
    source: str
    inputs: AttentionInputs

    @property
    def elements(self) -> int:
        """Number of input elements, a measure of the size of the case."""
        return sum(array.size for array in self.inputs.named().values())

    @property
    def is_empty(self) -> bool:
        """Whether the batch size, the query length or the new key length is 0."""
        return 0 in (self.case.batch_size, self.case.q_seq_len, self.case.kv_seq_len)

    @property
    def features(self) -> frozenset[str]:
        """Names of its features, used to find what cases with the same failure have in common."""
        spec, graph, case = self.case.spec, self.graph, self.case
        has_keys_hidden = graph.mask_form or spec.mask is MaskKind.LENGTHS
        present = {
            "causal": spec.is_causal,
            "left window": spec.left_window >= 0,
            "right window": spec.right_window >= 0,
            "past": spec.has_past,
            "past of 0": spec.has_past and not case.past_seq_len,
            "lengths": spec.mask is MaskKind.LENGTHS,
            f"{'bool' if graph.mask_is_bool else 'float'} mask": bool(graph.mask_form),
            "mask of 1 query": graph.mask_form[-2:-1] == "1",
            "mask shorter than the keys": graph.mask_form.endswith("P"),
            "no mask": not has_keys_hidden,
            "softcap": spec.softcap > 0.0,
            "scale 0": spec.scale_value == 0.0,
            "negative scale": spec.scale_value < 0.0,
            "grouped heads": spec.heads_per_kv > 1,
            "v_head_dim differs from head_dim": spec.v_head_dim != spec.head_dim,
            "3-D layout": spec.layout is Layout.BSH,
            "no sample": case.batch_size == 0,
            "no query": case.q_seq_len == 0,
            "no new key": case.kv_seq_len == 0,
            "1 query": case.q_seq_len == 1,
            "query length differs from new key length": case.q_seq_len != case.kv_seq_len,
            "score output": graph.qk_mode is not None,
            f"mode {graph.qk_mode}": graph.qk_mode is not None,
            f"softmax_precision {graph.softmax_precision}": graph.softmax_precision is not None,
            graph.dtype.value: True,
            f"opset {graph.opset}": True,
            self.source: self.source.startswith("probe"),
        }
        return frozenset(feature for feature, is_present in present.items() if is_present)


def draw_case(seed: int, number: int) -> RandomCase:
    """Draw the case with a number.

    Args:
        seed: Seed of the series of cases.
        number: Index in the series; the same seed and number produce the same arrays.

    Example:
        >>> case = draw_case(0, 7)
        >>> case.graph == draw_graph(0, 7), case.inputs.query.shape == case.case.input_shapes()["query"]
        (True, True)
    """
    graph = draw_graph(seed, number)
    rng = np.random.default_rng([seed, number, 1])
    queries, keys = _size(rng, _LENGTHS), _size(rng, _LENGTHS)
    case = AttentionCase(
        spec=graph.spec,
        batch_size=_size(rng, _BATCHES),
        q_seq_len=queries,
        kv_seq_len=queries if _happens(rng, _SOME) else keys,
        past_seq_len=_pick(rng, _PASTS) if graph.spec.has_past else 0,
        dtype=graph.dtype,
    )
    source, inputs = _draw_inputs(graph, case, rng)
    return RandomCase(number=number, graph=graph, case=case, source=source, inputs=inputs)


def draw_graph(seed: int, number: int) -> RandomGraph:
    """Draw the model properties of a case; `CASES_PER_GRAPH` consecutive numbers share them."""
    rng = np.random.default_rng([seed, number // CASES_PER_GRAPH, 0])
    opset = _pick(rng, (23, 24, 25))
    spec = _draw_spec(rng, opset)
    form = _draw_mask_form(rng, spec, opset)
    return RandomGraph(
        spec=spec,
        dtype=_pick(rng, _DTYPES),
        opset=opset,
        mask_form=form,
        mask_is_bool=bool(form)
        and (spec.mask is MaskKind.BOOL or _happens(rng, _OFTEN, spec.mask is MaskKind.LENGTHS)),
        qk_mode=_pick(rng, tuple(QkOutputMode)) if _happens(rng, _RARE) else None,
        softmax_precision=_pick(rng, tuple(Dtype)) if _happens(rng, _RARE) else None,
    )


def _draw_spec(rng: np.random.Generator, opset: int) -> AttentionSpec:
    """Draw a spec from all features of the operator's opset, each often enough to occur with the others."""
    kv_num_heads = _pick(rng, _KV_HEADS)
    head_dim = _pick(rng, _WIDTHS)
    has_past = _happens(rng, _SOME)
    masks = [MaskKind.NONE, MaskKind.NONE, MaskKind.BOOL, MaskKind.FLOAT]
    if opset >= 24 and not has_past:
        masks.append(MaskKind.LENGTHS)
    windowed = _happens(rng, _OFTEN, opset >= 25)
    return AttentionSpec(
        q_num_heads=kv_num_heads * _pick(rng, _HEADS_PER_KV),
        kv_num_heads=kv_num_heads,
        head_dim=head_dim,
        v_head_dim=_pick(rng, _WIDTHS) if _happens(rng, _SOME) else head_dim,
        is_causal=_happens(rng, _OFTEN),
        left_window=_pick(rng, _WINDOWS) if windowed else -1,
        right_window=_pick(rng, _WINDOWS) if windowed else -1,
        mask=_pick(rng, masks),
        softcap=_pick(rng, _SOFTCAPS) if _happens(rng, _SOME) else 0.0,
        scale=_pick(rng, _SCALES) if _happens(rng, _SOME) else ScaleRule.INVERSE_SQRT,
        has_past=has_past,
        layout=Layout.BSH if _happens(rng, _SOME) else Layout.BNSH,
    )


def _draw_mask_form(rng: np.random.Generator, spec: AttentionSpec, opset: int) -> str:
    """Draw the axes of a mask: each full or 1, leading axes of 1 dropped, from opset 24 fewer keys.

    The keys' axis is never set to 1: from opset 24 on the specification allows both broadcast and padding for it.

    Source: ONNX Attention, attn_mask: "broadcastable to (batch_size, q_num_heads, q_sequence_length,
        total_sequence_length)"; opset 24: "the last dimension can also be shorter", padded with -inf.
    """
    if spec.mask is MaskKind.NONE or _happens(rng, 1.0 - _SOME, spec.mask is MaskKind.LENGTHS):
        return ""
    if _happens(rng, _OFTEN):
        return _USUAL_MASK
    axes = "".join(axis if _happens(rng, _OFTEN) else "1" for axis in "BHS")
    form = axes + ("P" if _happens(rng, _SOME, opset >= 24) else "T")
    while len(form) > 2 and form[0] == "1" and _happens(rng, _OFTEN):
        form = form[1:]
    return form


def _draw_inputs(graph: RandomGraph, case: AttentionCase, rng: np.random.Generator) -> tuple[str, AttentionInputs]:
    """Draw random inputs of one spread, or a probe if the mask has the default shape."""
    is_empty = 0 in (case.batch_size, case.q_seq_len, case.kv_seq_len)
    is_usual = graph.mask_form in ("", _USUAL_MASK) and not (graph.mask_form and case.spec.mask is MaskKind.LENGTHS)
    probes = probes_for(case.spec) if is_usual and not is_empty else ()
    seed = int(rng.integers(2**31))
    if probes and _happens(rng, _SOME):
        probe = _pick(rng, probes)
        return f"probe {probe.name}", probe.draw(case, seed)
    spread = _pick(rng, LADDER)
    inputs = draw_inputs(case, spread=spread, seed=seed)
    if graph.mask_form:
        inputs = replace(inputs, attn_mask=_draw_mask(graph, case, inputs, rng))
    return f"spread {spread:g}", inputs


def _draw_mask(
    graph: RandomGraph, case: AttentionCase, inputs: AttentionInputs, rng: np.random.Generator
) -> NDArray[np.generic]:
    """Draw a mask with the graph's axes that hides a quarter of the pairs.

    Source: opset 24: a shorter mask is "at least as long as the maximum value of nonpad_kv_seqlen".
    """
    keys = case.total_seq_len
    lengths = inputs.nonpad_kv_seqlen
    # 1 is ambiguous: broadcast or padded.
    least = max(2, 0 if lengths is None else int(lengths.max(initial=0)))
    sizes = {
        "1": 1,
        "B": case.batch_size,
        "H": case.spec.q_num_heads,
        "S": case.q_seq_len,
        "T": keys,
        "P": int(rng.integers(least, keys)) if least < keys else keys,
    }
    shape = [sizes[axis] for axis in graph.mask_form]
    visible = rng.random(shape) < 1.0 - _SOME
    if graph.mask_is_bool:
        return visible
    added = np.where(visible, rng.standard_normal(shape), -np.inf)
    return added.astype(numpy_dtype(case.dtype))


def _size(rng: np.random.Generator, sizes: tuple[int, ...]) -> int:
    """Draw one of the sizes, or rarely 0."""
    return 0 if _happens(rng, _EMPTY) else _pick(rng, sizes)


def _happens(rng: np.random.Generator, share: float, is_possible: bool = True) -> bool:  # noqa: FBT001, FBT002 - a condition, not a mode
    """Draw whether an event of this probability happens; a number is drawn even if it is impossible."""
    return bool(rng.random() < share) and is_possible


def _pick(rng: np.random.Generator, choices: "tuple[_Choice, ...] | list[_Choice]") -> _Choice:
    return choices[int(rng.integers(len(choices)))]
