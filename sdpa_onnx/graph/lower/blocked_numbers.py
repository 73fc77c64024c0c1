"""Build int64 arithmetic as ONNX nodes: scalars, vectors and tables of sizes and indices. Knows no attention."""

import onnx_ir as ir

from sdpa_onnx.graph.nodes import Nodes

__all__ = ["IndexArithmetic"]

_INT64, _BOOL = ir.DataType.INT64, ir.DataType.BOOL

Number = ir.Value | int


class IndexArithmetic:
    """Arithmetic on int64 graph values; a Python int becomes a constant scalar.

    Each method adds nodes and returns their output. Division truncates, so it
    rounds down for non-negative numbers.
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

    def minimum(self, one: Number, other: Number) -> ir.Value:
        return self._apply("Min", one, other)

    def maximum(self, one: Number, other: Number) -> ir.Value:
        return self._apply("Max", one, other)

    def clamp(self, number: Number, low: Number, high: Number) -> ir.Value:
        return self.minimum(self.maximum(number, low), high)

    def blocks_of(self, length: Number, block: Number) -> ir.Value:
        """Number of blocks that cover a length: division rounded up."""
        return self.divide(self.add(length, self.subtract(block, 1)), block)

    def is_at_most(self, number: Number, limit: Number) -> ir.Value:
        """Whether number <= limit, boolean."""
        return self._nodes("LessOrEqual", self.value(number), self.value(limit), dtype=_BOOL)

    def if_at_most(self, number: Number, limit: Number, then: Number, otherwise: Number) -> ir.Value:
        """`then` where number <= limit, else `otherwise`."""
        is_less = self.is_at_most(number, limit)
        return self._nodes("Where", is_less, self.value(then), self.value(otherwise), dtype=_INT64)

    def range(self, end: Number, start: Number = 0) -> ir.Value:
        """The vector start, start + 1, ... end - 1."""
        return self._nodes("Range", self.value(start), self.value(end), self.value(1), dtype=_INT64)

    def column(self, numbers: ir.Value) -> ir.Value:
        """Reshape n numbers or a scalar to (n, 1)."""
        return self._nodes("Reshape", numbers, self._nodes.integers(-1, 1), dtype=_INT64)

    def table(self, *columns: Number, rows: ir.Value) -> ir.Value:
        """A (rows, columns) table; each column is a vector of that length, or a scalar for all rows."""
        shape = self._nodes("Concat", self._vector(rows), self._nodes.integers(1), axis=0, dtype=_INT64)
        wide = [self._nodes("Expand", self.column(self.value(one)), shape, dtype=_INT64) for one in columns]
        return self._nodes("Concat", *wide, axis=1, dtype=_INT64)

    def repeated(self, number: ir.Value, times: ir.Value) -> ir.Value:
        """Expand a scalar to (times,); a vector of that length is unchanged."""
        return self._nodes("Expand", number, self._vector(times), dtype=_INT64)

    def vector(self, *numbers: Number) -> ir.Value:
        """A 1-D vector of scalars, such as a shape."""
        return self._nodes("Concat", *[self._vector(self.value(one)) for one in numbers], axis=0, dtype=_INT64)

    def pick(self, table: ir.Value, at: ir.Value) -> ir.Value:
        """One row of a table, or one number of a row as a scalar, by a scalar index."""
        return self._nodes("Gather", table, at, axis=0, dtype=_INT64)

    def size(self, value: ir.Value, axis: int) -> ir.Value:
        """Size of an axis, as a scalar."""
        shape = self._nodes("Shape", value, dtype=_INT64)
        return self._nodes("Gather", shape, self.value(axis), axis=0, dtype=_INT64)

    def value(self, number: Number) -> ir.Value:
        return self._nodes.constant(number, _INT64) if isinstance(number, int) else number

    def _vector(self, number: ir.Value) -> ir.Value:
        return self._nodes("Reshape", number, self._nodes.integers(1), dtype=_INT64)

    def _apply(self, operator: str, one: Number, other: Number) -> ir.Value:
        return self._nodes(operator, self.value(one), self.value(other), dtype=_INT64)
