"""Why an attention could not be read: one sentence that names the node."""

from dataclasses import dataclass

__all__ = ["UnreadReason"]


@dataclass(frozen=True, slots=True)
class UnreadReason:
    """A step of reading that found something else than it can read.

    Args:
        reason: What stands there, naming the node.
    """

    reason: str
