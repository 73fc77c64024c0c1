"""Whole numbers that a graph computes when it runs: scalars and rows of int64; knows no attention."""

import onnx_ir as ir

from sdpa_onnx.graph.nodes import Nodes

__all__ = ["IndexArithmetic"]

_INT64, _BOOL = ir.DataType.INT64, ir.DataType.BOOL

Number = ir.Value | int


class IndexArithmetic:
    """Arithmetic on int64 values of the graph; a Python number stands for a constant scalar.

    Each method writes one node and gives its output. Division rounds down for
    what is not negative.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def add(self, one: Number, other: Number) -> ir.Value:
        return self._apply("Add", one, other)

    def subtract(self, one: Number, other: Number) -> ir.Value:
        return self._apply("Sub", one, other)

    def multiply(self, one: Number, other: Number) -> ir.Value:
        return self._apply("Mul", one, other)

    def divide(self, one: Number, other: Number) -> ir.Value:
        return self._apply("Div", one, other)

    def least(self, one: Number, other: Number) -> ir.Value:
        return self._apply("Min", one, other)

    def most(self, one: Number, other: Number) -> ir.Value:
        return self._apply("Max", one, other)

    def clamp(self, number: Number, low: Number, high: Number) -> ir.Value:
        return self.least(self.most(number, low), high)

    def blocks_of(self, length: Number, block: Number) -> ir.Value:
        """How many blocks cover a length: rounded up."""
        return self.divide(self.add(length, self.subtract(block, 1)), block)

    def is_at_most(self, number: Number, limit: Number) -> ir.Value:
        """Boolean of number <= limit."""
        return self._nodes("LessOrEqual", self.value(number), self.value(limit), dtype=_BOOL)

    def if_at_most(self, number: Number, limit: Number, then: Number, otherwise: Number) -> ir.Value:
        """`then` where number <= limit."""
        is_less = self.is_at_most(number, limit)
        return self._nodes("Where", is_less, self.value(then), self.value(otherwise), dtype=_INT64)

    def range(self, end: Number, start: Number = 0) -> ir.Value:
        """Start, start + 1, ... end - 1."""
        return self._nodes("Range", self.value(start), self.value(end), self.value(1), dtype=_INT64)

    def column(self, numbers: ir.Value) -> ir.Value:
        """(n, 1) of n numbers or of a scalar."""
        return self._nodes("Reshape", numbers, self._nodes.integers(-1, 1), dtype=_INT64)

    def table(self, *columns: Number, rows: ir.Value) -> ir.Value:
        """(rows, columns), each column n numbers or a scalar for all rows."""
        shape = self._nodes("Concat", self._vector(rows), self._nodes.integers(1), axis=0, dtype=_INT64)
        wide = [self._nodes("Expand", self.column(self.value(one)), shape, dtype=_INT64) for one in columns]
        return self._nodes("Concat", *wide, axis=1, dtype=_INT64)

    def repeated(self, number: ir.Value, times: ir.Value) -> ir.Value:
        """(times,) of a scalar; a row of that length stays as it is."""
        return self._nodes("Expand", number, self._vector(times), dtype=_INT64)

    def vector(self, *numbers: Number) -> ir.Value:
        """A 1-D row of scalars, as shapes are."""
        return self._nodes("Concat", *[self._vector(self.value(one)) for one in numbers], axis=0, dtype=_INT64)

    def pick(self, table: ir.Value, at: ir.Value) -> ir.Value:
        """One row of a table, or one number of a row as a scalar, by a scalar index."""
        return self._nodes("Gather", table, at, axis=0, dtype=_INT64)

    def size(self, value: ir.Value, axis: int) -> ir.Value:
        """Length of an axis."""
        shape = self._nodes("Shape", value, dtype=_INT64)
        return self._nodes("Gather", shape, self.value(axis), axis=0, dtype=_INT64)

    def value(self, number: Number) -> ir.Value:
        return self._nodes.constant(number, _INT64) if isinstance(number, int) else number

    def _vector(self, number: ir.Value) -> ir.Value:
        return self._nodes("Reshape", number, self._nodes.integers(1), dtype=_INT64)

    def _apply(self, operator: str, one: Number, other: Number) -> ir.Value:
        return self._nodes(operator, self.value(one), self.value(other), dtype=_INT64)
