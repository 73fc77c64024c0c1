"""Write one standard node: attributes, the mask for features that the opset lacks, and the workarounds."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.forms import Form, LowerOptions, Workaround
from sdpa_onnx.core.attention.inputs import draw_inputs
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.spec import Dtype, MaskKind
from sdpa_onnx.core.judge.cache_agreement import present_of
from sdpa_onnx.graph.lower.lower import lower, needed_opset, refusal
from tests.graph.lower.canonical import (
    HARD_SPECS,
    RAGGED,
    SQUARE,
    Axis,
    Bare,
    Trials,
    all_inputs,
    drawn,
    run_once,
    with_mask,
)
from tests.graph.models import SPECS


def _node(model: ir.Model) -> ir.Node:
    (node,) = [node for node in model.graph if node.op_type == "Attention"]
    return node


def _said(bare: Bare, *workarounds: Workaround) -> tuple[dict[str, object], set[str]]:
    """The node's attributes and which of its optional inputs are present."""
    node = _node(bare.written(Form.ATTENTION, LowerOptions(workarounds=frozenset(workarounds))))
    names = ("attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
    given = {name for name, value in zip(names, node.inputs[3:], strict=False) if value is not None}
    return {name: attribute.value for name, attribute in node.attributes.items()}, given


def test_needs_opset_23() -> None:
    """The operator exists from opset 23 on, and every feature can be written there."""
    _, attention = Bare(spec=SPECS["much"], opset=22).build()
    assert needed_opset(attention, Form.ATTENTION) == 23
    assert (
        refusal(attention, Form.ATTENTION, opset=22)
        == "The form 'attention' needs opset 23, but the graph has opset 22."
    )


_STATED: list[tuple[str, int, dict[str, object], set[str]]] = [
    ("causal", 23, {"is_causal": 1}, set()),
    ("window", 24, {}, {"attn_mask"}),
    ("window", 25, {"left_window_size": 3, "right_window_size": 0}, set()),
    ("lengths", 23, {}, {"attn_mask"}),
    ("lengths", 24, {}, {"nonpad_kv_seqlen"}),
    ("causal-lengths", 23, {}, {"attn_mask"}),
    ("causal-lengths", 24, {"is_causal": 1}, {"nonpad_kv_seqlen"}),
    ("window-lengths", 24, {}, {"attn_mask", "nonpad_kv_seqlen"}),
    ("window-past", 24, {"is_causal": 1}, {"attn_mask", "past_key", "past_value"}),
    ("window-past", 25, {"is_causal": 1, "left_window_size": 2}, {"past_key", "past_value"}),
    ("scale-negative", 23, {"scale": 1.0}, set()),
]


@pytest.mark.parametrize(("name", "opset", "attributes", "given"), _STATED)
def test_what_the_node_says(name: str, opset: int, attributes: dict[str, object], given: set[str]) -> None:
    """A feature that the opset has is an attribute or an input; any other feature is in the mask."""
    assert _said(Bare(spec=(SPECS | HARD_SPECS)[name], opset=opset)) == (pytest.approx(attributes), given)


def test_causality_as_mask() -> None:
    """Then no attribute hides a key; the mask does."""
    bare = Bare(spec=HARD_SPECS["window-past"], opset=25)
    assert _said(bare, Workaround.CAUSAL_AS_MASK) == ({}, {"attn_mask", "past_key", "past_value"})


def test_scale_on_query() -> None:
    """Then the node's own scale is 1, for 0 and negative numbers too."""
    for scale in (0.3, 0.0, -0.3):
        bare = Bare(spec=replace(SPECS["plain"], scale=scale), opset=23)
        assert _said(bare, Workaround.SCALE_ON_QUERY) == ({"scale": 1.0}, set())
        options = LowerOptions(workarounds=frozenset({Workaround.SCALE_ON_QUERY}))
        assert Trials(bare=bare, model=bare.written(Form.ATTENTION, options)).judge(drawn(bare.spec, [RAGGED])) == []


_SHAPES: list[tuple[Sequence[Axis], Sequence[int]]] = [
    (("total",), (10,)),
    (("q_seq_len", "total"), (5, 10)),
    ((1, "total"), (1, 10)),
    (("batch_size", 1, 1, "total"), (2, 1, 1, 10)),
    ((4, "q_seq_len", "total"), (4, 5, 10)),
    (("q_seq_len", "short"), (5, 6)),
]


@pytest.mark.parametrize("opset", [23, pytest.param(25, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("axes", "shape"), _SHAPES, ids=lambda part: "x".join(map(str, part)))
def test_expanded_mask_is_taken_by_every_kernel(axes: Sequence[Axis], shape: Sequence[int], opset: int) -> None:
    """Expanded to all queries and keys, a mask of any shape runs and hides the same keys."""
    spec = replace(HARD_SPECS["causal-past"], mask=MaskKind.FLOAT)
    bare = Bare(spec=spec, opset=opset, mask_axes=axes)
    model = bare.written(Form.ATTENTION, LowerOptions(workarounds=frozenset({Workaround.EXPAND_MASK})))
    inputs = with_mask(draw_inputs(RAGGED.case(spec, Dtype.FLOAT32)), shape)
    assert Trials(bare=bare, model=model).judge({"mask": inputs}) == []


@pytest.mark.parametrize(("axes", "shape"), _SHAPES, ids=lambda part: "x".join(map(str, part)))
@pytest.mark.parametrize("opset", [23, 24, 25])
@pytest.mark.slow
def test_mask_as_it_is_keeps_the_operators_text(axes: Sequence[Axis], shape: Sequence[int], opset: int) -> None:
    """onnx.reference supports every mask without a workaround; opset 23 has no short masks, so they are padded.

    Not causal: onnx 1.23.2 gives causality the shape of the mask, a single query if the mask broadcasts.
    """
    spec = replace(HARD_SPECS["gqa-bool"], mask=MaskKind.FLOAT, has_past=True)
    bare = Bare(spec=spec, opset=opset, mask_axes=axes)
    inputs = with_mask(draw_inputs(RAGGED.case(spec, Dtype.FLOAT32)), shape)
    trials = Trials(bare=bare, model=bare.written(Form.ATTENTION), runtime="onnx-reference")
    assert trials.judge({"mask": inputs}) == []


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, pytest.param(Dtype.FLOAT16, marks=pytest.mark.slow)])
def test_finite_mask(dtype: Dtype) -> None:
    """The lowest number of the type is an ordinary bias, and -inf still hides: a row of -inf is zero."""
    spec = SPECS["float-mask"]
    bare = Bare(spec=spec, opset=23, dtype=dtype)
    model = bare.written(Form.ATTENTION, LowerOptions(workarounds=frozenset({Workaround.FINITE_MASK})))
    inputs = {name: arrays for name, arrays in all_inputs(spec, [SQUARE], dtype).items() if "mask" in name}
    hidden = draw_inputs(SQUARE.case(spec, dtype))
    assert hidden.attn_mask is not None
    rows = np.where(np.arange(4)[:, None] == 2, -np.inf, hidden.attn_mask).astype(hidden.attn_mask.dtype)
    assert Trials(bare=bare, model=model).judge(inputs | {"hidden row": replace(hidden, attn_mask=rows)}) == []


def test_boolean_mask_is_finite_already() -> None:
    """A boolean mask is not clamped."""
    model = Bare(spec=SPECS["bool-mask"], opset=24).written(
        Form.ATTENTION, LowerOptions(workarounds=frozenset({Workaround.FINITE_MASK}))
    )
    assert [node.op_type for node in model.graph] == ["Attention"]


@pytest.mark.parametrize("name", ["plain", "past", "bsh"])
def test_equal_batch(name: str) -> None:
    """Keys, values and a cache that all samples share are repeated for each sample."""
    bare = Bare(spec=SPECS[name], opset=23)
    model = bare.written(Form.ATTENTION, LowerOptions(workarounds=frozenset({Workaround.EQUAL_BATCH})))
    one, two = (draw_inputs(replace(RAGGED, batch=batch).case(bare.spec, Dtype.FLOAT32)) for batch in (1, 2))
    shared = {field: array for field, array in one.named().items() if field != "query"}
    repeated = {field: np.repeat(array, 2, axis=0) for field, array in shared.items()}
    given, expected = (run_once(model, replace(two, **arrays)) for arrays in (shared, repeated))
    for output, array in expected.items():
        np.testing.assert_array_equal(given[output], array)


@pytest.mark.parametrize("mode", list(QkOutputMode))
def test_scores_of_each_stage(mode: QkOutputMode) -> None:
    """The fourth output is the node's own, including the computed mask."""
    spec = replace(HARD_SPECS["gqa-bool"], left_window=1)
    bare = Bare(spec=spec, opset=24, scores_mode=mode)
    trials = Trials(bare=bare, model=bare.written(Form.ATTENTION), runtime="onnx-reference")
    assert trials.judge(drawn(spec, [RAGGED])) == []


@pytest.mark.parametrize("form", [Form.ATTENTION, Form.DECOMPOSED, Form.ORT_MHA])
def test_cache_that_is_asked_for_without_a_past(form: Form) -> None:
    """The operator returns present outputs only with a past; without one they are the inputs, in every form."""
    for spec in (SPECS["bsh"], SPECS["plain"]):
        model, attention = Bare(spec=spec, opset=23).build()
        presents = [_copied(model, value) for value in (attention.key, attention.value)]
        lower(model, replace(attention, present_key=presents[0], present_value=presents[1]), form)
        (inputs,) = drawn(spec, [RAGGED]).values()
        outputs = run_once(model, inputs)
        presents_of = present_of(spec, inputs)
        for name, role in (("K_copy", OutputRole.PRESENT_KEY), ("V_copy", OutputRole.PRESENT_VALUE)):
            expected = presents_of[role]
            np.testing.assert_array_equal(outputs[name], expected)


def _copied(model: ir.Model, value: ir.Value) -> ir.Value:
    """A graph output for a form to replace."""
    node = ir.node("Identity", [value], name=f"copy_{value.name}")
    copy = node.outputs[0]
    copy.name, copy.type, copy.shape = f"{value.name}_copy", value.type, ir.Shape([None] * 4)
    model.graph.append(node)
    model.graph.outputs.append(copy)
    return copy
