"""The decomposed form: operators by opset, placement of the scale, masks of every shape, the scores output."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.forms import Form, LowerOptions, ScalePlacement
from sdpa_onnx.core.attention.inputs import AttentionInputs, draw_inputs
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, MaskKind
from sdpa_onnx.graph.lower.lower import lower, needed_opset, refusal
from tests.graph.lower.canonical import (
    HARD_SPECS,
    LONGER,
    RAGGED,
    Axis,
    Bare,
    Size,
    Trials,
    all_inputs,
    drawn,
    run_once,
    with_mask,
)
from tests.graph.models import SPECS

_BOOL, _FLOAT = MaskKind.BOOL, MaskKind.FLOAT


def _judged(bare: Bare, inputs: dict[str, AttentionInputs], options: LowerOptions | None = None) -> list[str]:
    return Trials(bare=bare, model=bare.written(Form.DECOMPOSED, options)).judge(inputs)


@pytest.mark.parametrize(
    ("dtype", "opset"), [(Dtype.FLOAT64, 13), (Dtype.FLOAT32, 13), (Dtype.FLOAT16, 13), (Dtype.BFLOAT16, 16)]
)
def test_lowest_opset(dtype: Dtype, opset: int) -> None:
    """The lowest opset passes onnx.checker with every feature; the one below is refused with the number."""
    bare = Bare(spec=SPECS["much"], opset=opset, dtype=dtype)
    attention = bare.build()[1]
    assert needed_opset(attention, Form.DECOMPOSED) == opset
    bare.written(Form.DECOMPOSED)
    assert refusal(attention, Form.DECOMPOSED, opset=opset - 1) == (
        f"The form 'decomposed' needs opset {opset}, but the graph has opset {opset - 1}."
    )


@pytest.mark.parametrize("opset", range(13, 26))
def test_every_opset_passes_the_checker(opset: int) -> None:
    """Operators differ between opsets, such as the axes of ReduceMax."""
    for spec in (SPECS["much"], HARD_SPECS["causal-lengths"], SPECS["float-mask"]):
        Bare(spec=spec, opset=opset).written(Form.DECOMPOSED)


def _multiplied(model: ir.Model) -> set[str]:
    """The values that a factor multiplies: operand names traced to graph inputs, or the product."""
    found = set()
    for node in model.graph:
        if node.op_type == "Mul" and node.inputs[0] is not None:
            source = node.inputs[0]
            maker = source.producer()
            found.add(source.name if maker is None else maker.op_type)
    return {name for name in found if name is not None}


@pytest.mark.parametrize(
    ("placement", "places"),
    [
        (ScalePlacement.QUERY, {"Q"}),
        (ScalePlacement.SCORES, {"MatMul"}),
        (ScalePlacement.BOTH, {"Q", "K"}),
    ],
)
@pytest.mark.parametrize("scale", [0.3, -0.3, 0.0])
def test_scale_stands_where_it_is_asked_to(placement: ScalePlacement, places: set[str], scale: float) -> None:
    """The scaled product is the same; a negative scale keeps its sign, and 0 makes all weights equal."""
    bare = Bare(spec=replace(SPECS["plain"], scale=scale))
    options = LowerOptions(scale_placement=placement)
    assert _multiplied(bare.written(Form.DECOMPOSED, options)) == places
    assert _judged(bare, drawn(bare.spec, [RAGGED]), options) == []


def test_scale_of_1_is_no_node() -> None:
    """A factor of 1 adds no node."""
    bare = Bare(spec=replace(SPECS["plain"], scale=1.0))
    assert _multiplied(bare.written(Form.DECOMPOSED)) == set()


@pytest.mark.parametrize("placement", list(ScalePlacement))
def test_scale_that_half_precision_has_not(placement: ScalePlacement) -> None:
    """A factor that float16 would round is applied in float32, so scores have no common relative error."""
    bare = Bare(spec=replace(SPECS["plain"], head_dim=48, scale=0.1001, softcap=1.3), dtype=Dtype.FLOAT16)
    options = LowerOptions(scale_placement=placement)
    inputs = drawn(bare.spec, [Size(queries=40, keys=40)], Dtype.FLOAT16)
    assert _judged(bare, inputs, options) == []


# Axes of a mask in the graph, and their sizes at 5 queries and 7 keys with a past of 3.
_SHAPES: list[tuple[Sequence[Axis], Sequence[int]]] = [
    (("q_seq_len", "total"), (5, 10)),
    (("total",), (10,)),
    ((1, "total"), (1, 10)),
    (("batch_size", 1, 1, "total"), (2, 1, 1, 10)),
    ((1, 4, "q_seq_len", "total"), (1, 4, 5, 10)),
    (("batch_size", 4, "q_seq_len", "total"), (2, 4, 5, 10)),
    ((4, "q_seq_len", "total"), (4, 5, 10)),
    (("q_seq_len", "short"), (5, 6)),
    (("batch_size", 1, 1, "short"), (2, 1, 1, 1)),
]


@pytest.mark.parametrize("kind", [_BOOL, _FLOAT])
@pytest.mark.parametrize(("axes", "shape"), _SHAPES, ids=lambda part: "x".join(map(str, part)))
def test_mask_of_every_shape(axes: Sequence[Axis], shape: Sequence[int], kind: MaskKind) -> None:
    """Masks broadcast from the right; a short mask hides the keys that it has no entry for."""
    spec = replace(HARD_SPECS["causal-past"], mask=kind)
    bare = Bare(spec=spec, mask_axes=axes)
    inputs = with_mask(draw_inputs(RAGGED.case(spec, Dtype.FLOAT32)), shape)
    assert _judged(bare, {"mask": inputs}) == []


def test_mask_as_long_as_the_keys_is_not_padded() -> None:
    """If the graph states that lengths are equal, no node computes them."""
    operators = [node.op_type for node in Bare(spec=SPECS["bool-mask"]).written(Form.DECOMPOSED).graph]
    assert "Pad" not in operators
    assert "Shape" not in operators


def test_mask_of_unknown_rank_is_refused() -> None:
    """A mask of unknown rank is refused, not guessed."""
    _, attention = Bare(spec=SPECS["bool-mask"]).build()
    assert attention.attn_mask is not None
    attention.attn_mask.shape = None
    for form, opset in ((Form.DECOMPOSED, 18), (Form.ATTENTION, 23), (Form.ORT_MHA, 18)):
        assert refusal(attention, form, opset=opset) == (
            "The rank of the mask 'attn_mask' is unknown: declare its shape in the file."
        )


@pytest.mark.parametrize("mode", list(QkOutputMode))
@pytest.mark.parametrize("placement", list(ScalePlacement))
def test_scores_of_each_stage(mode: QkOutputMode, placement: ScalePlacement) -> None:
    """The fourth output is the requested stage, including zero weights in fully masked rows."""
    spec = replace(HARD_SPECS["gqa-bool"], softcap=1.5, is_causal=True)
    bare = Bare(spec=spec, scores_mode=mode)
    assert _judged(bare, drawn(spec, [LONGER]), LowerOptions(scale_placement=placement)) == []


def test_causal_attention_has_no_guard() -> None:
    """Every query of a causal attention sees the first key, so no guard is added."""
    operators = [node.op_type for node in Bare(spec=SPECS["causal"]).written(Form.DECOMPOSED).graph]
    assert "ReduceMax" not in operators


def test_shared_heads_are_not_repeated() -> None:
    """Grouped query heads are rows of one product; keys are not repeated."""
    operators = {node.op_type for node in Bare(spec=SPECS["gqa"]).written(Form.DECOMPOSED).graph}
    assert operators.isdisjoint({"Expand", "Tile", "Concat"})


def test_nan_in_a_value_is_not_swallowed() -> None:
    """A NaN that a query sees stays in the output, also next to rows that are set to zero."""
    spec = SPECS["bool-mask"]
    inputs = draw_inputs(RAGGED.case(spec, Dtype.FLOAT32))
    value = inputs.value.copy()
    value[0, 0, :, 2] = np.nan
    assert _judged(Bare(spec=spec), {"nan": replace(inputs, value=value)}) == []


@pytest.mark.parametrize("form", [Form.DECOMPOSED, Form.ORT_MHA])
@pytest.mark.parametrize("place", [0, 3, 6])
def test_nan_in_a_mask_is_not_swallowed(place: int, form: Form) -> None:
    """A row that hides all keys except one with a NaN mask is NaN, at any position of the NaN."""
    bare = Bare(spec=SPECS["float-mask"])
    inputs = draw_inputs(RAGGED.case(bare.spec, Dtype.FLOAT32))
    assert inputs.attn_mask is not None
    mask = inputs.attn_mask.copy()
    mask[:, :, 2:4] = -np.inf
    mask[:, :, 2, place] = np.nan
    outputs = run_once(bare.written(form), replace(inputs, attn_mask=mask))
    assert np.isnan(outputs["Y"][:, :, 2]).all()
    assert (outputs["Y"][:, :, 3] == 0).all()
    assert np.isfinite(outputs["Y"][:, :, [0, 1, 4]]).all()


# Planted faults: errors that a form could have.
_CASES = {"window": SPECS["window"], "bool": HARD_SPECS["gqa-bool"], "causal-past": HARD_SPECS["causal-past"]}


def _other_spec(**changes: object) -> Callable[[Bare], ir.Model]:
    def write(bare: Bare) -> ir.Model:
        model, attention = bare.build()
        lower(model, replace(attention, spec=replace(attention.spec, **changes)), Form.DECOMPOSED)  # type: ignore[arg-type]
        return model

    return write


def _edited(edit: Callable[[ir.Node], None], op_type: str) -> Callable[[Bare], ir.Model]:
    def write(bare: Bare) -> ir.Model:
        model = bare.written(Form.DECOMPOSED)
        for node in [node for node in model.graph if node.op_type == op_type]:
            edit(node)
        return model

    return write


def _swap_choices(where: ir.Node) -> None:
    """Swap the two branches of the bias, so that visible keys are hidden."""
    one, other = where.inputs[1], where.inputs[2]
    if one is not None and other is not None and one.producer() is not None and one.producer().op_type == "Constant":  # type: ignore[union-attr]
        where.replace_input_with(1, other)
        where.replace_input_with(2, one)


def _twice(mul: ir.Node) -> None:
    """Scale the key although the query is already scaled."""
    graph = mul.graph
    assert graph is not None
    turn = next(node for node in graph if node.op_type == "Transpose")
    again = ir.node("Mul", [turn.inputs[0], mul.inputs[1]])
    again.outputs[0].name = "scaled_again"
    graph.insert_before(turn, again)
    turn.replace_input_with(0, again.outputs[0])
    graph.sort()


def _keep_empty_rows(softmax: ir.Node) -> None:
    """Remove the guard."""
    graph = softmax.graph
    assert graph is not None
    guard = [node for node in graph if node.op_type == "Where"][-1]
    rows = guard.inputs[1]
    assert rows is not None
    guard.replace_input_with(0, guard.inputs[0])
    guard.replace_input_with(2, rows)


_FAULTS: dict[str, tuple[str, Callable[[Bare], ir.Model]]] = {
    "scale on query and key": ("bool", _edited(_twice, "Mul")),
    "mask inverted": ("bool", _edited(_swap_choices, "Where")),
    "rows without a key not guarded": ("bool", _edited(_keep_empty_rows, "Softmax")),
    "left window one more": ("window", _other_spec(left_window=4)),
    "left window one less": ("window", _other_spec(left_window=2)),
    "right window one more": ("window", _other_spec(right_window=1)),
    "causality one key further": ("causal-past", _other_spec(is_causal=False, right_window=1)),
    "no causality": ("causal-past", _other_spec(is_causal=False)),
    "scale one percent off": ("causal-past", _other_spec(scale=1.01 / 8**0.5)),
}


def _telling(spec: AttentionSpec) -> dict[str, AttentionInputs]:
    """Random inputs, and the probes of visibility and scale."""
    told = ("visible-keys", "score-levels", "masked-rows")
    long = Size(queries=6, keys=6, past=3)  # longer than any window here
    inputs = all_inputs(spec, [long])
    return drawn(spec, [long]) | {name: arrays for name, arrays in inputs.items() if name.endswith(told)}


@pytest.mark.parametrize(("case", "write"), _FAULTS.values(), ids=_FAULTS)
def test_planted_fault_is_found(case: str, write: Callable[[Bare], ir.Model]) -> None:
    """The check that passes the form fails each planted fault."""
    bare = Bare(spec=_CASES[case])
    assert Trials(bare=bare, model=write(bare)).judge(_telling(bare.spec)) != []


@pytest.mark.parametrize("spec", _CASES.values(), ids=_CASES)
def test_unspoilt_form_passes_the_same_inputs(spec: AttentionSpec) -> None:
    """The check that finds the faults passes the unmodified form."""
    bare = Bare(spec=spec)
    assert _judged(bare, _telling(spec)) == []
