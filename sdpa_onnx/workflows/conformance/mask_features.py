"""Define the conformance features of ONNX Attention that mask keys: causality, windows, lengths, masks, masked rows.

Plain data: nothing here draws, runs or judges.
"""

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, MaskKind
from sdpa_onnx.workflows.conformance.feature import CaseSize, DisputedPoint, Feature, MaskRows, Poison

__all__ = ["MASK_FEATURES"]

_ALL_TYPES = (Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16, Dtype.FLOAT64)
_TEXT = "ONNX Attention, opset 23"
_ALIGNMENT = "ONNX Attention, opset 25, 'offset'; onnxruntime issue 29020"
_OFFSETS = ("causal-upper-left", "causal-bottom-right", "causal-ignored", "causal-strict", "causal-one-too-many")
_ROWS = ("masked-row-nan", "masked-row-mean", "masked-row-unmasked")
_POINT = DisputedPoint.MASKED_ROW
_MASKED_ROW = "onnx PR 8068: the output of a fully masked row is zero, not NaN"


def _spec(  # one argument per rule that masks keys
    *,
    heads: tuple[int, int] = (3, 3),
    mask: MaskKind = MaskKind.NONE,
    is_causal: bool = False,
    left: int = -1,
    right: int = -1,
    has_past: bool = False,
) -> AttentionSpec:
    return AttentionSpec(
        q_num_heads=heads[0],
        kv_num_heads=heads[1],
        head_dim=8,
        mask=mask,
        is_causal=is_causal,
        left_window=left,
        right_window=right,
        has_past=has_past,
    )


_BOOL, _FLOAT, _LENGTHS = MaskKind.BOOL, MaskKind.FLOAT, MaskKind.LENGTHS
_CAUSAL = _spec(is_causal=True)

_CAUSALITY = (
    Feature(
        slug="causal",
        group="causal",
        title="equal query and key lengths",
        source=_TEXT,
        specs=(_CAUSAL,),
        sizes=(CaseSize(2, 5, 5), CaseSize(1, 1, 1)),
        dtypes=_ALL_TYPES,
        probes=True,
        point=DisputedPoint.ALIGNMENT,
        readings=_OFFSETS,
    ),
    *(
        Feature(
            slug=f"causal-{slug}",
            group="causal",
            title=f"{title}: upper-left alignment",
            source=_ALIGNMENT,
            specs=(_CAUSAL,),
            sizes=sizes,
            probes=True,
            point=DisputedPoint.ALIGNMENT,
            readings=_OFFSETS,
        )
        for slug, title, sizes in (
            ("more-keys", "more keys than queries", (CaseSize(2, 2, 6), CaseSize(1, 5, 7))),
            ("more-queries", "more queries than keys", (CaseSize(2, 6, 2), CaseSize(1, 7, 5))),
            ("one-query", "one query, several keys", (CaseSize(2, 1, 6),)),
        )
    ),
    Feature(
        slug="causal-gqa",
        group="causal",
        title="with grouped-query heads",
        source=_TEXT,
        specs=(_spec(heads=(6, 2), is_causal=True),),
        sizes=(CaseSize(2, 5, 7),),
    ),
    *(
        Feature(
            slug=f"causal-mask-{kind}",
            group="causal",
            title=f"with a {kind_name} mask: both mask keys",
            source=_TEXT,
            specs=(_spec(is_causal=True, mask=kind),),
            sizes=(CaseSize(2, 5, 7),),
            dtypes=(Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16),
            mask_shape=shape,
        )
        for kind, kind_name, shape in ((_BOOL, "boolean", "B1ST"), (_FLOAT, "float", "BHST"))
    ),
    Feature(
        slug="causal-mask-shared",
        group="causal",
        title="with a 2-D mask, boolean or float",
        source=_TEXT,
        specs=(_spec(is_causal=True, mask=_BOOL), _spec(is_causal=True, mask=_FLOAT)),
        mask_shape="ST",
        spreads=(1.0, 4.0),
    ),
)

_WINDOW_TEXT = "ONNX Attention, opset 25; onnx PR 8006, PR 8108"
_WINDOWS = tuple(
    Feature(
        slug=f"window-{slug}",
        group="window",
        title=title,
        source=_WINDOW_TEXT,
        specs=specs,
        sizes=sizes,
        first_opset=25,
        mask_shape=mask_shape,
        probes=slug in ("left", "both", "causal"),
        readings=("window-ignored", "window-left-one-more", "window-left-one-less"),
    )
    for slug, title, specs, sizes, mask_shape in (
        ("left", "left side", (_spec(left=1), _spec(left=3)), (CaseSize(2, 6, 6),), "B1ST"),
        ("right", "right side", (_spec(right=0), _spec(right=2)), (CaseSize(2, 6, 6),), "B1ST"),
        ("both", "both sides", (_spec(left=1, right=2),), (CaseSize(2, 6, 6), CaseSize(1, 4, 9)), "B1ST"),
        ("zero", "width 0: the query's own key only", (_spec(left=0, right=0),), (CaseSize(2, 5, 5),), "B1ST"),
        ("off", "-1 on both sides: no window", (_spec(),), (CaseSize(2, 5, 5),), "B1ST"),
        ("causal", "left side, causal", (_spec(left=2, is_causal=True),), (CaseSize(2, 7, 7),), "B1ST"),
        ("rows-empty", "more queries than keys: fully masked rows", (_spec(left=0),), (CaseSize(2, 6, 3),), "B1ST"),
        (
            "past",
            "with a KV cache",
            (_spec(left=2, has_past=True), _spec(left=2, has_past=True, is_causal=True)),
            (CaseSize(2, 3, 3, 5), CaseSize(1, 1, 1, 6)),
            "B1ST",
        ),
        (
            "mask",
            "with a boolean mask of rank 1",
            (_spec(left=2, is_causal=True, mask=_BOOL),),
            (CaseSize(2, 4, 6),),
            "T",
        ),
        (
            "mask-rank-4",
            "with grouped-query heads and a boolean mask of rank 4",
            (_spec(heads=(4, 2), left=2, is_causal=True, mask=_BOOL),),
            (CaseSize(2, 4, 6),),
            "BHST",
        ),
    )
)

_CACHE = (
    Feature(
        slug="window-lengths",
        group="window",
        title="with an external cache (nonpad_kv_seqlen)",
        source=_WINDOW_TEXT,
        specs=(_spec(left=2, mask=_LENGTHS), _spec(left=2, mask=_LENGTHS, is_causal=True)),
        sizes=(CaseSize(2, 3, 8),),
        lengths=(5, 8),
        first_opset=25,
    ),
    Feature(
        slug="lengths",
        group="lengths",
        title="number of valid keys per sample",
        source="ONNX Attention, opset 24, nonpad_kv_seqlen",
        specs=(_spec(mask=_LENGTHS), _spec(heads=(4, 2), mask=_LENGTHS)),
        sizes=(CaseSize(2, 3, 8), CaseSize(3, 5, 5)),
        spreads=(1.0, 4.0),
        first_opset=24,
        dtypes=_ALL_TYPES,
        probes=True,
        readings=("padding-ignored", "padding-left"),
    ),
    Feature(
        slug="lengths-poison",
        group="lengths",
        title="huge values in the padding",
        source="ONNX Attention, opset 24",
        specs=(_spec(mask=_LENGTHS),),
        sizes=(CaseSize(2, 3, 8),),
        lengths=(5, 7),
        first_opset=24,
        poison=Poison.HUGE_VALUE,
    ),
    *(
        Feature(
            slug=f"lengths-causal{slug}",
            group="lengths",
            title=f"causal{title}",
            source="onnx issue 8054, PR 8068; onnxruntime PR 28958",
            specs=(_spec(heads=(4, 2), mask=_LENGTHS, is_causal=True),),
            sizes=(CaseSize(2, queries, 8),),
            lengths=lengths,
            first_opset=24,
            point=DisputedPoint.ALIGNMENT,
            readings=_OFFSETS,
        )
        for slug, title, queries, lengths in (
            ("", ": the last query attends up to the last valid key", 3, (3, 7)),
            ("-decode", ", one query", 1, (4, 8)),
            ("-negative", ", fewer keys than queries: fully masked rows", 4, (2, 1)),
        )
    ),
    Feature(
        slug="lengths-zero",
        group="lengths",
        title="a sample without a valid key: the output is zero",
        source=_MASKED_ROW,
        specs=(_spec(mask=_LENGTHS),),
        sizes=(CaseSize(2, 3, 5),),
        lengths=(0, 4),
        first_opset=24,
        point=DisputedPoint.MASKED_ROW,
        readings=_ROWS,
    ),
)

_SHAPES = (
    ("st", "ST", "(queries, keys)"),
    ("1t", "1T", "(1, keys)"),
    ("t", "T", "(keys,)"),
    ("hst", "HST", "(heads, queries, keys)"),
    ("h1t", "H1T", "(heads, 1, keys)"),
    ("b1st", "B1ST", "(batch, 1, queries, keys)"),
    ("1hst", "1HST", "(1, heads, queries, keys)"),
    ("11st", "11ST", "(1, 1, queries, keys)"),
    ("bhst", "BHST", "(batch, heads, queries, keys)"),
    ("b11t", "B11T", "(batch, 1, 1, keys)"),
    ("bh1t", "BH1T", "(batch, heads, 1, keys)"),
)
_MASKS = (
    *(
        Feature(
            slug=f"mask-{kind}-{slug}",
            group="mask shapes",
            title=f"{kind_name} mask {axes}",
            source=f"{_TEXT}: 'must be broadcastable to 4D'; onnxruntime issue 12149",
            specs=(_spec(mask=kind),),
            sizes=(CaseSize(2, 4, 6),),
            spreads=(1.0, 4.0),
            mask_shape=shape,
            probes=slug == "b1st" and kind is _BOOL,
        )
        for kind, kind_name in ((_BOOL, "boolean"), (_FLOAT, "float"))
        for slug, shape, axes in _SHAPES
    ),
    *(
        Feature(
            slug=f"mask-{kind}-short-{slug}",
            group="mask shapes",
            title=f"{kind_name} mask {axes} shorter than the keys: the remaining keys are masked",
            source="ONNX Attention, opset 24; onnx PR 7164",
            specs=(_spec(mask=kind),),
            sizes=(CaseSize(2, 4, 6),),
            spreads=(1.0, 4.0),
            mask_shape=shape,
            first_opset=24,
        )
        for kind, kind_name in ((_BOOL, "boolean"), (_FLOAT, "float"))
        for slug, shape, axes in (("sp", "SP", "(queries, ...)"), ("bhsp", "BHSP", "(batch, heads, queries, ...)"))
    ),
    Feature(
        slug="mask-lengths",
        group="mask shapes",
        title="mask and lengths combined",
        source="ONNX Attention, opset 24",
        specs=(_spec(mask=_FLOAT), _spec(mask=_BOOL), _spec(mask=_BOOL, is_causal=True)),
        sizes=(CaseSize(2, 3, 6),),
        spreads=(1.0, 4.0),
        lengths=(4, 6),
        first_opset=24,
    ),
    Feature(
        slug="mask-short-lengths",
        group="mask shapes",
        title="mask shorter than the keys, with lengths: as long as the longest sample",
        source="ONNX Attention, opset 24; its node cases padded_kv",
        specs=(_spec(mask=_FLOAT), _spec(mask=_FLOAT, is_causal=True)),
        sizes=(CaseSize(2, 4, 6),),
        spreads=(1.0, 4.0),
        mask_shape="BHSP",
        lengths=(3, 4),
        dtypes=(Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16),
        first_opset=24,
    ),
    Feature(
        slug="mask-past",
        group="mask shapes",
        title="mask over cached and new keys",
        source=_TEXT,
        specs=(_spec(mask=_FLOAT, has_past=True), _spec(mask=_BOOL, has_past=True)),
        sizes=(CaseSize(2, 3, 4, 5),),
        spreads=(1.0, 4.0),
        mask_shape="ST",
    ),
)

_ROWS_FEATURES = (
    *(
        Feature(
            slug=f"masked-row-{slug}",
            group="rows that see nothing",
            title=title,
            source=source,
            specs=specs,
            sizes=(CaseSize(2, 4, 4),),
            dtypes=_ALL_TYPES if slug == "bool" else (Dtype.FLOAT32, Dtype.FLOAT16),
            mask_shape="B1ST",
            mask_rows=rows,
            point=point,
            readings=readings,
        )
        for slug, title, source, specs, rows, point, readings in (
            ("bool", "boolean mask", _MASKED_ROW, (_spec(mask=_BOOL),), MaskRows.HIDDEN, _POINT, _ROWS),
            ("inf", "float mask of -inf", _MASKED_ROW, (_spec(mask=_FLOAT),), MaskRows.HIDDEN, _POINT, _ROWS),
            (
                "causal",
                "fully masked by causality and mask combined",
                _MASKED_ROW,
                (_spec(mask=_BOOL, is_causal=True), _spec(mask=_FLOAT, is_causal=True)),
                MaskRows.FUTURE,
                DisputedPoint.MASKED_ROW,
                _ROWS,
            ),
            (
                "sample",
                "every row of a sample",
                _MASKED_ROW,
                (_spec(mask=_BOOL), _spec(mask=_FLOAT)),
                MaskRows.SAMPLE,
                DisputedPoint.MASKED_ROW,
                _ROWS,
            ),
            (
                "gqa",
                "with grouped-query heads",
                _MASKED_ROW,
                (_spec(heads=(4, 2), mask=_BOOL),),
                MaskRows.HIDDEN,
                DisputedPoint.MASKED_ROW,
                _ROWS,
            ),
            (
                "lowest",
                "a row of the lowest finite number masks nothing: the output is the mean of the values",
                "a float mask is added; onnxscript issue 2561: the lowest finite number instead of -inf",
                (_spec(mask=_FLOAT),),
                MaskRows.LOWEST,
                DisputedPoint.LOWEST_ROW,
                ("lowest-is-hidden",),
            ),
            (
                "large",
                "a row of -10000 masks nothing",
                "a float mask is added",
                (_spec(mask=_FLOAT),),
                MaskRows.LARGE,
                DisputedPoint.LOWEST_ROW,
                ("lowest-is-hidden",),
            ),
        )
    ),
)

_POISONS = tuple(
    Feature(
        slug=f"poison-{slug}",
        group="what is hidden stays hidden",
        title=title,
        source=source,
        specs=(_spec(mask=_BOOL), _spec(mask=_FLOAT)),
        sizes=(CaseSize(2, 4, 6),),
        spreads=(1.0, 4.0),
        mask_shape="ST",
        mask_rows=MaskRows.COLUMN,
        poison=poison,
        point=point,
    )
    for slug, title, source, poison, point in (
        ("value", "huge value of a hidden key", "weights of hidden keys are 0", Poison.HUGE_VALUE, DisputedPoint.NONE),
        ("key", "huge hidden key", "the score of a hidden key has no effect", Poison.HUGE_KEY, DisputedPoint.NONE),
        (
            "nan-value",
            "NaN value of a hidden key",
            "unspecified: 0 x NaN is NaN",
            Poison.NAN_VALUE,
            DisputedPoint.NAN,
        ),
        ("nan-key", "NaN hidden key", "unspecified: NaN - inf is NaN", Poison.NAN_KEY, DisputedPoint.NAN),
        ("nan-seen", "NaN value of a visible key must propagate", "IEEE 754", Poison.NAN_SEEN, DisputedPoint.NONE),
    )
)

MASK_FEATURES: tuple[Feature, ...] = (*_CAUSALITY, *_WINDOWS, *_CACHE, *_MASKS, *_ROWS_FEATURES, *_POISONS)
