"""The reason why an attention cannot be read, as a value instead of an exception."""

from dataclasses import dataclass

__all__ = ["UnreadReason"]


@dataclass(frozen=True, slots=True)
class UnreadReason:
    """The result of a reading step that does not match.

    Args:
        reason: What was found instead; names the node.
    """

    reason: str
