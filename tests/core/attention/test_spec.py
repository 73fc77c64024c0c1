"""Specs and cases: what is refused and in which words, ids, JSON."""

import math
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdpa_onnx.core.attention.spec import (
    AttentionCase,
    AttentionSpec,
    Dtype,
    Layout,
    MaskKind,
    ScaleRule,
    parse_case_id,
)
from sdpa_onnx.errors import CaseError, SdpaOnnxError

SMALL: dict[str, Any] = {"q_num_heads": 8, "kv_num_heads": 2, "head_dim": 64}


def spec(**changes: Any) -> AttentionSpec:
    return AttentionSpec(**{**SMALL, **changes})


def test_the_founding_head_width_has_the_root_eight() -> None:
    """A model of width 512 with 8 heads has d_k 64, whose root is 8."""
    founding = AttentionSpec(q_num_heads=8, kv_num_heads=8, head_dim=512 // 8)
    assert founding.head_dim == 64
    assert founding.scale_value == 1 / 8


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (ScaleRule.INVERSE_SQRT, 1 / 8),
        (ScaleRule.INVERSE, 1 / 64),
        (ScaleRule.NONE, 1.0),
        (0.3, 0.3),
        (0, 0.0),
        (-2.0, -2.0),
    ],
)
def test_each_scale_rule_is_a_number(scale: float | ScaleRule, expected: float) -> None:
    """A rule depends on head_dim, a number is itself, also 0 and below."""
    assert spec(scale=scale).scale_value == expected


@pytest.mark.parametrize(
    ("field", "text", "member"),
    [
        ("mask", "lengths", MaskKind.LENGTHS),
        ("layout", "bsh", Layout.BSH),
        ("scale", "1/d_k", ScaleRule.INVERSE),
    ],
)
def test_words_become_members(field: str, text: str, member: object) -> None:
    """Text from a file or a command line is a member of the enum afterwards."""
    assert getattr(spec(**{field: text}), field) is member


def test_a_dtype_word_becomes_a_member() -> None:
    """The same for the dtype of a case."""
    case = AttentionCase(spec=spec(), q_seq_len=1, dtype="bfloat16")  # type: ignore[arg-type]  # as from a file
    assert case.dtype is Dtype.BFLOAT16


@pytest.mark.parametrize(("dtype", "short"), list(zip(Dtype, ["f64", "f32", "f16", "bf16"], strict=True)))
def test_short_forms_of_dtypes(dtype: Dtype, short: str) -> None:
    """Ids use the short forms."""
    assert dtype.short == short


def test_widths_and_lengths_follow_their_pair() -> None:
    """v_head_dim defaults to head_dim, kv_seq_len to q_seq_len."""
    assert spec().v_head_dim == 64
    assert spec(v_head_dim=32).v_head_dim == 32
    assert AttentionCase(spec=spec(), q_seq_len=7).kv_seq_len == 7
    assert AttentionCase(spec=spec(), q_seq_len=7, kv_seq_len=0).kv_seq_len == 0


SPEC_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"q_num_heads": 0}, "q_num_heads is 0; it must be at least 1."),
    ({"kv_num_heads": 0}, "kv_num_heads is 0; it must be at least 1."),
    ({"head_dim": 0}, "head_dim is 0; it must be at least 1."),
    ({"v_head_dim": 0}, "v_head_dim is 0; it must be at least 1."),
    ({"head_dim": -64, "v_head_dim": 1}, "head_dim is -64; it must be at least 1."),
    (
        {"kv_num_heads": 3},
        (
            "q_num_heads is 8, which kv_num_heads = 3 does not divide. "
            "Each key/value head must serve the same number of query heads."
        ),
    ),
    ({"left_window": -2}, "left_window is -2; it must be -1 (all keys) or more."),
    ({"right_window": -2}, "right_window is -2; it must be -1 (all keys) or more."),
    ({"softcap": -0.5}, "softcap is -0.5; it must be 0 (off) or more."),
    ({"softcap": math.inf}, "softcap is inf; it must be 0 (off) or more."),
    ({"softcap": math.nan}, "softcap is nan; it must be 0 (off) or more."),
    ({"scale": math.inf}, "scale is inf; it must be a finite number."),
    ({"scale": math.nan}, "scale is nan; it must be a finite number."),
    ({"mask": "holes"}, "mask is 'holes'; it must be one of none, bool, float, lengths."),
    ({"layout": "nhsd"}, "layout is 'nhsd'; it must be one of bnsh, bsh."),
    ({"scale": "sqrt"}, "scale is 'sqrt'; it must be one of 1/sqrt(d_k), none, 1/d_k."),
    (
        {"mask": "lengths", "has_past": True},
        (
            "mask 'lengths' cannot be combined with a past. "
            "ONNX Attention accepts nonpad_kv_seqlen only without past_key and past_value."
        ),
    ),
]


@pytest.mark.parametrize(("changes", "text"), SPEC_ERRORS, ids=[str(changes) for changes, _ in SPEC_ERRORS])
def test_an_impossible_spec_is_refused_in_one_sentence(changes: dict[str, Any], text: str) -> None:
    """Each figure that no attention has is named with what is allowed."""
    with pytest.raises(CaseError) as caught:
        spec(**changes)
    assert str(caught.value) == text


CASE_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": -1}, "batch_size is -1; it must be 0 or more."),
    ({"q_seq_len": -1}, "q_seq_len is -1; it must be 0 or more."),
    ({"kv_seq_len": -2}, "kv_seq_len is -2; it must be 0 or more."),
    ({"past_seq_len": -1}, "past_seq_len is -1; it must be 0 or more."),
    ({"past_seq_len": 3}, "past_seq_len is 3, but the spec has no past. Set has_past=True in the spec."),
    ({"dtype": "float8"}, "dtype is 'float8'; it must be one of float64, float32, float16, bfloat16."),
]


@pytest.mark.parametrize(("changes", "text"), CASE_ERRORS, ids=[str(changes) for changes, _ in CASE_ERRORS])
def test_an_impossible_case_is_refused_in_one_sentence(changes: dict[str, Any], text: str) -> None:
    """The same for sizes and dtype."""
    with pytest.raises(CaseError) as caught:
        AttentionCase(**{"spec": spec(), "q_seq_len": 4, **changes})
    assert str(caught.value) == text


def test_case_errors_are_value_errors_and_ours() -> None:
    """A caller may catch either."""
    assert issubclass(CaseError, ValueError)
    assert issubclass(CaseError, SdpaOnnxError)


@pytest.mark.parametrize("least", [{"left_window": -1}, {"right_window": 0}, {"softcap": 0.0}, {"v_head_dim": 1}])
def test_the_least_allowed_values_pass(least: dict[str, Any]) -> None:
    """The other side of each limit."""
    field, value = next(iter(least.items()))
    assert getattr(spec(**least), field) == value


ID = "b2_hq8_hkv2_q128_kv128_d64_f16"
IDS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"is_causal": True}, {}, f"{ID}_causal"),
    ({"v_head_dim": 32}, {}, f"{ID}_dv32"),
    ({"left_window": 255}, {}, f"{ID}_wl255"),
    ({"right_window": 0}, {}, f"{ID}_wr0"),
    ({"has_past": True}, {"past_seq_len": 64}, f"{ID}_past64"),
    ({"mask": MaskKind.BOOL}, {}, f"{ID}_mask-bool"),
    ({"softcap": 50.0}, {}, f"{ID}_cap50"),
    ({"scale": 0.3}, {}, f"{ID}_scale0.3"),
    ({"scale": ScaleRule.NONE}, {}, f"{ID}_scalenone"),
    ({"scale": ScaleRule.INVERSE}, {}, f"{ID}_scale1-d-k"),
    ({"layout": Layout.BSH}, {}, f"{ID}_bsh"),
    (
        {"is_causal": True, "v_head_dim": 32, "left_window": 4, "has_past": True, "softcap": 2.5, "layout": "bsh"},
        {"past_seq_len": 3},
        f"{ID}_causal_dv32_wl4_past3_cap2.5_bsh",
    ),
]


@pytest.mark.parametrize(("of_spec", "of_case", "expected"), IDS, ids=[row[2] for row in IDS])
def test_case_ids(of_spec: dict[str, Any], of_case: dict[str, Any], expected: str) -> None:
    """Only what differs from the default appears, in a fixed order; source: DESIGN section 4."""
    case = AttentionCase(spec=spec(**of_spec), batch_size=2, q_seq_len=128, dtype=Dtype.FLOAT16, **of_case)
    assert case.case_id == expected


_FINITE = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def _cases(draw: st.DrawFn) -> AttentionCase:
    """Any case at all."""
    kv_num_heads, has_past = draw(st.integers(1, 40)), draw(st.booleans())
    of_spec = AttentionSpec(
        q_num_heads=kv_num_heads * draw(st.integers(1, 8)),
        kv_num_heads=kv_num_heads,
        head_dim=draw(st.integers(1, 512)),
        v_head_dim=draw(st.integers(1, 512)),
        is_causal=draw(st.booleans()),
        left_window=draw(st.integers(-1, 10_000)),
        right_window=draw(st.integers(-1, 10_000)),
        mask=draw(st.sampled_from([kind for kind in MaskKind if not has_past or kind is not MaskKind.LENGTHS])),
        softcap=draw(st.floats(0.0, allow_infinity=False)),
        scale=draw(st.sampled_from(ScaleRule) | _FINITE),
        has_past=has_past,
        layout=draw(st.sampled_from(Layout)),
    )
    sizes = {name: draw(st.integers(0, 10**6)) for name in ("batch_size", "q_seq_len", "kv_seq_len")}
    past = draw(st.integers(0, 10**6)) if has_past else 0
    return AttentionCase(spec=of_spec, past_seq_len=past, dtype=draw(st.sampled_from(Dtype)), **sizes)


@given(_cases())
def test_an_id_is_read_back(case: AttentionCase) -> None:
    """All but the digits of scale and softcap that the id leaves out."""
    found = parse_case_id(case.case_id)
    assert found is not None
    assert found.case_id == case.case_id
    assert replace(found, spec=replace(found.spec, scale=1.0, softcap=0.0)) == replace(
        case, spec=replace(case.spec, scale=1.0, softcap=0.0)
    )
    assert found.spec.scale_value == pytest.approx(case.spec.scale_value, rel=1e-5, abs=1e-320)
    assert found.spec.softcap == pytest.approx(case.spec.softcap, rel=1e-5, abs=1e-320)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "two.onnx_b2_q13",
        "b2_hq8_hkv2_q128_kv128_d64",
        f"{ID}_",
        f"{ID}_wide",
        f"{ID}_dv32_causal",
        f"{ID}_mask-round",
        f"{ID}_scalesome",
        f"{ID}_scaleinf",
        f"{ID}_past3_mask-lengths",
        ID.replace("f16", "f8"),
        ID.replace("hkv2", "hkv3"),
        ID.replace("q128", f"q{'1' * 5000}"),
        f"x{ID}",
    ],
)
def test_other_text_is_no_id(text: str) -> None:
    """A word too many, in another order or out of range; and no text raises."""
    assert parse_case_id(text) is None


def test_a_plain_id_has_no_option_words() -> None:
    """All defaults: sizes and dtype alone."""
    case = AttentionCase(spec=spec(), q_seq_len=5, kv_seq_len=7)
    assert case.case_id == "b1_hq8_hkv2_q5_kv7_d64_f32"


@pytest.mark.parametrize(
    "original",
    [
        spec(),
        spec(v_head_dim=32, is_causal=True, left_window=3, right_window=0, softcap=2.0, scale=0.25, has_past=True),
        spec(mask=MaskKind.LENGTHS, scale=ScaleRule.INVERSE, layout=Layout.BSH),
    ],
)
def test_a_spec_survives_json(original: AttentionSpec) -> None:
    """What a model's metadata keeps is read back equal, with enums as enums."""
    back = msgspec.json.decode(msgspec.json.encode(original), type=AttentionSpec)
    assert back == original
    assert type(back.mask) is MaskKind
    assert type(back.layout) is Layout
    assert type(back.scale) is type(original.scale)


def test_a_case_survives_json() -> None:
    """The same for a case with its sizes."""
    original = AttentionCase(spec=spec(has_past=True), batch_size=3, q_seq_len=1, past_seq_len=9, dtype=Dtype.FLOAT64)
    assert msgspec.json.decode(msgspec.json.encode(original), type=AttentionCase) == original


def test_an_impossible_spec_in_json_is_refused() -> None:
    """Specs read from JSON are checked too."""
    text = b'{"q_num_heads":8,"kv_num_heads":3,"head_dim":4}'
    with pytest.raises(msgspec.ValidationError, match="does not divide"):
        msgspec.json.decode(text, type=AttentionSpec)


@pytest.mark.parametrize(
    ("of_spec", "expected"),
    [
        ({}, {"query": (2, 8, 5, 64), "key": (2, 2, 7, 64), "value": (2, 2, 7, 32)}),
        ({"layout": Layout.BSH}, {"query": (2, 5, 512), "key": (2, 7, 128), "value": (2, 7, 64)}),
        (
            {"mask": MaskKind.BOOL},
            {"query": (2, 8, 5, 64), "key": (2, 2, 7, 64), "value": (2, 2, 7, 32), "attn_mask": (2, 1, 5, 7)},
        ),
        (
            {"mask": MaskKind.LENGTHS},
            {"query": (2, 8, 5, 64), "key": (2, 2, 7, 64), "value": (2, 2, 7, 32), "nonpad_kv_seqlen": (2,)},
        ),
    ],
    ids=["plain", "bsh", "bool", "lengths"],
)
def test_input_shapes(of_spec: dict[str, Any], expected: dict[str, tuple[int, ...]]) -> None:
    """Shapes follow layout, grouping and the inputs that the spec has."""
    case = AttentionCase(spec=spec(v_head_dim=32, **of_spec), batch_size=2, q_seq_len=5, kv_seq_len=7)
    assert case.input_shapes() == expected


def test_a_past_is_4d_and_lengthens_the_mask() -> None:
    """The cache is 4-D in both layouts, and the mask spans past and new keys."""
    past = spec(has_past=True, mask=MaskKind.FLOAT, layout=Layout.BSH, v_head_dim=32)
    case = AttentionCase(spec=past, q_seq_len=2, kv_seq_len=3, past_seq_len=4)
    shapes = case.input_shapes()
    assert case.total_seq_len == 7
    assert shapes["past_key"] == (1, 2, 4, 64)
    assert shapes["past_value"] == (1, 2, 4, 32)
    assert shapes["attn_mask"] == (1, 1, 2, 7)


@pytest.mark.parametrize(
    ("changes", "expected"), [({}, False), ({"left_window": 0}, True), ({"right_window": 0}, True)]
)
def test_a_window_of_zero_is_a_window(changes: dict[str, int], expected: bool) -> None:
    """0 keys to one side is a window; -1 is none."""
    assert spec(**changes).has_window is expected


def test_heads_per_kv() -> None:
    """Query heads that share a key head: 1 for multi-head, all for multi-query."""
    assert [spec(kv_num_heads=count).heads_per_kv for count in (8, 2, 1)] == [1, 4, 8]
