"""Which integers an operator accepts in one of its inputs, and the view of a node that decides it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

__all__ = ["Allowed", "IntegerKind", "IntegerMeaning", "IntegerRule", "NodeView"]

Array = NDArray[np.generic]


class IntegerKind(StrEnum):
    """What the integers of an input are.

    INDEX entries are independent of each other, POSITIONS rise by 1 along the last axis, so do SLOTS, which must
    differ because something is written there, a LENGTH counts valid
    entries, a START is where new entries are written, BOUNDS are lengths followed by starts or offsets, a MASK is 1
    where an entry is visible, a PREFIX is a mask of which only the number of ones counts.
    """

    INDEX = "index"
    POSITIONS = "positions"
    SLOTS = "slots"
    LENGTH = "length"
    START = "start"
    BOUNDS = "bounds"
    MASK = "mask"
    PREFIX = "prefix"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """The integers that are legal.

    Args:
        low: The least.
        high: The greatest; below `low` = none is legal.
        is_reached: Whether one entry must be `high`.
        choices: If not empty, only these of them are legal.
    """

    low: int
    high: int
    is_reached: bool = False
    choices: tuple[int, ...] = ()

    def of(self, other: "Allowed | None") -> "Allowed":
        """What both allow."""
        if other is None:
            return self
        both = {*self.choices} & {*other.choices} if self.choices and other.choices else {*self.choices, *other.choices}
        low, high = max(self.low, other.low), min(self.high, other.high)
        choices = tuple(sorted(one for one in both if low <= one <= high))
        if (self.choices or other.choices) and not choices:
            low, high = 1, 0
        return Allowed(low=low, high=high, is_reached=self.is_reached or other.is_reached, choices=choices)

    def holds(self, array: Array) -> bool:
        """Whether all entries of an array are legal."""
        if not array.size:
            return True
        low, high = int(array.min()), int(array.max())
        fits = self.low <= low and high <= self.high and (not self.is_reached or high == self.high)
        return fits and (not self.choices or {*np.unique(array).tolist()} <= {*self.choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerMeaning:
    """What an integer input is.

    Args:
        kind: What its numbers are.
        allowed: What is legal, of its row sums for a PREFIX; None if nothing limits it.
        where: The operators' inputs or the hints that say so, such as "GroupQueryAttention seqlens_k".
    """

    kind: IntegerKind
    allowed: Allowed | None
    where: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node at given sizes.

    Args:
        node: The node.
        opset: Version of the operator's domain.
        shapes: Shape of each input by its name in the operator's specification, where it is known.
        arrays: Numbers of the integer inputs that are known, by the same name.
    """

    node: ir.Node
    opset: int
    shapes: Mapping[str, tuple[int, ...]]
    arrays: Mapping[str, Array]

    def size(self, name: str, axis: int) -> int | None:
        """Size of one axis of an input; None if it is unknown or absent."""
        shape = self.shapes.get(name)
        return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        attribute = self.node.attributes.get(name)
        return attribute.as_int() if attribute is not None and attribute.type is ir.AttributeType.INT else default

    def text(self, name: str, default: str) -> str:
        """A text attribute."""
        attribute = self.node.attributes.get(name)
        return attribute.as_string() if attribute is not None else default


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerRule:
    """One constraint of the table: what an operator accepts in one integer input.

    Args:
        domain: "" or "com.microsoft".
        operator: Its type.
        name: The input, by its name in the operator's specification.
        kind: What the integers are.
        says: The constraint, one clause.
        source: The phrase of the specification that states it, word for word.
        allowed: What is legal at the sizes of a node; None if the sizes leave it open.
        first_opset: The first version of the domain in which it holds.
        ranks: Ranks of the input for which it holds; empty = all.
    """

    domain: str
    operator: str
    name: str
    kind: IntegerKind
    says: str
    source: str
    allowed: Callable[[NodeView], Allowed | None]
    first_opset: int = 1
    ranks: tuple[int, ...] = ()

    def covers(self, view: NodeView) -> bool:
        """Whether the rule is about this node: its version, and the rank of its input."""
        shape = view.shapes.get(self.name)
        return view.opset >= self.first_opset and (not self.ranks or shape is None or len(shape) in self.ranks)
