"""Define the conformance features of attention in several nodes: the ONNX function body and the decomposed form.

Plain data: nothing here draws, runs or judges.
"""

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, Layout, MaskKind
from sdpa_onnx.workflows.conformance.feature import CaseSize, DisputedPoint, Feature, MaskRows, Operator
from sdpa_onnx.workflows.conformance.operators import CONTRIB_OPSET

__all__ = ["FORM_FEATURES"]

_BOOL, _FLOAT = MaskKind.BOOL, MaskKind.FLOAT


def _body(
    slug: str,
    title: str,
    spec: AttentionSpec,
    *sizes: CaseSize,
    first_opset: int = 23,
    rows: MaskRows = MaskRows.RANDOM,
    lengths: tuple[int, ...] = (),
) -> Feature:
    return Feature(
        slug=f"body-{slug}",
        group="function body",
        title=title,
        source="the function body of ONNX Attention; its node cases *_expanded",
        operator=Operator.BODY,
        specs=(spec,),
        sizes=sizes or (CaseSize(),),
        spreads=(1.0, 4.0),
        dtypes=(Dtype.FLOAT32,),
        first_opset=first_opset,
        mask_rows=rows,
        lengths=lengths,
        point=DisputedPoint.MASKED_ROW if rows is MaskRows.HIDDEN else DisputedPoint.NONE,
    )


def _form(slug: str, title: str, spec: AttentionSpec, *sizes: CaseSize, rows: MaskRows = MaskRows.RANDOM) -> Feature:
    return Feature(
        slug=f"decomposed-{slug}",
        group="decomposed",
        title=title,
        source="the nodes that sdpa_onnx exports below opset 23",
        operator=Operator.DECOMPOSED,
        specs=(spec,),
        sizes=sizes or (CaseSize(),),
        dtypes=(Dtype.FLOAT32,),
        first_opset=CONTRIB_OPSET,
        mask_rows=rows,
        point=DisputedPoint.MASKED_ROW if rows is MaskRows.HIDDEN else DisputedPoint.NONE,
    )


def _bnsh(**changes: object) -> AttentionSpec:
    return AttentionSpec(**{"q_num_heads": 4, "kv_num_heads": 2, "head_dim": 8, **changes})  # type: ignore[arg-type]


_DECOMPOSED = (
    _form("plain", "no mask", _bnsh(), CaseSize(), CaseSize(1, 1, 1)),
    _form("causal", "causal", _bnsh(is_causal=True), CaseSize(2, 5, 5), CaseSize(2, 3, 6), CaseSize(2, 6, 3)),
    _form("mask-bool", "boolean mask", _bnsh(mask=_BOOL)),
    _form("mask-float", "float mask", _bnsh(mask=_FLOAT)),
    _form("masked-row", "fully masked rows", _bnsh(mask=_BOOL), rows=MaskRows.HIDDEN),
    _form("softcap", "softcap with a mask", _bnsh(softcap=2.0, mask=_FLOAT)),
    _form(
        "past",
        "causal with a KV cache",
        _bnsh(has_past=True, is_causal=True),
        CaseSize(2, 3, 3, 4),
        CaseSize(2, 1, 3, 4),
    ),
    _form("lengths", "number of valid keys per sample", _bnsh(mask=MaskKind.LENGTHS)),
    _form("window", "causal window", _bnsh(is_causal=True, left_window=2), CaseSize(2, 7, 7)),
    _form("layout-3d", "3-D, v_head_dim different from head_dim", _bnsh(layout=Layout.BSH, v_head_dim=5)),
)

_BODIES = (
    _body("plain", "no mask", _bnsh()),
    _body("causal", "causal", _bnsh(is_causal=True), CaseSize(2, 5, 5), CaseSize(2, 3, 6)),
    _body("mask", "boolean mask", _bnsh(mask=_BOOL)),
    _body("masked-row", "fully masked rows", _bnsh(mask=_BOOL), CaseSize(2, 4, 4), rows=MaskRows.HIDDEN),
    _body("softcap", "softcap with a mask", _bnsh(softcap=2.0, mask=_FLOAT)),
    # onnx 1.23.2 does not inline a node with an omitted input before a present one: so the cache has a mask.
    _body(
        "past",
        "causal with a KV cache and a mask",
        _bnsh(has_past=True, is_causal=True, mask=_FLOAT),
        CaseSize(2, 3, 3, 4),
        CaseSize(2, 1, 3, 4),
    ),
    _body("layout-3d", "3-D, v_head_dim different from head_dim", _bnsh(layout=Layout.BSH, v_head_dim=5)),
    _body("window", "causal window", _bnsh(is_causal=True, left_window=2), CaseSize(2, 7, 7), first_opset=25),
)

FORM_FEATURES: tuple[Feature, ...] = (*_BODIES, *_DECOMPOSED)
