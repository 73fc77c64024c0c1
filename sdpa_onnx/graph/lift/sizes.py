"""Sizes that are not known as numbers but can be told from others: lengths of axes, and what is computed from them."""

from dataclasses import dataclass

__all__ = ["SameSizes", "SizeEntry", "SymbolicSize", "stated"]

# How onnx.shape_inference names axes.
_MADE_UP = "unk__"


@dataclass(frozen=True, slots=True)
class SymbolicSize:
    """The size of an axis by name or place, or what whole-number arithmetic makes of sizes.

    Two that are equal are the same number; two that are not may be.

    Args:
        words: ("axis", name) of a named axis, ("axis", value, position) of another, or an operator and its operands.
    """

    words: tuple[object, ...]

    def __mul__(self, other: object) -> "SymbolicSize":
        return SymbolicSize(("*", *sorted((self, other), key=repr)))

    def __add__(self, other: object) -> "SymbolicSize":
        return SymbolicSize(("+", *sorted((self, other), key=repr)))

    def __sub__(self, other: object) -> "SymbolicSize":
        return SymbolicSize(("-", self, other))

    def __rsub__(self, other: object) -> "SymbolicSize":
        return SymbolicSize(("-", other, self))

    def __floordiv__(self, other: object) -> "SymbolicSize":
        return SymbolicSize(("/", self, other))

    def __rfloordiv__(self, other: object) -> "SymbolicSize":
        return SymbolicSize(("/", other, self))

    __rmul__ = __mul__
    __radd__ = __add__


SizeEntry = int | SymbolicSize


def stated(size: SizeEntry) -> int | str | None:
    """What a shape says of a size: its number, the name of its axis, or nothing."""
    if not isinstance(size, SymbolicSize):
        return size
    named = len(size.words) == 2 and size.words[0] == "axis"
    return str(size.words[1]) if named else None


class SameSizes:
    """What is known of sizes that go by several names: shape inference invents names, and a graph has its own."""

    def __init__(self) -> None:
        self._as: dict[SymbolicSize, SizeEntry] = {}

    def note(self, one: SizeEntry, other: SizeEntry) -> None:
        """Two sizes are the same number."""
        one, other = self.known_as(one), self.known_as(other)
        if one == other:
            return
        worse, better = sorted((one, other), key=_clearness, reverse=True)
        if isinstance(worse, SymbolicSize) and (isinstance(better, int) or better.words[0] == "axis"):
            self._as[worse] = better

    def known_as(self, size: SizeEntry) -> SizeEntry:
        """The best name of a size: a number if it is one."""
        if not isinstance(size, SymbolicSize):
            return size
        if size.words[0] != "axis":
            size = _computed(size.words[0], *(self.known_as(part) for part in size.words[1:]))  # type: ignore[arg-type]  # operands are sizes
        while isinstance(size, SymbolicSize) and size in self._as:
            size = self._as[size]
        return size


def _clearness(size: SizeEntry) -> int:
    """How well a size is known, best first: a number, a name, one that shape inference made up, a place, a sum."""
    if not isinstance(size, SymbolicSize):
        return 0
    if size.words[0] != "axis":
        return 4
    name = stated(size)
    return 3 if name is None else 2 if str(name).startswith(_MADE_UP) else 1


def _computed(operator: object, one: SizeEntry, other: SizeEntry) -> SizeEntry:
    match operator:
        case "*":
            return one * other
        case "+":
            return one + other
        case "-":
            return one - other
        case _:
            return one // other
