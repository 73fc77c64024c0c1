"""Define the result of the search for the first bad node, and format it as text.

Does not search.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sdpa_onnx.core.records.verdicts import Verdict

__all__ = ["BadNode", "BadNodeKind", "NotJudged"]

# More names than this are counted, not listed.
_LISTED = 5


class BadNodeKind(StrEnum):
    """Kind of the fault.

    ALONE: one node is wrong by itself. FUSED: every node is right by itself, but several of them
    together are wrong. NOT_FOUND: neither.
    """

    ALONE = "alone"
    FUSED = "fused"
    NOT_FOUND = "not found"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotJudged:
    """A node that was not judged, and the reason."""

    node: str
    op_type: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BadNode:
    """The first node, or group of nodes, that introduces an error.

    Args:
        runtime: Name of the runtime.
        kind: See `BadNodeKind`.
        node: Its name, or its operator and output; the first of a group; "" if none was found.
        op_type: Its operator, with its domain if that is not the ONNX domain.
        value: The wrong output.
        verdict: WRONG if that is proven, SUSPICIOUS beyond the rule of decision 0001, OK if none was found.
        error: Largest error that exceeds its limit; allowed: that limit.
        evidence: One sentence.
        also: Later nodes of the same session that are bad by themselves too.
        group: Nodes of a group, in graph order.
        fused: Operators that ran but are not in the model, with their node counts.
        by_optimisation: Whether the group is right without graph optimisation; None = not tried.
        judged: Number of nodes that were judged by themselves.
        not_judged: Nodes that were not.
        note: Why the model's outputs could not be judged as a whole; "" otherwise.
    """

    runtime: str
    kind: BadNodeKind
    node: str = ""
    op_type: str = ""
    value: str = ""
    verdict: Verdict = Verdict.OK
    error: float = 0.0
    allowed: float = 0.0
    evidence: str = ""
    also: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    fused: Mapping[str, int] = field(default_factory=dict)
    by_optimisation: bool | None = None
    judged: int = 0
    not_judged: tuple[NotJudged, ...] = ()
    note: str = ""

    def sentence(self) -> str:
        """Format the result as text, one or more sentences."""
        return self._finding() + self._not_judged_text()

    def _finding(self) -> str:
        match self.kind:
            case BadNodeKind.ALONE:
                return (
                    f"The first bad node on {self.runtime} is '{self.node}' ({self.op_type}): with the reference's "
                    f"values as inputs, its output '{self.value}' is {self.verdict}. {self.evidence}{self._also()}"
                )
            case BadNodeKind.FUSED:
                return (
                    f"Every node is right by itself on {self.runtime}, but {self._span()} together are "
                    f"{self.verdict} at '{self.value}'. {self.evidence}{self._cause()}"
                )
            case BadNodeKind.NOT_FOUND:
                text = f"No bad node on {self.runtime}: {_count(self.judged)} judged, each by itself"
                return text + (f", but not all of them together: {self.note}." if self.note else ".")

    def _also(self) -> str:
        return f" Also bad: {_listed(self.also)}." if self.also else ""

    def _span(self) -> str:
        if len(self.group) == 1:
            return f"'{self.node}' and its neighbours"
        return f"the {len(self.group)} nodes from '{self.group[0]}' to '{self.group[-1]}'"

    def _cause(self) -> str:
        causes = {
            True: " Introduced by graph optimisation: without it they are right.",
            False: " Without graph optimisation they are not right either.",
            None: "",
        }
        listed = ", ".join(f"{name} {count}" for name, count in self.fused.items())
        return causes[self.by_optimisation] + (f" Fused operators that ran: {listed}." if listed else "")

    def _not_judged_text(self) -> str:
        if not self.not_judged:
            return ""
        first = self.not_judged[0]
        count = _count(len(self.not_judged))
        return f" {count} not judged, the first '{first.node}' ({first.op_type}): {first.reason}."


def _count(count: int) -> str:
    return f"{count} node was" if count == 1 else f"{count} nodes were"


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:_LISTED])
    more = len(names) - _LISTED
    return f"{shown} and {more} more" if more > 0 else shown
