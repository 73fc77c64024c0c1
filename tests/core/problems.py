"""Small attentions that between them use every convention, as data."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, Layout, MaskKind

Change = Callable[[AttentionInputs, np.random.Generator], AttentionInputs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A case by its differences from a small default, and what its inputs then become."""

    name: str
    spec: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    change: Change | None = None

    def case(self, dtype: Dtype = Dtype.FLOAT64) -> AttentionCase:
        spec = AttentionSpec(**{"q_num_heads": 2, "kv_num_heads": 2, "head_dim": 5, **self.spec})
        return AttentionCase(spec=spec, dtype=dtype, **{"batch_size": 2, "q_seq_len": 4, "kv_seq_len": 6, **self.sizes})

    def inputs(self, *, spread: float = 1.0, seed: int = 0, dtype: Dtype = Dtype.FLOAT64) -> AttentionInputs:
        drawn = draw_inputs(self.case(dtype), spread=spread, seed=seed)
        return self.change(drawn, np.random.default_rng(seed)) if self.change else drawn


def lengths(*counts: int) -> Change:
    return lambda inputs, _: replace(inputs, nonpad_kv_seqlen=np.array(counts, dtype=np.int64))


def bool_mask(*shape: int) -> Change:
    return lambda inputs, rng: replace(inputs, attn_mask=rng.random(shape) < 0.6)


def float_mask(*shape: int, hidden: float = 0.3) -> Change:
    def change(inputs: AttentionInputs, rng: np.random.Generator) -> AttentionInputs:
        mask = np.where(rng.random(shape) < hidden, -np.inf, 2.0 * rng.standard_normal(shape))
        return replace(inputs, attn_mask=mask.astype(inputs.query.dtype))

    return change


def all_hidden(inputs: AttentionInputs, rng: np.random.Generator) -> AttentionInputs:
    return replace(inputs, attn_mask=np.zeros((4, 6), dtype=bool))


GQA = {"q_num_heads": 6, "kv_num_heads": 2}
MQA = {"q_num_heads": 3, "kv_num_heads": 1}
BOOL, FLOAT, LENGTHS = MaskKind.BOOL, MaskKind.FLOAT, MaskKind.LENGTHS

PROBLEMS: tuple[Problem, ...] = (
    Problem(name="plain"),
    Problem(name="one-query-one-key", sizes={"q_seq_len": 1, "kv_seq_len": 1}),
    Problem(name="gqa", spec=GQA),
    Problem(name="mqa", spec=MQA),
    Problem(name="wide-value", spec={"v_head_dim": 8}),
    Problem(name="narrow-value", spec={**GQA, "v_head_dim": 1}),
    Problem(name="causal", spec={"is_causal": True}),
    Problem(name="causal-more-queries", spec={"is_causal": True}, sizes={"q_seq_len": 6, "kv_seq_len": 4}),
    Problem(name="past", spec={**GQA, "has_past": True, "v_head_dim": 3}, sizes={"past_seq_len": 3}),
    Problem(name="causal-past", spec={"is_causal": True, "has_past": True}, sizes={"past_seq_len": 3, "kv_seq_len": 4}),
    Problem(name="empty-past", spec={"is_causal": True, "has_past": True}, sizes={"past_seq_len": 0, "kv_seq_len": 4}),
    Problem(
        name="decode",
        spec={**MQA, "is_causal": True, "has_past": True},
        sizes={"q_seq_len": 1, "kv_seq_len": 1, "past_seq_len": 7},
    ),
    Problem(name="lengths", spec={"mask": LENGTHS}, change=lengths(3, 6)),
    Problem(name="lengths-zero", spec={"mask": LENGTHS}, change=lengths(0, 6)),
    Problem(name="causal-lengths", spec={"mask": LENGTHS, "is_causal": True}, change=lengths(4, 6)),
    Problem(name="causal-lengths-negative-offset", spec={"mask": LENGTHS, "is_causal": True}, change=lengths(2, 1)),
    Problem(name="left-window", spec={"left_window": 1}),
    Problem(name="right-window", spec={"right_window": 0}),
    Problem(name="both-windows", spec={"left_window": 0, "right_window": 2}),
    Problem(
        name="window-causal-past",
        spec={"left_window": 2, "right_window": 1, "is_causal": True, "has_past": True},
        sizes={"past_seq_len": 3, "kv_seq_len": 4},
    ),
    Problem(name="window-lengths", spec={"left_window": 1, "right_window": 1, "mask": LENGTHS}, change=lengths(5, 2)),
    Problem(name="window-beyond-keys", spec={"left_window": 0}, sizes={"q_seq_len": 6, "kv_seq_len": 3}),
    Problem(name="bool-mask", spec={"mask": BOOL}),
    Problem(name="bool-mask-causal", spec={"mask": BOOL, "is_causal": True}),
    Problem(name="float-mask", spec={"mask": FLOAT}, change=float_mask(2, 2, 4, 6)),
    Problem(
        name="float-mask-causal-window",
        spec={"mask": FLOAT, "is_causal": True, "left_window": 2},
        change=float_mask(2, 1, 4, 6),
    ),
    *(
        Problem(name=f"bool-rank-{len(shape)}", spec={"mask": BOOL}, change=bool_mask(*shape))
        for shape in ((6,), (4, 6), (2, 4, 6), (2, 2, 4, 6))
    ),
    *(
        Problem(name=f"float-rank-{len(shape)}", spec={"mask": FLOAT, **GQA}, change=float_mask(*shape))
        for shape in ((6,), (4, 6), (6, 4, 6), (2, 6, 4, 6))
    ),
    Problem(name="bool-one-row", spec={"mask": BOOL}, change=bool_mask(2, 1, 1, 6)),
    Problem(name="float-one-batch", spec={"mask": FLOAT}, change=float_mask(1, 2, 4, 6)),
    Problem(name="bool-short", spec={"mask": BOOL}, change=bool_mask(4, 3)),
    Problem(
        name="float-short",
        spec={"mask": FLOAT, "has_past": True},
        sizes={"past_seq_len": 2},
        change=float_mask(2, 1, 4, 5),
    ),
    Problem(name="float-one-column", spec={"mask": FLOAT}, change=float_mask(4, 1, hidden=0.0)),
    Problem(name="all-hidden", spec={"mask": BOOL}, change=all_hidden),
    Problem(name="softcap", spec={"softcap": 0.7}),
    Problem(name="softcap-float-mask", spec={"softcap": 1.5, "mask": FLOAT, **GQA}, change=float_mask(4, 6)),
    Problem(name="scale-zero", spec={"scale": 0.0}),
    Problem(name="scale-negative", spec={"scale": -0.8, "is_causal": True}),
    Problem(name="scale-none", spec={"scale": "none"}),
    Problem(name="scale-inverse", spec={"scale": "1/d_k"}),
    Problem(name="bsh", spec={"layout": Layout.BSH}),
    Problem(
        name="bsh-gqa-causal-past",
        spec={"layout": Layout.BSH, **GQA, "v_head_dim": 3, "is_causal": True, "has_past": True},
        sizes={"past_seq_len": 2, "kv_seq_len": 4},
    ),
    Problem(name="no-queries", sizes={"q_seq_len": 0}),
    Problem(name="no-keys", sizes={"kv_seq_len": 0}),
    Problem(name="no-batch", sizes={"batch_size": 0}),
)

BY_NAME = {problem.name: problem for problem in PROBLEMS}
