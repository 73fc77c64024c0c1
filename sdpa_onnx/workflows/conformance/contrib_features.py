"""Define the conformance features of the com.microsoft attention operators.

Plain data: nothing here draws, runs or judges.
"""

from sdpa_onnx.core.attention.spec import AttentionSpec, Layout, MaskKind
from sdpa_onnx.workflows.conformance.feature import CaseSize, DisputedPoint, Feature, MaskRows, Operator
from sdpa_onnx.workflows.conformance.operators import CONTRIB_OPSET

__all__ = ["CONTRIB_FEATURES"]

_SOURCE = "onnxruntime docs/ContribOperators.md, com.microsoft version 1"
# Source: the same, mask_filter_value "Default value is -10000.0f".
_FILTER = -10000.0
_NONE, _FLOAT = MaskKind.NONE, MaskKind.FLOAT


def _bsh(  # one argument per property in which the features differ
    heads: tuple[int, int] = (3, 3),
    *,
    v_head_dim: int = 8,
    mask: MaskKind = _NONE,
    is_causal: bool = False,
    has_past: bool = False,
    softcap: float = 0.0,
    left: int = -1,
    scale: float | None = None,
) -> AttentionSpec:
    spec = {"scale": scale} if scale is not None else {}
    return AttentionSpec(
        q_num_heads=heads[0],
        kv_num_heads=heads[1],
        head_dim=8,
        v_head_dim=v_head_dim,
        mask=mask,
        is_causal=is_causal,
        has_past=has_past,
        softcap=softcap,
        left_window=left,
        layout=Layout.BSH,
        **spec,  # type: ignore[arg-type]  # left out for the default
    )


def _contrib(  # noqa: PLR0913  # the columns of a table
    operator: Operator,
    slug: str,
    title: str,
    spec: AttentionSpec,
    *sizes: CaseSize,
    form: str = "",
    mask_shape: str = "B11T",
    mask_rows: MaskRows = MaskRows.RANDOM,
    mask_fill: float | None = _FILTER,
    point: DisputedPoint = DisputedPoint.NONE,
    alignments: tuple[str, ...] = (),
) -> Feature:
    prefix = {Operator.MULTI_HEAD: "mha", Operator.GROUP_QUERY: "gqa-operator", Operator.PACKED: "packed"}[operator]
    return Feature(
        slug=f"{prefix}-{slug}",
        group=operator.value,
        title=title,
        source=_SOURCE,
        operator=operator,
        specs=(spec,),
        sizes=sizes or (CaseSize(2, 5, 5),),
        first_opset=CONTRIB_OPSET,
        form=form,
        mask_shape=mask_shape,
        mask_rows=mask_rows,
        mask_fill=mask_fill,
        point=point,
        alignments=alignments,
    )


_MHA, _GQA, _PACKED = Operator.MULTI_HEAD, Operator.GROUP_QUERY, Operator.PACKED
# "Whether every token can only attend to previous tokens" does not define the alignment of unequal lengths.
_EITHER = ("past", "upper-left", "bottom-right")

_MULTI_HEAD = (
    _contrib(_MHA, "plain", "no mask", _bsh(), CaseSize(2, 5, 7), CaseSize(1, 1, 1)),
    _contrib(_MHA, "value-width", "v_head_dim different from head_dim", _bsh(v_head_dim=5), CaseSize(2, 5, 7)),
    _contrib(_MHA, "scale", "scale attribute", _bsh(scale=0.7), CaseSize(2, 5, 7)),
    _contrib(_MHA, "mask-keys", "padding mask (batch, keys)", _bsh(mask=_FLOAT), CaseSize(2, 5, 7), form="keys"),
    _contrib(
        _MHA,
        "mask-lengths",
        "padding mask (batch,): number of valid keys",
        _bsh(mask=_FLOAT),
        CaseSize(2, 5, 7),
        form="lengths",
        mask_rows=MaskRows.RIGHT_PADDED,
    ),
    _contrib(
        _MHA,
        "mask-queries",
        "padding mask (batch, queries, keys)",
        _bsh(mask=_FLOAT),
        CaseSize(2, 5, 7),
        form="queries",
        mask_shape="B1ST",
    ),
    *(
        _contrib(
            _MHA,
            f"bias-{slug}",
            f"attention_bias {axes}",
            _bsh(mask=_FLOAT),
            CaseSize(2, 5, 7),
            form="bias",
            mask_shape=shape,
            mask_fill=None,
        )
        for slug, axes, shape in (
            ("bhst", "(batch, heads, queries, keys)", "BHST"),
            ("11st", "(1, 1, queries, keys)", "11ST"),
            ("1hst", "(1, heads, queries, keys)", "1HST"),
        )
    ),
    _contrib(_MHA, "past", "KV cache", _bsh(has_past=True), CaseSize(2, 3, 3, 4), CaseSize(2, 1, 1, 6)),
    _contrib(
        _MHA,
        "causal",
        "unidirectional, equal query and key lengths",
        _bsh(is_causal=True),
        CaseSize(2, 5, 5),
        point=DisputedPoint.ALIGNMENT,
    ),
    _contrib(
        _MHA,
        "causal-lengths-differ",
        "unidirectional, fewer queries than keys",
        _bsh(is_causal=True),
        CaseSize(2, 2, 3),
        CaseSize(1, 4, 7),
        point=DisputedPoint.ALIGNMENT,
        alignments=_EITHER,
    ),
    _contrib(
        _MHA,
        "causal-past",
        "unidirectional with a KV cache",
        _bsh(is_causal=True, has_past=True),
        CaseSize(2, 2, 2, 4),
        CaseSize(1, 1, 1, 5),
        point=DisputedPoint.ALIGNMENT,
    ),
    _contrib(
        _MHA,
        "causal-past-lengths-differ",
        "unidirectional with a KV cache, fewer queries than new keys",
        _bsh(is_causal=True, has_past=True),
        CaseSize(1, 2, 3, 4),
        point=DisputedPoint.ALIGNMENT,
        alignments=_EITHER,
    ),
)

# An empty cache is the usual input for a prompt.
_EMPTY = CaseSize(1, 5, 5, 0)
_CACHED = _bsh((4, 2), is_causal=True, has_past=True)
_GROUP_QUERY = (
    _contrib(_GQA, "prompt", "causal prompt, empty cache", _CACHED, _EMPTY, CaseSize(1, 1, 1, 0)),
    _contrib(_GQA, "no-cache", "causal prompt, no cache input", _bsh((4, 2), is_causal=True), CaseSize(1, 5, 5)),
    _contrib(_GQA, "samples", "batch of two, empty cache", _CACHED, CaseSize(2, 5, 5, 0)),
    _contrib(_GQA, "mqa", "one key/value head", _bsh((4, 1), is_causal=True, has_past=True), _EMPTY),
    _contrib(_GQA, "bidirectional", "causal = 0", _bsh((4, 2), has_past=True), _EMPTY),
    _contrib(_GQA, "scale", "scale attribute", _bsh((4, 2), is_causal=True, has_past=True, scale=0.7), _EMPTY),
    _contrib(_GQA, "softcap", "softcap", _bsh((4, 2), is_causal=True, has_past=True, softcap=2.0), _EMPTY),
    _contrib(_GQA, "token", "one token with a KV cache", _CACHED, CaseSize(1, 1, 1, 6), CaseSize(1, 1, 1, 1)),
    _contrib(_GQA, "token-samples", "one token, batch of two, with a KV cache", _CACHED, CaseSize(2, 1, 1, 6)),
    _contrib(_GQA, "tokens", "several tokens with a KV cache", _CACHED, CaseSize(1, 3, 3, 6)),
    *(
        _contrib(
            _GQA,
            f"window-{left + 1}",
            f"a window of {left + 1}, including the query's own key",
            _bsh((2, 1), is_causal=True, has_past=True, left=left),
            CaseSize(1, 8, 8, 0),
        )
        for left in (0, 1, 4)
    ),
    _contrib(
        _GQA,
        "window-token",
        "a window of 3 with a KV cache",
        _bsh((4, 2), is_causal=True, has_past=True, left=2),
        CaseSize(1, 1, 1, 7),
    ),
    _contrib(
        _GQA,
        "bias",
        "attention_bias (1, 1, queries, keys)",
        _bsh((4, 2), is_causal=True, has_past=True, mask=_FLOAT),
        _EMPTY,
        mask_shape="11ST",
        form="bias",
        mask_fill=None,
    ),
)

_PACKED_FEATURES = (
    _contrib(_PACKED, "plain", "no mask", _bsh(), CaseSize(2, 5, 5), CaseSize(1, 1, 1)),
    _contrib(_PACKED, "no-bias", "no mask, projection without bias", _bsh(), form="no-bias"),
    _contrib(_PACKED, "scale", "scale attribute", _bsh(scale=0.7)),
    _contrib(_PACKED, "value-width", "v_head_dim different from head_dim", _bsh(v_head_dim=5)),
    _contrib(_PACKED, "causal", "unidirectional", _bsh(is_causal=True)),
    _contrib(_PACKED, "past", "KV cache", _bsh(has_past=True), CaseSize(2, 3, 3, 4)),
    _contrib(
        _PACKED,
        "causal-past",
        "unidirectional with a KV cache",
        _bsh(is_causal=True, has_past=True),
        CaseSize(2, 3, 3, 4),
        CaseSize(2, 1, 1, 4),
    ),
    _contrib(_PACKED, "mask-keys", "mask (batch, keys)", _bsh(mask=_FLOAT), form="keys"),
    _contrib(
        _PACKED, "mask-queries", "mask (batch, queries, keys)", _bsh(mask=_FLOAT), form="queries", mask_shape="B1ST"
    ),
    _contrib(
        _PACKED,
        "mask-lengths",
        "mask (batch,): number of valid keys",
        _bsh(mask=_FLOAT),
        form="lengths",
        mask_rows=MaskRows.RIGHT_PADDED,
    ),
    _contrib(
        _PACKED,
        "mask-ends-and-starts",
        "mask (2 x batch,): padding on the left",
        _bsh(mask=_FLOAT),
        form="ends-and-starts",
        mask_rows=MaskRows.LEFT_PADDED,
    ),
    _contrib(
        _PACKED,
        "bias",
        "attention_bias (1, heads, queries, keys)",
        _bsh(mask=_FLOAT),
        form="bias",
        mask_shape="1HST",
        mask_fill=None,
    ),
)

CONTRIB_FEATURES: tuple[Feature, ...] = (*_MULTI_HEAD, *_GROUP_QUERY, *_PACKED_FEATURES)
