"""Bounds hold: what an operator gives on content between the bounds of its inputs lies between those of its output."""

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
import pytest

from sdpa_onnx.graph.lift.size_trial import NodeEvaluators
from sdpa_onnx.graph.lift.spans import SPAN_OPERATORS, Call, Span, hidden_below, unknown_span

RNG = np.random.default_rng(5)
SHAPE = (3, 4)
DRAWS = 25
ONE = np.asarray(1, np.int64)


def numbers() -> Span:
    """Half of the entries known exactly."""
    low = RNG.integers(-3, 3, SHAPE).astype(np.float32)
    return Span(low=low, high=low + RNG.integers(0, 2, SHAPE).astype(np.float32))


def flags() -> Span:
    low, high = RNG.random(SHAPE) < 0.3, RNG.random(SHAPE) < 0.7
    return Span(low=low & high, high=low | high)


def exactly(*entries: int) -> Callable[[], Span]:
    return lambda: Span.exactly(np.asarray(entries, np.int64))


CASES: dict[str, tuple[str, Sequence[Callable[[], Span]], dict[str, int]]] = {
    "Not": ("Not", [flags], {}),
    "And": ("And", [flags, flags], {}),
    "Or": ("Or", [flags, flags], {}),
    "Neg": ("Neg", [numbers], {}),
    "Add": ("Add", [numbers, numbers], {}),
    "Sub": ("Sub", [numbers, numbers], {}),
    "Mul": ("Mul", [numbers, numbers], {}),
    "Min": ("Min", [numbers, numbers], {}),
    "Max": ("Max", [numbers, numbers], {}),
    "Where": ("Where", [flags, numbers, numbers], {}),
    "Greater": ("Greater", [numbers, numbers], {}),
    "GreaterOrEqual": ("GreaterOrEqual", [numbers, numbers], {}),
    "Less": ("Less", [numbers, numbers], {}),
    "LessOrEqual": ("LessOrEqual", [numbers, numbers], {}),
    "Equal": ("Equal", [numbers, numbers], {}),
    "Cast to bool": ("Cast", [numbers], {"to": ir.DataType.BOOL}),
    "Cast to int": ("Cast", [numbers], {"to": ir.DataType.INT64}),
    "Cast of bool": ("Cast", [flags], {"to": ir.DataType.FLOAT}),
    "Transpose": ("Transpose", [numbers], {}),
    "Unsqueeze": ("Unsqueeze", [numbers, exactly(0)], {}),
    "Slice": ("Slice", [numbers, exactly(1), exactly(3), exactly(0)], {}),
    "Gather": ("Gather", [numbers, exactly(2, 0)], {"axis": 0}),
    "ReduceMax": ("ReduceMax", [numbers, exactly(1)], {}),
    "Trilu": ("Trilu", [numbers], {"upper": 0}),
}


@pytest.mark.parametrize(("op_type", "made", "attributes"), CASES.values(), ids=CASES)
def test_outputs_lie_between_the_bounds(
    op_type: str, made: Sequence[Callable[[], Span]], attributes: dict[str, int]
) -> None:
    """For random bounds and random content between them."""
    evaluators = NodeEvaluators({"": 18})
    for _ in range(DRAWS):
        spans = [make() for make in made]
        node = ir.node(op_type, [ir.Value(name=f"x{at}") for at in range(len(spans))], attributes)
        span = SPAN_OPERATORS[op_type](
            Call(node=node, inputs=spans, evaluate=lambda *arrays, node=node: evaluators.evaluate(node, 0, arrays))
        )
        assert span is not None
        actual = evaluators.evaluate(node, 0, [_between(one) for one in spans])
        assert (np.asarray(span.low) <= actual).all()
        assert (actual <= np.asarray(span.high)).all()
        assert span.low.shape == actual.shape


def test_nothing_is_said_where_the_place_is_not_known() -> None:
    """Entries moved by numbers that content decides may be anywhere."""
    index = Span(low=np.asarray([0], np.int64), high=np.asarray([2], np.int64))
    node = ir.node("Gather", [ir.Value(name="x"), ir.Value(name="i")])
    assert SPAN_OPERATORS["Gather"](Call(node=node, inputs=[numbers(), index], evaluate=lambda *_: ONE)) is None


def test_what_hides_by_type() -> None:
    """Half the lowest number of the type, so that a bias beside it changes nothing; a whole number never hides."""
    assert hidden_below(np.dtype(np.float32)) == float(np.finfo(np.float32).min) / 2
    assert hidden_below(np.dtype(np.float16)) == -65504 / 2
    assert hidden_below(np.dtype(np.int64)) == -np.inf


def test_unknown_content() -> None:
    """A flag is one of two, a number anything."""
    assert (unknown_span(np.dtype(np.bool_), (2,)).low.any(), unknown_span(np.dtype(np.bool_), (2,)).high.all()) == (
        False,
        True,
    )
    whole = unknown_span(np.dtype(np.int64), (2,))
    assert (whole.low == -np.inf).all()
    assert (whole.high == np.inf).all()


def _between(span: Span) -> np.ndarray:
    if span.is_exact:
        return span.low
    return np.where(RNG.random(span.low.shape) < 0.5, span.low, span.high)
