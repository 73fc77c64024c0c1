"""Write onnxruntime's GroupQueryAttention: self-attention with its own causality, window and cache, and refusals."""

from dataclasses import replace

import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.forms import Form, LowerOptions, Workaround
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, MaskKind
from sdpa_onnx.core.attention.window_bounds import WindowBounds
from sdpa_onnx.graph.lower.lower import refusal
from tests.graph.lower.canonical import HARD_SPECS, SELF_SIZES, SQUARE, Bare, Size, Trials, all_inputs, drawn
from tests.graph.models import SPECS

_OPERATOR = "GroupQueryAttention"
_CAUSAL_PAST = HARD_SPECS["causal-past"]


def _node(model: ir.Model) -> ir.Node:
    (node,) = [node for node in model.graph if node.op_type == _OPERATOR]
    return node


def _self(spec: AttentionSpec, **more: object) -> Bare:
    return Bare(spec=spec, is_self=True, **more)  # type: ignore[arg-type]  # fields of Bare


_REFUSED: dict[str, tuple[Bare, str]] = {
    "value width": (
        _self(SPECS["dv"]),
        "GroupQueryAttention needs equal widths of keys and values: they are 8 and 3.",
    ),
    "head width": (
        _self(replace(SPECS["mqa"], head_dim=12, v_head_dim=12)),
        "GroupQueryAttention needs a head width that is a multiple of 8: it is 12.",
    ),
    "cache, not causal": (
        _self(SPECS["past"]),
        "GroupQueryAttention supports a cache of several samples only if it is causal: use --form ort-mha.",
    ),
    "lengths": (
        Bare(spec=SPECS["causal"]),
        "GroupQueryAttention needs as many new keys as queries: the graph has q_seq_len queries and kv_seq_len keys.",
    ),
    "float64": (_self(SPECS["causal"], dtype=Dtype.FLOAT64), "GroupQueryAttention does not support float64."),
    "scores": (
        _self(SPECS["causal"], scores_mode=QkOutputMode.SCORES),
        "GroupQueryAttention has no scores output like that of the standard operator.",
    ),
}


@pytest.mark.parametrize(("bare", "reason"), _REFUSED.values(), ids=_REFUSED)
def test_what_it_cannot_do(bare: Bare, reason: str) -> None:
    """A refusal names the feature."""
    assert refusal(bare.build()[1], Form.ORT_GQA, opset=18) == reason


_BANDS = {
    WindowBounds(right=0): ". The mask 'attn_mask' is causal except where padding hides every key of a query: use "
    "--no-empty-rows if no input does that, else --form ort-mha.",
    WindowBounds(): ", and the mask 'attn_mask' is not: use --form ort-mha.",
}


@pytest.mark.parametrize("band", _BANDS)
def test_cache_with_a_mask_names_the_mask_and_the_option(band: WindowBounds) -> None:
    """Where only padding keeps a mask from being causal, the option that excludes it is named."""
    _, attention = _self(replace(SPECS["past"], mask=MaskKind.FLOAT)).build()
    reason = refusal(replace(attention, mask_band=band), Form.ORT_GQA, opset=18)
    assert reason == "GroupQueryAttention supports a cache of several samples only if it is causal" + _BANDS[band]


_LENGTHS = [
    ("rows", "rows", True, None),
    (5, 5, False, None),
    (4, 5, True, "4 queries and 5 keys"),
    ("rows", "columns", True, "rows queries and columns keys"),
    ("rows", "unk__3", True, None),
    ("unk__3", "unk__3", True, None),
    ("rows", None, True, None),
    ("rows", None, False, "rows queries and any number of keys"),
]


@pytest.mark.parametrize(("queries", "keys", "is_computed", "stated"), _LENGTHS)
def test_lengths_that_the_graph_states(
    queries: int | str | None,
    keys: int | str | None,
    is_computed: bool,  # a column of the table
    stated: str | None,
) -> None:
    """Different lengths are refused; computed keys of unknown length are accepted."""
    model, attention = Bare(spec=SPECS["causal"]).build()
    if is_computed:
        attention = replace(attention, key=ir.node("Identity", [attention.key]).outputs[0])
    attention.query.shape, attention.key.shape = ir.Shape([1, 2, queries, 8]), ir.Shape([1, 2, keys, 8])
    reason = (
        None if stated is None else f"GroupQueryAttention needs as many new keys as queries: the graph has {stated}."
    )
    assert refusal(attention, Form.ORT_GQA, opset=model.opset_imports[""]) == reason


_SAID: dict[str, tuple[AttentionSpec, dict[str, object], bool]] = {
    "causal": (SPECS["causal"], {}, False),
    "not causal": (SPECS["gqa"], {"causal": 0}, False),
    "window counts its own key": (HARD_SPECS["window-past"], {"local_window_size": 3}, False),
    "window without causality": (HARD_SPECS["left-window"], {"causal": 0}, True),
    "lengths": (HARD_SPECS["causal-lengths"], {"causal": 0}, True),
    "mask": (HARD_SPECS["causal-past-bool"], {}, True),
    "softcap": (replace(SPECS["causal"], softcap=2.0), {"softcap": 2.0}, False),
    "scale 0": (replace(SPECS["causal"], scale=0.0), {"scale": 1.0}, False),
}


@pytest.mark.parametrize(("spec", "attributes", "has_bias"), _SAID.values(), ids=_SAID)
def test_what_the_node_says(spec: AttentionSpec, attributes: dict[str, object], has_bias: bool) -> None:
    """Features that the operator has are attributes; others become a bias."""
    node = _node(_self(spec).written(Form.ORT_GQA))
    heads = {"num_heads": spec.q_num_heads, "kv_num_heads": spec.kv_num_heads}
    assert {name: attribute.value for name, attribute in node.attributes.items()} == heads | attributes
    assert (len(node.inputs) > 10 and node.inputs[10] is not None) == has_bias


@pytest.mark.parametrize(
    "spec",
    [_CAUSAL_PAST, HARD_SPECS["window-past"], replace(HARD_SPECS["bsh-past"], v_head_dim=8, is_causal=True)],
    ids=["4-D", "window", "3-D"],
)
def test_cache_of_several_samples(spec: AttentionSpec) -> None:
    """Several queries of several samples over a cache, one token, and an empty cache."""
    sizes = [*SELF_SIZES, Size(queries=9, keys=9, past=17)]
    bare = _self(spec)
    assert Trials(bare=bare, model=bare.written(Form.ORT_GQA)).judge(drawn(spec, sizes)) == []


@pytest.mark.parametrize("kind", [MaskKind.BOOL, pytest.param(MaskKind.FLOAT, marks=pytest.mark.slow)])
def test_mask_over_a_cache(kind: MaskKind) -> None:
    """A mask as bias together with the operator's own causality; fully masked rows are zero."""
    spec = replace(_CAUSAL_PAST, mask=kind)
    bare = _self(spec)
    options = LowerOptions(workarounds=frozenset({Workaround.FINITE_MASK}))
    trials = Trials(bare=bare, model=bare.written(Form.ORT_GQA, options))
    inputs = all_inputs(spec, [SQUARE])
    assert trials.judge({name: arrays for name, arrays in inputs.items() if "mask" in name}) == []


@pytest.mark.parametrize("left", [0, 2])
def test_window_off_by_one_is_found(left: int) -> None:
    """The operator's window includes the query's own key; a window that does not is detected."""
    spec = replace(SPECS["causal"], left_window=1)
    bare = _self(spec)
    model = bare.written(Form.ORT_GQA)
    inputs = {name: arrays for name, arrays in all_inputs(spec, [SQUARE]).items() if "visible" in name}
    assert Trials(bare=bare, model=model).judge(inputs) == []
    _node(model).attributes["local_window_size"] = ir.AttrInt64("local_window_size", left + 1)
    assert Trials(bare=bare, model=model).judge(inputs) != []
