"""Labels of cases, arms and forms for reports. Text only, no judgement."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

import msgspec

from sdpa_onnx.core.attention.spec import Layout, MaskKind, ScaleRule, option_tokens, scale_text
from sdpa_onnx.core.records.records import (
    AgreementRecord,
    GateRecord,
    LocatedRecord,
    Record,
    SaturationRecord,
    Sizes,
    Subject,
    TimingRecord,
)

__all__ = [
    "CaseFactor",
    "CommonFactors",
    "SizedRecord",
    "arm_in_words",
    "case_in_words",
    "case_options",
    "clock_in_words",
    "inputs_in_words",
    "is_expanded",
    "is_output_check",
    "join_words",
    "known_sizes",
    "plain",
    "series_name",
    "site_in_words",
    "target_in_words",
    "usual_factors",
    "where_in_words",
]

SizedRecord = AgreementRecord | TimingRecord
"""A record that has sizes."""

_FORM_WORDS = {"attention": "Attention", "decomposed": "the decomposed graph"}

# What a reader knows the targets of the suites by. Twin: FOUNDING_USES in torch_export/target_text.py.
_TARGET_WORDS = {
    "sdpa": "attention without projections",
    "encoder-self": "encoder self-attention",
    "decoder-self": "causal decoder self-attention",
    "encoder-decoder": "encoder-decoder attention",
}

# Sizes at the end of the name of a case of a larger model. Twin: named_case in workflows/check/run_context.py.
_SIZES_IN_NAME = re.compile(r"_b(\d+)_q(\d+)(?:_kv(\d+))?$")

_MASK_WORDS = {
    MaskKind.NONE: "",
    MaskKind.BOOL: "boolean mask",
    MaskKind.FLOAT: "float mask",
    MaskKind.LENGTHS: "key lengths",
}


class CaseFactor(StrEnum):
    """A factor that a suite varies; its value is the name in the report."""

    BATCH = "batch"
    LENGTH = "length"
    HEAD_DIM = "d_k"
    HEADS = "heads"
    DTYPE = "dtype"
    OPTIONS = "options"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonFactors:
    """Factors that most records share; a case names them only where it differs."""

    q_num_heads: int | None = None
    dtype: str = ""

    @property
    def words(self) -> str:
        """The shared factors, for a caption."""
        heads = f"{self.q_num_heads} heads" if self.q_num_heads else ""
        return ", ".join(word for word in (heads, self.dtype) if word)


def usual_factors(records: Sequence[Record]) -> CommonFactors:
    """Find the number of heads and the dtype that most records have."""
    sized = [record for record in records if isinstance(record, SizedRecord) and record.sizes.q_num_heads]
    if not sized:
        return CommonFactors()
    heads = Counter(record.sizes.q_num_heads for record in sized).most_common(1)[0][0]
    dtype = Counter(record.dtype for record in sized).most_common(1)[0][0]
    return CommonFactors(q_num_heads=heads, dtype=dtype)


def case_options(record: SizedRecord, *, with_heads: bool = True) -> tuple[str, ...]:
    """The options of a case, without sizes and element type, one token each: heads, causality, windows and so on.

    Empty for a model that is more than one attention.

    Args:
        record: Record of the case.
        with_heads: Whether to include the head counts.
    """
    if record.spec is None:
        return ()
    heads = (f"hq{record.spec.q_num_heads}", f"hkv{record.spec.kv_num_heads}") if with_heads else ()
    return (*heads, *option_tokens(record.spec, record.past_seq_len or 0))


def case_in_words(record: Record, usual: CommonFactors, *, without: Iterable[CaseFactor] = ()) -> str:
    """Describe a case without its target: batch 1, length 512, d_k 64, causal.

    Args:
        without: Factors to omit.
    """
    if isinstance(record, SaturationRecord):
        head_dim = "" if record.head_dim is None else f"d_k {record.head_dim}"
        length = "" if record.kv_seq_len is None else f"length {record.kv_seq_len}"
        return ", ".join(part for part in (inputs_in_words(record, with_target=False), head_dim, length) if part)
    sizes = known_sizes(record) if isinstance(record, SizedRecord) else Sizes()
    if not isinstance(record, SizedRecord) or sizes.q_seq_len is None:
        return record.case or record.target
    is_usual = sizes.q_num_heads == usual.q_num_heads
    parts = {
        CaseFactor.BATCH: "" if sizes.batch_size is None else f"batch {sizes.batch_size}",
        CaseFactor.LENGTH: _length_words(sizes),
        CaseFactor.HEAD_DIM: f"d_k {sizes.head_dim}" if sizes.head_dim else "",
        CaseFactor.HEADS: "" if is_usual or not sizes.q_num_heads else f"{sizes.q_num_heads} heads",
        CaseFactor.OPTIONS: ", ".join(_option_words(record)),
        CaseFactor.DTYPE: "" if record.dtype == usual.dtype else record.dtype,
    }
    return ", ".join(text for axis, text in parts.items() if text and axis not in set(without))


def known_sizes(record: SizedRecord) -> Sizes:
    """The sizes of a case; the lengths of a larger model, which has no sizes of heads, are in the name of the case."""
    found = None if record.sizes.q_seq_len is not None else _SIZES_IN_NAME.search(record.case)
    if found is None:
        return record.sizes
    batch_size, queries, keys = (int(size) if size else None for size in found.groups())
    return msgspec.structs.replace(
        record.sizes, batch_size=batch_size, q_seq_len=queries, kv_seq_len=queries if keys is None else keys
    )


def target_in_words(target: str) -> str:
    """The name of a target as a reader knows it: decoder-self is causal decoder self-attention."""
    return _TARGET_WORDS.get(target, target)


def inputs_in_words(record: SaturationRecord, *, with_target: bool = True) -> str:
    """Describe the inputs of a saturation cell: sdpa, sigma^2 1, float32, scale none.

    Args:
        record: The label of a module states its weights ("as initialised"), because they determine sigma.
        with_target: Whether to include the target.
    """
    module = "" if record.target == "sdpa" else " as initialised"
    target = f"{record.target}{module}, " if with_target and record.target else ""
    sigma = "" if record.sigma is None else f"sigma^2 {record.sigma**2:.3g}"
    scale = f"scale {record.scale_rule}" if record.scale_rule else ""
    return target + ", ".join(part for part in (sigma, record.dtype, scale) if part)


def where_in_words(record: Record, usual: CommonFactors) -> str:
    """Describe what a record belongs to: target, arm, case."""
    parts = (record.target, series_name(record), case_in_words(record, usual))
    return ", ".join(dict.fromkeys(part for part in parts if part))


def series_name(record: Record) -> str:
    """Short name of what ran: the arm, or runtime, form and opset; with a mark if the operator was expanded."""
    mark = " (expanded)" if is_expanded(record) else ""
    if isinstance(record, TimingRecord) and record.arm:
        return f"{record.arm}{mark}"
    return " ".join(str(part) for part in (record.runtime, record.form, record.opset or "") if part) + mark


def is_expanded(record: Record) -> bool:
    """Whether the runtime replaced an attention operator by other nodes."""
    return isinstance(record, SizedRecord) and any("Attention" in operator for operator in record.expanded)


def is_output_check(record: Record) -> bool:
    """Whether a check judged an output of the model, which has a rule instead of a proven bound."""
    return isinstance(record, AgreementRecord) and record.subject is Subject.OUTPUT


def site_in_words(record: AgreementRecord | LocatedRecord | GateRecord) -> str:
    """Describe what was judged: the attention's name, output 'Y', the reading of 'attention'; "" without a name."""
    if not record.site:
        return ""
    match record.subject:
        case Subject.ATTENTION:
            return record.site
        case Subject.OUTPUT:
            return f"output '{record.site}'"
        case Subject.READING:
            return f"the reading of '{record.site}'"
        case _:
            assert_never(record.subject)


def arm_in_words(record: Record) -> str:
    """Long name of what ran: Attention (opset 23) on ort-cpu; Attention (opset 25, expanded) on ort-cpu."""
    if not (record.form and record.runtime):
        return series_name(record)
    notes = [f"opset {record.opset}"] if record.opset else []
    noted = ", ".join([*notes, *(["expanded"] if is_expanded(record) else [])])
    suffix = f" ({noted})" if noted else ""
    return f"{_FORM_WORDS.get(record.form, f'form {record.form}')}{suffix} on {record.runtime}"


def clock_in_words(clock: str) -> str:
    """Name the clock of a time."""
    return {"cpu": "CPU time", "wall": "wall time"}.get(clock, clock)


def join_words(words: Sequence[str]) -> str:
    """List words: a, b and c."""
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def plain(text: str, limit: int = 0) -> str:
    """The text on one line, without repeated spaces; cut between words if a limit is given."""
    line = " ".join(text.split())
    if not limit or len(line) <= limit:
        return line
    return line[: limit - 3].rsplit(" ", 1)[0] + "..."


def _length_words(sizes: Sizes) -> str:
    if sizes.kv_seq_len in (None, sizes.q_seq_len):
        return f"length {sizes.q_seq_len}"
    return f"{sizes.q_seq_len} queries, {sizes.kv_seq_len} keys"


def _option_words(record: SizedRecord) -> list[str]:
    spec = record.spec
    if spec is None:
        return []
    words = {
        f"{spec.kv_num_heads} key/value heads": spec.kv_num_heads != spec.q_num_heads,
        "causal": spec.is_causal,
        f"d_v {spec.v_head_dim}": spec.v_head_dim != spec.head_dim,
        f"left window {spec.left_window}": spec.left_window >= 0,
        f"right window {spec.right_window}": spec.right_window >= 0,
        f"past {record.past_seq_len}": spec.has_past,
        _MASK_WORDS[spec.mask]: spec.mask is not MaskKind.NONE,
        f"softcap {spec.softcap:g}": spec.softcap > 0,
        f"scale {scale_text(spec.scale)}": spec.scale != ScaleRule.INVERSE_SQRT,
        "layout BSH": spec.layout is Layout.BSH,
    }
    return [word for word, present in words.items() if present]
