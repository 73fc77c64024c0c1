"""Group findings that look like one cause: what they share, how many there are, and the smallest."""

from dataclasses import dataclass, field

from sdpa_onnx.core.records.records import Conformity
from sdpa_onnx.workflows.fuzz.case import FuzzFinding
from sdpa_onnx.workflows.reduce.search import ReducedCase
from sdpa_onnx.workflows.reduce.trials import message_shape

__all__ = ["FuzzGroup", "FuzzGroups", "sign_of", "title_of"]

# How an output is wrong that no known fault explains.
_NOT_FINITE, _SHAPE = "not finite", "shape"
# Wrong only after other runs; how depends on these.
_STATE = "after other runs of its session, right in a fresh one"
# Worst first.
_ORDER = (Conformity.CRASHED, Conformity.WRONG, Conformity.SUSPICIOUS, Conformity.REFUSED)


@dataclass(slots=True, kw_only=True)
class FuzzGroup:
    """Findings that look like one cause.

    Args:
        title: What they have in common, without numbers; the same from run to run.
        first: The finding with the lowest number.
        smallest: The finding with the fewest input elements; one without a size of 0 if there is any.
        common: Special properties that all of them share.
        count: Number of findings.
        reduced: The smallest case that still fails, after a reduction.
        note: Why there is no such case; "" if there is, or if none was requested.
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
        """WRONG, SUSPICIOUS, REFUSED or CRASHED."""
        return self.first.kind

    def take(self, other: "FuzzGroup") -> None:
        """Add the findings of another group with the same cause; title and reduced case stay, and so does its kind."""
        self.count += other.count
        self.common &= other.common
        if other.kind is not self.kind:  # a suspicious finding never represents a group that is proved wrong
            return
        self.first = min(self.first, other.first, key=lambda finding: finding.number)
        self.smallest = min(self.smallest, other.smallest, key=_size_of)


@dataclass(slots=True)
class FuzzGroups:
    """Groups findings in the order in which they are found."""

    _found: dict[tuple[str, ...], FuzzGroup] = field(default_factory=dict, init=False)

    def add(self, finding: FuzzFinding) -> None:
        """Add a finding to the group of its kind."""
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
        """Merge groups with the same reduced case: one cause can have several symptoms."""
        kept: dict[tuple[str, ...], FuzzGroup] = {}
        for place, group in enumerate(self.ordered()):
            small = group.reduced
            case = "" if small is None else small.case
            apart = f"{case} {small.model.opset} {len(small.before)}" if small and case else str(place)
            kind = "disagrees" if group.kind.disagrees else group.kind
            key = (kind, group.first.output, group.first.path, apart)
            if key in kept:
                kept[key].take(group)
            else:
                kept[key] = group
        self._found = kept

    def ordered(self) -> tuple[FuzzGroup, ...]:
        """Crashes, then wrong outputs, suspicious ones, and refusals; within each the most frequent first."""
        found = self._found.values()
        return tuple(sorted(found, key=lambda group: (_ORDER.index(group.kind), -group.count, group.first.number)))


def _size_of(finding: FuzzFinding) -> tuple[bool, int]:
    """Sort key: empty cases last, since they show little."""
    return finding.is_empty, finding.elements


def sign_of(finding: FuzzFinding) -> str:
    """Key that separates causes: the fault that explains an output, or the error text without numbers."""
    if not finding.kind.disagrees:
        return message_shape(finding.message)
    if finding.after:
        return _STATE
    if finding.explanation is not None:
        return finding.explanation.reading
    agreement = finding.agreement
    if agreement is None or agreement.total == 0:
        return _SHAPE
    return _NOT_FINITE if agreement.not_finite else ""


def title_of(finding: FuzzFinding) -> str:
    """A sentence without numbers, so that a list of known findings can name it."""
    where = f" ({finding.path})" if finding.path else ""
    if not finding.kind.disagrees:
        return f"{finding.kind.value}{where}: {message_shape(finding.message)}"
    how = sign_of(finding)
    if finding.explanation is not None and not finding.after:
        how = f"it looks as if {message_shape(finding.explanation.says)}"
    tail = f": {how}" if how else ""
    return f"{finding.output} {finding.verdict or finding.kind}{where}{tail}."
