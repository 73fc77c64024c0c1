"""Define the conformance features of ONNX Attention with a KV cache: past, present, and causality over both.

Plain data: nothing here draws, runs or judges.
"""

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, Layout
from sdpa_onnx.workflows.conformance.feature import CaseSize, DisputedPoint, Feature

__all__ = ["PAST_FEATURES"]

_ALL_TYPES = (Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16, Dtype.FLOAT64)
_TEXT = "ONNX Attention, opset 23, 'offset = past_sequence_length'; onnxruntime PR 29050"
_OFFSETS = ("causal-upper-left", "causal-bottom-right", "causal-one-query-sees-all", "causal-ignored")


def _cached(
    *,
    heads: tuple[int, int] = (3, 3),
    v_head_dim: int = 8,
    is_causal: bool = False,
    layout: Layout = Layout.BNSH,
) -> AttentionSpec:
    return AttentionSpec(
        q_num_heads=heads[0],
        kv_num_heads=heads[1],
        head_dim=8,
        v_head_dim=v_head_dim,
        is_causal=is_causal,
        layout=layout,
        has_past=True,
    )


def _causal(slug: str, title: str, *sizes: CaseSize, first_opset: int = 23) -> Feature:
    return Feature(
        slug=f"causal-past-{slug}",
        group="cache",
        title=f"causal, {title}",
        source=_TEXT,
        specs=(_cached(is_causal=True),),
        sizes=sizes,
        first_opset=first_opset,
        probes=True,
        point=DisputedPoint.ALIGNMENT,
        readings=_OFFSETS,
    )


PAST_FEATURES: tuple[Feature, ...] = (
    Feature(
        slug="past",
        group="cache",
        title="cached and new keys concatenated, and returned bit by bit",
        source="ONNX Attention, opset 23, past_key and present_key",
        specs=(_cached(),),
        sizes=(CaseSize(2, 3, 4, 5), CaseSize(1, 1, 1, 7)),
        dtypes=_ALL_TYPES,
        probes=True,
    ),
    _causal("one-key", "one query and its own key", CaseSize(2, 1, 1, 5), CaseSize(1, 1, 1, 12)),
    _causal(
        "one-query", "one query and several new keys", CaseSize(2, 1, 3, 4), CaseSize(1, 1, 9, 3), CaseSize(2, 1, 2, 1)
    ),
    _causal("several", "equal numbers of queries and new keys", CaseSize(2, 4, 4, 3), CaseSize(1, 2, 2, 9)),
    _causal("other-lengths", "more or fewer new keys than queries", CaseSize(2, 3, 5, 2), CaseSize(2, 5, 3, 2)),
    Feature(
        slug="past-empty",
        group="cache",
        title="an empty cache",
        source="the first step of a decoder",
        specs=(_cached(), _cached(is_causal=True)),
        sizes=(CaseSize(2, 3, 3, 0),),
        spreads=(1.0,),
    ),
    Feature(
        slug="past-no-new-keys",
        group="cache",
        title="no new keys: every key is from the cache",
        source="ONNX tensors may have a dimension of 0",
        specs=(_cached(),),
        sizes=(CaseSize(2, 3, 0, 5),),
        spreads=(1.0,),
    ),
    Feature(
        slug="past-gqa",
        group="cache",
        title="with grouped-query heads",
        source="ONNX Attention, opset 23",
        specs=(_cached(heads=(6, 2)), _cached(heads=(4, 1), is_causal=True)),
        sizes=(CaseSize(2, 3, 3, 5), CaseSize(2, 1, 1, 6)),
        spreads=(1.0, 4.0),
    ),
    Feature(
        slug="past-value-width",
        group="cache",
        title="v_head_dim different from head_dim",
        source="ONNX Attention, opset 23",
        specs=(_cached(heads=(4, 2), v_head_dim=3), _cached(v_head_dim=11, is_causal=True)),
        sizes=(CaseSize(2, 3, 3, 4),),
        spreads=(1.0, 4.0),
    ),
    Feature(
        slug="past-layout-3d",
        group="cache",
        title="3-D queries, keys and values, 4-D cache",
        source="ONNX Attention, opset 23; onnx issue 7118",
        specs=(
            _cached(layout=Layout.BSH),
            _cached(heads=(6, 2), v_head_dim=3, is_causal=True, layout=Layout.BSH),
        ),
        sizes=(CaseSize(2, 3, 3, 5),),
        spreads=(1.0, 4.0),
    ),
)
