"""Symbolic axis sizes: named or anonymous axes, and integer expressions of them. Does not infer shapes; `axes` does."""

from dataclasses import dataclass

__all__ = ["SameSizes", "SizeEntry", "SymbolicSize", "is_length", "stated"]

# Prefix of the axis names that onnx.shape_inference invents.
_INFERRED_NAME = "unk__"
# Terms of a named axis: "axis" and its name.
_NAMED = 2


@dataclass(frozen=True, slots=True)
class SymbolicSize:
    """The size of an axis, by name or by position, or an integer expression of sizes.

    Equal symbolic sizes are the same number; different ones may be the same number.

    Args:
        terms: ("axis", name) for a named axis, ("axis", value, position) for an unnamed one, or an operator and its
            operands. ("cut", wanted, size) is the smaller of two: the entries of a slice that wants so many.
    """

    terms: tuple[object, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the axes that it depends on, as often as they occur."""
        if self.terms[0] == "axis":
            return (str(self.terms[1]),) if len(self.terms) == _NAMED else ()
        return tuple(name for part in self.terms[1:] if isinstance(part, SymbolicSize) for name in part.names)

    def __mul__(self, other: object) -> "SymbolicSize":
        return self if other == 1 else SymbolicSize(("*", *sorted((self, other), key=repr)))

    def __add__(self, other: object) -> "SymbolicSize":
        return self if other == 0 else SymbolicSize(("+", *sorted((self, other), key=repr)))

    def __sub__(self, other: object) -> "SymbolicSize":
        return self if other == 0 else SymbolicSize(("-", self, other))

    def __rsub__(self, other: object) -> "SymbolicSize":
        return SymbolicSize(("-", other, self))

    def __floordiv__(self, other: object) -> "SymbolicSize":
        return self if other == 1 else SymbolicSize(("/", self, other))

    def __rfloordiv__(self, other: object) -> "SymbolicSize":
        return SymbolicSize(("/", other, self))

    __rmul__ = __mul__
    __radd__ = __add__


SizeEntry = int | SymbolicSize


def stated(size: SizeEntry) -> int | str | None:
    """The size as a dimension of an ONNX shape: a number, an axis name, or None."""
    if not isinstance(size, SymbolicSize):
        return size
    named = len(size.terms) == 2 and size.terms[0] == "axis"
    return str(size.terms[1]) if named else None


def is_length(size: object) -> bool:
    """Whether a size cannot be negative, whatever the axes are."""
    if isinstance(size, int):
        return size >= 0
    if not isinstance(size, SymbolicSize):
        return False
    return size.terms[0] == "axis" or (size.terms[0] != "-" and all(is_length(part) for part in size.terms[1:]))


class SameSizes:
    """Equal sizes that have several names: those in the graph and those that shape inference invents."""

    def __init__(self) -> None:
        self._as: dict[SymbolicSize, SizeEntry] = {}
        self._wanted: dict[SizeEntry, SizeEntry] = {}

    def note(self, one: SizeEntry, other: SizeEntry) -> None:
        """Record that two sizes are the same number."""
        one, other = self.known_as(one), self.known_as(other)
        if one == other:
            return
        worse, better = sorted((one, other), key=_preference, reverse=True)
        if isinstance(worse, SymbolicSize) and (isinstance(better, int) or better.terms[0] == "axis"):
            self._as[worse] = better
            if worse.terms[0] == "cut":
                self._wanted[better] = worse.terms[1]  # type: ignore[assignment]  # a size

    def wanted(self, size: SizeEntry) -> SizeEntry | None:
        """How many entries a slice wants that has so many, or fewer where its axis is shorter; None if it is none."""
        if isinstance(size, SymbolicSize) and size.terms[0] == "cut":
            return size.terms[1]  # type: ignore[return-value]  # a size
        found = self._wanted.get(size)
        return None if found is None else self.known_as(found)

    def known_as(self, size: SizeEntry) -> SizeEntry:
        """The best known form of a size: a number if possible, else a name or an expression."""
        if not isinstance(size, SymbolicSize):
            return size
        if size.terms[0] != "axis":
            size = _computed(size.terms[0], *(self.known_as(part) for part in size.terms[1:]))  # type: ignore[arg-type]  # operands are sizes
        while isinstance(size, SymbolicSize) and size in self._as:
            size = self._as[size]
        return size


def _preference(size: SizeEntry) -> int:
    """Rank of a size's form, best first: number, graph name, inferred name, anonymous axis, expression."""
    if not isinstance(size, SymbolicSize):
        return 0
    if size.terms[0] != "axis":
        return 4
    name = stated(size)
    return 3 if name is None else 2 if str(name).startswith(_INFERRED_NAME) else 1


def _computed(operator: object, one: SizeEntry, other: SizeEntry) -> SizeEntry:
    match operator:
        case "*":
            return one * other
        case "+":
            return one + other
        case "-":
            return one - other
        case "cut" if isinstance(one, int) and isinstance(other, int):
            return min(one, other)
        case "cut":
            return one if one == other else SymbolicSize(("cut", one, other))
        case _:
            return one // other
