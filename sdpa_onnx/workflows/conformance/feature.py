"""Define the data type of a conformance feature: one behaviour of an attention operator and how to draw its cases.

Nothing here draws, runs or judges.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from sdpa_onnx.core.attention.inputs import LADDER
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype

__all__ = ["CaseSize", "DisputedPoint", "Feature", "FeatureCheck", "MaskRows", "Operator", "Poison"]


class Operator(StrEnum):
    """The operator under test; the value is used in records and by `--operator`."""

    ATTENTION = "Attention"
    MULTI_HEAD = "com.microsoft.MultiHeadAttention"
    GROUP_QUERY = "com.microsoft.GroupQueryAttention"
    PACKED = "com.microsoft.Attention"
    BODY = "Attention function body"
    DECOMPOSED = "decomposed"


class CaseSize(NamedTuple):
    """Batch size, and numbers of queries, new keys and cached keys."""

    batch_size: int = 2
    q_seq_len: int = 5
    kv_seq_len: int = 7
    past_seq_len: int = 0


class MaskRows(StrEnum):
    """The pattern of a mask's rows.

    Every kind but RANDOM and ALL applies its pattern to whole rows. The other elements of a float mask are random.
    """

    RANDOM = "random"
    ALL = "all keys visible"
    HIDDEN = "rows without a visible key"
    SAMPLE = "a sample without a visible key"
    FUTURE = "only what causality hides is visible"
    LOWEST = "rows of the lowest finite number"
    LARGE = "rows of -10000"
    COLUMN = "one key hidden from all"
    RIGHT_PADDED = "the last keys of each sample hidden"
    LEFT_PADDED = "the first keys of each sample hidden"


class Poison(StrEnum):
    """A value written to keys or values that no query attends to (for the last one: that some queries do)."""

    NONE = ""
    HUGE_VALUE = "huge value of a hidden key"
    HUGE_KEY = "huge hidden key"
    NAN_VALUE = "NaN value of a hidden key"
    NAN_KEY = "NaN hidden key"
    NAN_SEEN = "NaN value of a visible key"


class FeatureCheck(StrEnum):
    """A property to check in addition to agreement with the oracle."""

    NONE = ""
    REPEAT = "a second run gives the same bits"
    KEPT = "an output stays as it was when the next run has ended"
    UNCHANGED = "inputs are as they were"


class DisputedPoint(StrEnum):
    """A point on which specifications and runtimes differ, so that the record always names the behaviour."""

    NONE = ""
    MASKED_ROW = "masked-row"
    LOWEST_ROW = "lowest-row"
    ALIGNMENT = "causal-alignment"
    NAN = "hidden-nan"
    NEGATIVE_SCALE = "negative-scale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One behaviour of an operator, with the cases that test it.

    Every spec is run at every size and spread, in a model with dynamic shapes; the
    first combination, in float32, also in a model with static shapes.

    Args:
        slug: Stable name, such as `causal-past-one-query`.
        group: Heading in tables.
        title: Short description.
        source: Operator specification, pull request or issue that defines it.
        operator: The operator under test.
        specs: The attentions to compute.
        sizes: Sizes, run in this order.
        spreads: Standard deviations of the logits.
        first_opset: First opset whose operator specification includes it.
        dtypes: Element types that it is run with by default.
        mask_shape: Axes of the mask: B batch, H heads, S queries, T keys, P fewer than all keys, 1.
        mask_rows: See `MaskRows`.
        mask_fill: Number that a float mask adds to a hidden key, with 0 for all others; None = -inf, with random
            numbers for all others.
        lengths: Number of valid keys of each sample, repeated as needed; () = drawn.
        poison: See `Poison`.
        qk_mode: Mode of the fourth output, or None for three outputs.
        attributes: Further attributes of the node.
        form: Kind of a contrib operator's mask: "keys", "queries", "lengths", "ends-and-starts" or "bias";
            "no-bias" leaves out the bias of its projection.
        alignments: Names of the causal alignments that the operator specification permits; () = only the oracle's.
        probes: Whether the structural probes of the first spec are run too, at the first size.
        check: See `FeatureCheck`.
        point: The disputed point that it tests, if any.
        readings: Names of readings in `core.faults.readings` that disagree with the oracle here.
    """

    slug: str
    group: str
    title: str
    source: str
    operator: Operator = Operator.ATTENTION
    specs: tuple[AttentionSpec, ...]
    sizes: tuple[CaseSize, ...] = (CaseSize(),)
    spreads: tuple[float, ...] = LADDER
    first_opset: int = 23
    dtypes: tuple[Dtype, ...] = (Dtype.FLOAT32, Dtype.FLOAT16)
    mask_shape: str = "B1ST"
    mask_rows: MaskRows = MaskRows.RANDOM
    mask_fill: float | None = None
    lengths: tuple[int, ...] = ()
    poison: Poison = Poison.NONE
    qk_mode: QkOutputMode | None = None
    attributes: Mapping[str, int | float] = field(default_factory=dict)
    form: str = ""
    alignments: tuple[str, ...] = ()
    probes: bool = False
    check: FeatureCheck = FeatureCheck.NONE
    point: DisputedPoint = DisputedPoint.NONE
    readings: tuple[str, ...] = ()
