"""Findings of one kind as one group: what is the same about them, how many there are, the smallest of them."""

from dataclasses import dataclass, field

from sdpa_onnx.core.records.records import Conformity
from sdpa_onnx.workflows.fuzz.case import FuzzFinding
from sdpa_onnx.workflows.reduce.search import ReducedCase
from sdpa_onnx.workflows.reduce.trials import message_shape

__all__ = ["FuzzGroup", "FuzzGroups", "sign_of", "title_of"]

# Where no reading explains an output, this says how it is wrong.
_NOT_FINITE, _SHAPE = "not finite", "shape"
# Worst first.
_ORDER = (Conformity.CRASHED, Conformity.WRONG, Conformity.REFUSED)


@dataclass(slots=True, kw_only=True)
class FuzzGroup:
    """Findings that look like one cause.

    Args:
        title: What they have in common, without numbers; the same from run to run.
        first: The finding with the lowest number.
        smallest: The one with the fewest numbers that went in, one with no size of 0 if there is any.
        common: What is special about every one of them.
        count: How many there are.
        reduced: The smallest case that still fails, once it was looked for.
        note: Why there is none; "" if there is, or if none was asked for.
    """

    title: str
    first: FuzzFinding
    smallest: FuzzFinding
    common: frozenset[str]
    count: int = 1
    reduced: ReducedCase | None = None
    note: str = ""

    @property
    def kind(self) -> Conformity:
        """WRONG, REFUSED or CRASHED."""
        return self.first.kind

    def take(self, other: "FuzzGroup") -> None:
        """Add the findings of another group that has the same cause; title and smallest case stay."""
        self.count += other.count
        self.common &= other.common
        self.first = min(self.first, other.first, key=lambda finding: finding.number)
        self.smallest = min(self.smallest, other.smallest, key=_size_of)


@dataclass(slots=True)
class FuzzGroups:
    """Sorts findings as they come."""

    _found: dict[tuple[str, ...], FuzzGroup] = field(default_factory=dict, init=False)

    def add(self, finding: FuzzFinding) -> None:
        """Put a finding to its like."""
        key = (finding.kind, finding.verdict or "", finding.output, finding.path, sign_of(finding))
        group = self._found.get(key)
        if group is None:
            self._found[key] = FuzzGroup(
                title=title_of(finding), first=finding, smallest=finding, common=finding.features
            )
            return
        group.count += 1
        group.common &= finding.features
        if _size_of(finding) < _size_of(group.smallest):
            group.smallest = finding

    def merge(self) -> None:
        """Make one group of those that came down to the same smallest case: one cause can look in many ways."""
        kept: dict[tuple[str, ...], FuzzGroup] = {}
        for place, group in enumerate(self.ordered()):
            small = group.reduced
            apart = str(place) if small is None or not small.case else f"{small.case} {small.model.opset}"
            key = (group.kind, group.first.output, group.first.path, apart)
            if key in kept:
                kept[key].take(group)
            else:
                kept[key] = group
        self._found = kept

    def ordered(self) -> tuple[FuzzGroup, ...]:
        """Crashes, wrong outputs, refusals; of each the most frequent first."""
        found = self._found.values()
        return tuple(sorted(found, key=lambda group: (_ORDER.index(group.kind), -group.count, group.first.number)))


def _size_of(finding: FuzzFinding) -> tuple[bool, int]:
    """An empty case shows little, unless all of its kind are empty."""
    return finding.is_empty, finding.elements


def sign_of(finding: FuzzFinding) -> str:
    """What tells one cause from another: the reading that explains an output, or the error text without numbers."""
    if finding.kind is not Conformity.WRONG:
        return message_shape(finding.message)
    if finding.explanation is not None:
        return finding.explanation.reading
    agreement = finding.agreement
    if agreement is None or agreement.total == 0:
        return _SHAPE
    return _NOT_FINITE if agreement.not_finite else ""


def title_of(finding: FuzzFinding) -> str:
    """A sentence without numbers, so that a list of known findings can name it."""
    where = f" ({finding.path})" if finding.path else ""
    if finding.kind is not Conformity.WRONG:
        return f"{finding.kind.value}{where}: {message_shape(finding.message)}"
    how = sign_of(finding)
    if finding.explanation is not None:
        how = f"it looks as if {message_shape(finding.explanation.says)}"
    tail = f": {how}" if how else ""
    return f"{finding.output} {finding.verdict or finding.kind}{where}{tail}."
