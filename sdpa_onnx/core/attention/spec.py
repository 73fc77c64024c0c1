"""Defines an attention: the spec (heads, mask, scale, ...) and the case (spec with sizes and element type).

Uses no arrays, files, torch or onnx.
"""

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from sdpa_onnx.errors import CaseError

__all__ = [
    "AttentionCase",
    "AttentionSpec",
    "Dtype",
    "Layout",
    "MaskKind",
    "ScaleRule",
    "option_tokens",
    "parse_case_id",
    "scale_text",
]


_Enum = TypeVar("_Enum", bound=StrEnum)


class MaskKind(StrEnum):
    """Kind of mask input, in addition to causality and windows.

    LENGTHS is ONNX's `nonpad_kv_seqlen`: the number of valid keys of each sample.
    """

    NONE = "none"
    BOOL = "bool"
    FLOAT = "float"
    LENGTHS = "lengths"


class Layout(StrEnum):
    """Axis order: B batch, N heads, S sequence, H width of one head.

    BNSH is ONNX's 4-D layout, BSH its 3-D layout (heads concatenated in the last axis).
    """

    BNSH = "bnsh"
    BSH = "bsh"

    @property
    def length_axis(self) -> int:
        """Index of the sequence axis."""
        return 2 if self is Layout.BNSH else 1


class Dtype(StrEnum):
    """Element type of query, key, value and output, with numpy's names."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def short(self) -> str:
        """The form used in case ids: f64, f32, f16, bf16."""
        return self.value.replace("float", "f")


class ScaleRule(StrEnum):
    """The factor on QK^T as a function of d_k.

    Source: 1/sqrt(d_k) is Vaswani et al. 2017, section 3.2.1.
    """

    INVERSE_SQRT = "1/sqrt(d_k)"
    NONE = "none"
    INVERSE = "1/d_k"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """One attention without its sizes: what is constant in a model with dynamic axes.

    Args:
        q_num_heads: Query heads.
        kv_num_heads: Key and value heads; divides q_num_heads (1 = multi-query).
        head_dim: Width of a query and key head, elements.
        v_head_dim: Width of a value head, elements. None means head_dim.
        is_causal: Query i sees key j iff j <= i + offset (see masks.py).
        left_window: Keys visible left of a query's own position; -1 = all.
        right_window: Keys visible right of a query's own position; -1 = all.
        mask: Kind of mask input.
        softcap: softcap * tanh(scores / softcap) before the mask; 0.0 = off.
        scale: Factor on QK^T: a number or a rule of head_dim.
        has_past: A cache of earlier keys and values is an input, and the
            cache extended by the new ones is an output.
        layout: Axis order of query, key, value and output.

    Raises:
        CaseError: If a value is out of range or the values contradict each other.

    Source: attributes of ONNX Attention, opset 25.
    """

    q_num_heads: int
    kv_num_heads: int
    head_dim: int
    v_head_dim: int = None  # type: ignore[assignment]  # __post_init__ sets head_dim
    is_causal: bool = False
    left_window: int = -1
    right_window: int = -1
    mask: MaskKind = MaskKind.NONE
    softcap: float = 0.0
    scale: float | ScaleRule = ScaleRule.INVERSE_SQRT
    has_past: bool = False
    layout: Layout = Layout.BNSH

    def __post_init__(self) -> None:
        object.__setattr__(self, "v_head_dim", _default(self.v_head_dim, self.head_dim))
        object.__setattr__(self, "mask", _member(MaskKind, "mask", self.mask))
        object.__setattr__(self, "layout", _member(Layout, "layout", self.layout))
        if isinstance(self.scale, str):
            object.__setattr__(self, "scale", _member(ScaleRule, "scale", self.scale))
        for name in ("q_num_heads", "kv_num_heads", "head_dim", "v_head_dim"):
            _require(name, getattr(self, name), "at least 1", holds=getattr(self, name) >= 1)
        if self.q_num_heads % self.kv_num_heads:
            raise CaseError(
                f"q_num_heads is {self.q_num_heads}, which kv_num_heads = {self.kv_num_heads} does not divide.",
                hint="Each key/value head must serve the same number of query heads.",
            )
        for name in ("left_window", "right_window"):
            _require(name, getattr(self, name), "-1 (all keys) or more", holds=getattr(self, name) >= -1)
        _require("softcap", self.softcap, "0 (off) or more", holds=self.softcap >= 0 and math.isfinite(self.softcap))
        _require("scale", self.scale, "a finite number", holds=math.isfinite(self.scale_value))
        if self.has_past and self.mask is MaskKind.LENGTHS:
            raise CaseError(
                "mask 'lengths' cannot be combined with a past.",
                hint="ONNX Attention accepts nonpad_kv_seqlen only without past_key and past_value.",
            )

    @property
    def scale_value(self) -> float:
        """The factor on QK^T as a number."""
        match self.scale:
            case ScaleRule.INVERSE_SQRT:
                return 1.0 / math.sqrt(self.head_dim)
            case ScaleRule.INVERSE:
                return 1.0 / self.head_dim
            case ScaleRule.NONE:
                return 1.0
            case number:
                return float(number)

    @property
    def heads_per_kv(self) -> int:
        """Query heads that share one key/value head."""
        return self.q_num_heads // self.kv_num_heads

    @property
    def has_window(self) -> bool:
        return self.left_window >= 0 or self.right_window >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase:
    """A spec with sizes and element type: one problem to run.

    Args:
        spec: The attention to compute.
        batch_size: Number of samples.
        q_seq_len: Queries per sample.
        kv_seq_len: New keys per sample (without the past).
        past_seq_len: Keys in the cache; 0 unless spec.has_past.
        dtype: Element type.
        mask_shape: Shape of a boolean or float mask, which broadcasts to (batch_size, q_num_heads, q_seq_len,
            total_seq_len); its last axis may be shorter. None = (batch_size, 1, q_seq_len, total_seq_len).
        extra_mask: Boolean or float mask in addition to lengths, which the spec does not have.

    Raises:
        CaseError: If a size is negative, or past_seq_len is set and the spec has no past.

    Example:
        >>> spec = AttentionSpec(q_num_heads=8, kv_num_heads=2, head_dim=64, is_causal=True)
        >>> AttentionCase(spec=spec, batch_size=2, q_seq_len=128, dtype=Dtype.FLOAT16).case_id
        'b2_hq8_hkv2_q128_kv128_d64_f16_causal'
    """

    spec: AttentionSpec
    batch_size: int = 1
    q_seq_len: int
    kv_seq_len: int = None  # type: ignore[assignment]  # __post_init__ sets q_seq_len
    past_seq_len: int = 0
    dtype: Dtype = Dtype.FLOAT32
    mask_shape: tuple[int, ...] | None = None
    extra_mask: MaskKind = MaskKind.NONE

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_seq_len", _default(self.kv_seq_len, self.q_seq_len))
        object.__setattr__(self, "dtype", _member(Dtype, "dtype", self.dtype))
        for name in ("batch_size", "q_seq_len", "kv_seq_len", "past_seq_len"):
            _require(name, getattr(self, name), "0 or more", holds=getattr(self, name) >= 0)
        if self.past_seq_len and not self.spec.has_past:
            raise CaseError(
                f"past_seq_len is {self.past_seq_len}, but the spec has no past.", hint="Set has_past=True in the spec."
            )

    @property
    def total_seq_len(self) -> int:
        """Number of keys that the softmax runs over: past and new."""
        return self.past_seq_len + self.kv_seq_len

    @property
    def mask_kind(self) -> MaskKind:
        """Kind of the input `attn_mask`: boolean, float or none."""
        return self.extra_mask if self.spec.mask is MaskKind.LENGTHS else self.spec.mask

    @property
    def case_id(self) -> str:
        """Stable name, safe as a file name, without options at their default. Twin: `parse_case_id`."""
        spec = self.spec
        parts = [
            f"b{self.batch_size}",
            f"hq{spec.q_num_heads}",
            f"hkv{spec.kv_num_heads}",
            f"q{self.q_seq_len}",
            f"kv{self.kv_seq_len}",
            f"d{spec.head_dim}",
            self.dtype.short,
        ]
        return "_".join([*parts, *option_tokens(spec, self.past_seq_len)])

    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs of this case, by their name in `AttentionInputs`."""
        spec = self.spec
        shapes = {
            "query": self.shape_of(spec.q_num_heads, self.q_seq_len, spec.head_dim),
            "key": self.shape_of(spec.kv_num_heads, self.kv_seq_len, spec.head_dim),
            "value": self.shape_of(spec.kv_num_heads, self.kv_seq_len, spec.v_head_dim),
        }
        if self.mask_kind is not MaskKind.NONE:
            usual = (self.batch_size, 1, self.q_seq_len, self.total_seq_len)
            shapes["attn_mask"] = usual if self.mask_shape is None else self.mask_shape
        if spec.has_past:
            past = (self.batch_size, spec.kv_num_heads, self.past_seq_len)
            shapes |= {"past_key": (*past, spec.head_dim), "past_value": (*past, spec.v_head_dim)}
        if spec.mask is MaskKind.LENGTHS:
            shapes["nonpad_kv_seqlen"] = (self.batch_size,)
        return shapes

    def shape_of(self, num_heads: int, seq_len: int, width: int) -> tuple[int, ...]:
        """Shape of one tensor in the spec's layout."""
        if self.spec.layout is Layout.BNSH:
            return (self.batch_size, num_heads, seq_len, width)
        return (self.batch_size, seq_len, num_heads * width)


def option_tokens(spec: AttentionSpec, past_seq_len: int = 0) -> tuple[str, ...]:
    """List the options of a spec as tokens of a case id; only what differs from the default appears.

    Args:
        spec: What is computed.
        past_seq_len: Keys in the cache, if it has one.

    Example:
        >>> option_tokens(AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=8, is_causal=True, left_window=4))
        ('causal', 'wl4')
    """
    options = {
        "causal": spec.is_causal,
        f"dv{spec.v_head_dim}": spec.v_head_dim != spec.head_dim,
        f"wl{spec.left_window}": spec.left_window >= 0,
        f"wr{spec.right_window}": spec.right_window >= 0,
        f"past{past_seq_len}": spec.has_past,
        f"mask-{spec.mask}": spec.mask is not MaskKind.NONE,
        f"cap{spec.softcap:g}": spec.softcap > 0,
        f"scale{scale_text(spec.scale)}": spec.scale != ScaleRule.INVERSE_SQRT,
        spec.layout.value: spec.layout is not Layout.BNSH,
    }
    return tuple(word for word, present in options.items() if present)


_CASE_ID = re.compile(
    r"b(?P<batch_size>\d+)_hq(?P<q_num_heads>\d+)_hkv(?P<kv_num_heads>\d+)_q(?P<q_seq_len>\d+)_kv(?P<kv_seq_len>\d+)"
    r"_d(?P<head_dim>\d+)_(?P<dtype>b?f\d+)(?P<causal>_causal)?(?:_dv(?P<v_head_dim>\d+))?(?:_wl(?P<left_window>\d+))?"
    r"(?:_wr(?P<right_window>\d+))?(?:_past(?P<past_seq_len>\d+))?(?:_mask-(?P<mask>[a-z]+))?(?:_cap(?P<softcap>[^_]+))?"
    r"(?:_scale(?P<scale>[^_]+))?(?:_(?P<layout>bsh))?"
)
_CASE_SIZES = ("batch_size", "q_seq_len", "kv_seq_len", "past_seq_len")
_SPEC_SIZES = ("q_num_heads", "kv_num_heads", "head_dim", "v_head_dim", "left_window", "right_window")


def parse_case_id(text: str) -> AttentionCase | None:
    """The case that an id names, to the digits that stand in it; None of any other text. Twin: `AttentionCase.case_id`.

    For records that earlier versions wrote, which have no field for the spec.

    Example:
        >>> parse_case_id("b2_hq8_hkv2_q128_kv128_d64_f16_causal").spec.is_causal
        True
    """
    found = _CASE_ID.fullmatch(text)
    if found is None:
        return None
    read = {name: value for name, value in found.groupdict().items() if value is not None}
    try:
        spec = AttentionSpec(
            **{name: int(read[name]) for name in _SPEC_SIZES if name in read},
            is_causal="causal" in read,
            mask=MaskKind(read.get("mask", MaskKind.NONE)),
            softcap=float(read.get("softcap", 0.0)),
            scale=_scale_of(read["scale"]) if "scale" in read else ScaleRule.INVERSE_SQRT,
            has_past="past_seq_len" in read,
            layout=Layout(read.get("layout", Layout.BNSH)),
        )
        dtype = next(one for one in Dtype if one.short == read["dtype"])
        sizes = {name: int(read.get(name, 0)) for name in _CASE_SIZES}
        return AttentionCase(
            spec=spec,
            dtype=dtype,
            batch_size=sizes["batch_size"],
            q_seq_len=sizes["q_seq_len"],
            kv_seq_len=sizes["kv_seq_len"],
            past_seq_len=sizes["past_seq_len"],
        )
    except (ValueError, StopIteration):  # a number or a word that no id has; CaseError is a ValueError
        return None


def _require(name: str, value: object, allowed: str, *, holds: bool) -> None:
    if not holds:
        raise CaseError(f"{name} is {value}; it must be {allowed}.")


def _default(value: int | None, default: int) -> int:
    return default if value is None else value


def _member(kind: type[_Enum], name: str, value: str) -> _Enum:
    try:
        return kind(value)
    except ValueError:
        raise CaseError(f"{name} is '{value}'; it must be one of {', '.join(kind)}.") from None


def scale_text(scale: float | ScaleRule) -> str:
    """A scale as part of a case id."""
    return re.sub(r"[^a-z0-9]+", "-", scale.value) if isinstance(scale, ScaleRule) else f"{scale:g}"


def _scale_of(word: str) -> float | ScaleRule:
    """Twin: `scale_text`.

    Raises:
        ValueError: If it is neither a rule nor a number.
    """
    return next((rule for rule in ScaleRule if scale_text(rule) == word), None) or float(word)
