"""Define the conformance features of ONNX Attention without mask and cache: scale, softcap, heads, layout, types.

Plain data: nothing here draws, runs or judges.
"""

import numpy as np

from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, Layout, MaskKind
from sdpa_onnx.workflows.conformance.feature import CaseSize, DisputedPoint, Feature, MaskRows, Poison

__all__ = ["PLAIN_FEATURES"]

ALL_TYPES = (Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16, Dtype.FLOAT64)
_WIDE = (Dtype.FLOAT32,)
_NARROW = (Dtype.FLOAT16, Dtype.BFLOAT16)

_TEXT = "ONNX Attention, opset 23"

# Three heads and a batch of two: every dimension has a different size.
_PLAIN = AttentionSpec(q_num_heads=3, kv_num_heads=3, head_dim=8)
_DEFAULT_SCALE = _PLAIN.scale_value
_BSH = AttentionSpec(q_num_heads=3, kv_num_heads=3, head_dim=8, layout=Layout.BSH)


def _scaled(scale: float) -> AttentionSpec:
    # The attribute is stored as float32, so the oracle must use the same rounded number.
    return AttentionSpec(q_num_heads=3, kv_num_heads=3, head_dim=8, scale=float(np.float32(scale)))


def _grouped(q_num_heads: int, kv_num_heads: int, v_head_dim: int = 8, layout: Layout = Layout.BNSH) -> AttentionSpec:
    return AttentionSpec(
        q_num_heads=q_num_heads, kv_num_heads=kv_num_heads, head_dim=8, v_head_dim=v_head_dim, layout=layout
    )


_BASICS = (
    Feature(
        slug="plain",
        group="basics",
        title="softmax(QK^T / sqrt(head_size)) V",
        source=_TEXT,
        specs=(_PLAIN,),
        sizes=(CaseSize(), CaseSize(1, 1, 1), CaseSize(3, 2, 13)),
        dtypes=ALL_TYPES,
        probes=True,
    ),
    Feature(
        slug="batch-one",
        group="basics",
        title="batch of one, equal query and key lengths",
        source=_TEXT,
        specs=(_PLAIN,),
        sizes=(CaseSize(1, 4, 4),),
    ),
    Feature(
        slug="sizes-one-two-prime",
        group="basics",
        title="lengths 1, 2 and prime",
        source=_TEXT,
        specs=(_PLAIN, AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=1)),
        sizes=(CaseSize(1, 2, 2), CaseSize(1, 31, 37), CaseSize(1, 1, 17), CaseSize(2, 17, 1), CaseSize(2, 1, 1)),
        spreads=(1.0,),
    ),
    Feature(
        slug="value-width",
        group="basics",
        title="v_head_dim different from head_dim",
        source=_TEXT,
        specs=tuple(
            AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=head_dim, v_head_dim=v_head_dim)
            for head_dim, v_head_dim in ((8, 3), (4, 16), (64, 67))
        ),
        sizes=(CaseSize(2, 3, 5),),
        spreads=(1.0, 4.0),
    ),
    Feature(
        slug="long",
        group="basics",
        title="prime numbers of keys, above a thousand",
        source=_TEXT,
        specs=(AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=16),),
        sizes=(CaseSize(1, 3, 1009), CaseSize(1, 131, 257)),
        spreads=(1.0, 4.0),
    ),
    Feature(
        slug="no-queries",
        group="basics",
        title="no queries: an empty output",
        source="ONNX tensors may have a dimension of 0",
        specs=(_PLAIN,),
        sizes=(CaseSize(2, 0, 5),),
        spreads=(1.0,),
    ),
    Feature(
        slug="no-samples",
        group="basics",
        title="batch of zero: an empty output",
        source="ONNX tensors may have a dimension of 0",
        specs=(_PLAIN,),
        sizes=(CaseSize(0, 3, 5),),
        spreads=(1.0,),
    ),
)

_SCALES = (
    Feature(
        slug="scale",
        group="scale",
        title="scales of 0.5 and 2 times the default, and 1",
        source=_TEXT,
        specs=(_scaled(0.5 * _DEFAULT_SCALE), _scaled(2.0 * _DEFAULT_SCALE), _scaled(1.0)),
        spreads=(1.0, 4.0),
    ),
    Feature(
        slug="scale-tiny-and-large",
        group="scale",
        title="scales of 2^-20 and 4096",
        source=_TEXT,
        specs=(_scaled(2.0**-20), _scaled(4096.0)),
        spreads=(1.0, 4.0),
        dtypes=_WIDE,
    ),
    Feature(
        slug="scale-zero",
        group="scale",
        title="an explicit scale of 0: uniform weights",
        source=f"{_TEXT}: 1/sqrt(head_size) is the default of an omitted attribute",
        specs=(_scaled(0.0),),
    ),
    Feature(
        slug="scale-negative",
        group="scale",
        title="a negative scale: applied, or NaN from sqrt(scale)",
        source=f"{_TEXT}: 'Scaling factor applied to QK^T', but its pattern scales Q and K by sqrt(scale) each",
        specs=(_scaled(-0.5),),
        point=DisputedPoint.NEGATIVE_SCALE,
    ),
)

_SOFTCAPS = (
    Feature(
        slug="softcap",
        group="softcap",
        title="softcap alone",
        source=_TEXT,
        specs=tuple(AttentionSpec(q_num_heads=3, kv_num_heads=3, head_dim=8, softcap=cap) for cap in (0.5, 2.0, 30.0)),
        spreads=(1.0, 4.0),
        probes=True,
    ),
    Feature(
        slug="softcap-mask",
        group="softcap",
        title="softcap before a boolean mask that hides huge values",
        source="onnx issue 7865, PR 7867; onnxruntime PR 28379",
        specs=(AttentionSpec(q_num_heads=3, kv_num_heads=3, head_dim=8, softcap=0.5, mask=MaskKind.BOOL),),
        mask_rows=MaskRows.COLUMN,
        poison=Poison.HUGE_VALUE,
        readings=("softcap-after-mask",),
    ),
    Feature(
        slug="softcap-float-mask",
        group="softcap",
        title="softcap before a float mask",
        source="onnx PR 7867",
        specs=(AttentionSpec(q_num_heads=3, kv_num_heads=3, head_dim=8, softcap=2.0, mask=MaskKind.FLOAT),),
        readings=("softcap-after-mask",),
    ),
    Feature(
        slug="softcap-causal",
        group="softcap",
        title="softcap before the causal mask",
        source="onnx PR 7867",
        specs=(AttentionSpec(q_num_heads=3, kv_num_heads=3, head_dim=8, softcap=2.0, is_causal=True),),
        readings=("softcap-after-mask",),
    ),
)

_HEADS = (
    Feature(
        slug="gqa",
        group="heads",
        title="grouped-query attention: two to four query heads per key/value head",
        source=f"{_TEXT}; onnx reference before 1.23 tiled the heads",
        specs=(_grouped(4, 2), _grouped(6, 2, 3), _grouped(8, 2)),
        dtypes=ALL_TYPES,
        spreads=(1.0, 4.0),
        probes=True,
    ),
    Feature(
        slug="mqa",
        group="heads",
        title="multi-query attention: one key/value head",
        source=_TEXT,
        specs=(_grouped(4, 1),),
    ),
    Feature(
        slug="layout-3d",
        group="heads",
        title="3-D inputs, heads in the last dimension",
        source=f"{_TEXT}; onnx issue 7118",
        specs=(_BSH, _grouped(3, 3, 5, Layout.BSH)),
        dtypes=ALL_TYPES,
        spreads=(1.0, 4.0),
        probes=True,
    ),
    Feature(
        slug="layout-3d-gqa",
        group="heads",
        title="3-D inputs with grouped-query heads",
        source=_TEXT,
        specs=(_grouped(6, 3, layout=Layout.BSH), _grouped(4, 1, 3, layout=Layout.BSH)),
        spreads=(1.0, 4.0),
    ),
    Feature(
        slug="layout-3d-causal-softcap",
        group="heads",
        title="3-D inputs, causal, with softcap",
        source=_TEXT,
        specs=(
            AttentionSpec(
                q_num_heads=4, kv_num_heads=2, head_dim=8, layout=Layout.BSH, is_causal=True, softcap=2.0, scale=0.375
            ),
        ),
    ),
    Feature(
        slug="layout-3d-mask",
        group="heads",
        title="3-D inputs with a 2-D float mask",
        source=_TEXT,
        specs=(AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8, layout=Layout.BSH, mask=MaskKind.FLOAT),),
        mask_shape="ST",
    ),
)


def _qk(
    slug: str, title: str, mode: QkOutputMode, *, first_opset: int = 23, mask_shape: str = "ST", **changes: object
) -> Feature:
    return Feature(
        slug=f"qk-{slug}",
        group="scores as output",
        title=title,
        source=f"{_TEXT}, qk_matmul_output_mode {int(mode)}",
        specs=(AttentionSpec(**{"q_num_heads": 4, "kv_num_heads": 2, "head_dim": 8, **changes}),),  # type: ignore[arg-type]
        # A causal cache with unequal lengths has a feature of its own.
        sizes=(CaseSize(2, 4, 4, 3) if changes.get("has_past") else CaseSize(2, 4, 6),),
        spreads=(1.0, 4.0),
        qk_mode=mode,
        mask_shape=mask_shape,
        first_opset=first_opset,
    )


_SCORES, _CAPPED, _MASKED, _WEIGHTS = QkOutputMode
_QK_OUTPUTS = (
    _qk("raw", "QK^T times scale", _SCORES),
    _qk("raw-softcap", "QK^T times scale, before the softcap", _SCORES, softcap=2.0),
    _qk("raw-past", "QK^T times scale over cached and new keys", _SCORES, has_past=True, mask=MaskKind.FLOAT),
    _qk("softcap", "after the softcap", _CAPPED, softcap=2.0, mask=MaskKind.FLOAT),
    _qk("softcap-off", "after a softcap of 0: QK^T times scale", _CAPPED, mask=MaskKind.FLOAT),
    _qk("mask", "after a float mask", _MASKED, mask=MaskKind.FLOAT),
    _qk("mask-bool", "after a boolean mask", _MASKED, mask=MaskKind.BOOL),
    _qk("mask-causal", "after a mask and the causal mask", _MASKED, is_causal=True, mask=MaskKind.FLOAT),
    _qk("mask-softcap", "after softcap and mask", _MASKED, softcap=2.0, mask=MaskKind.FLOAT),
    _qk("mask-past", "after a mask over the cache", _MASKED, has_past=True, mask=MaskKind.FLOAT),
    _qk(
        "mask-past-causal",
        "after a mask and the causal mask over the cache",
        _MASKED,
        mask_shape="BHST",
        has_past=True,
        is_causal=True,
        mask=MaskKind.FLOAT,
    ),
    _qk("weights", "the attention weights", _WEIGHTS, mask=MaskKind.FLOAT),
    _qk("weights-causal", "the attention weights, causal with softcap", _WEIGHTS, is_causal=True, softcap=2.0),
    _qk("weights-past", "the attention weights over the cache", _WEIGHTS, has_past=True, is_causal=True),
    Feature(
        slug="qk-weights-masked-row",
        group="scores as output",
        title="the attention weights of a fully masked row are zero",
        source="onnx PR 8068",
        specs=(AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, mask=MaskKind.BOOL),),
        sizes=(CaseSize(2, 4, 6),),
        mask_shape="ST",
        mask_rows=MaskRows.HIDDEN,
        qk_mode=_WEIGHTS,
    ),
    Feature(
        slug="qk-mask-window",
        group="scores as output",
        title="after a window",
        source="ONNX Attention, opset 25",
        specs=(AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, is_causal=True, left_window=2),),
        sizes=(CaseSize(2, 6, 6),),
        qk_mode=_MASKED,
        first_opset=25,
    ),
)

_PRECISIONS = (
    *(
        Feature(
            slug=f"softmax-precision-{dtype}",
            group="precision",
            title=f"softmax in {dtype}",
            source=f"{_TEXT}, softmax_precision {element}",
            specs=(_PLAIN,),
            sizes=(CaseSize(2, 5, 29),),
            dtypes=(Dtype.FLOAT32, *_NARROW),
            attributes={"softmax_precision": element},
        )
        for element, dtype in ((1, "float32"), (10, "float16"), (11, "float64"), (16, "bfloat16"))
    ),
    Feature(
        slug="large-logits",
        group="precision",
        title="logits of spread 60: no overflow in exp",
        source="softmax subtracts the maximum before exp",
        specs=(_PLAIN,),
        spreads=(60.0,),
        dtypes=ALL_TYPES,
    ),
    Feature(
        slug="product-beyond-float16",
        group="precision",
        title="QK^T above 65504, the scaled score below",
        source=f"{_TEXT}: 'scale Q, K by sqrt(scale) before matmul'; onnxruntime issue 28195",
        # 1/sqrt(4096) = 1/64: scores of spread 3000 are products of spread 192,000.
        specs=(AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=4096),),
        sizes=(CaseSize(1, 3, 5),),
        spreads=(3000.0,),
        dtypes=(Dtype.FLOAT16,),
    ),
)

PLAIN_FEATURES: tuple[Feature, ...] = (
    *_BASICS,
    *_SCALES,
    *_SOFTCAPS,
    *_HEADS,
    *_QK_OUTPUTS,
    *_PRECISIONS,
)
