"""The keys that positions leave visible: a window around each query, with causality as its right bound."""

from dataclasses import dataclass

from sdpa_onnx.core.attention.spec import AttentionSpec

__all__ = ["WindowBounds", "bounds_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowBounds:
    """Number of keys visible on each side of a query's position; None = all.

    Source: ONNX Attention, opset 25: causality is a right bound of 0.
    """

    left: int | None = None
    right: int | None = None

    def __bool__(self) -> bool:
        return self.left is not None or self.right is not None

    def __and__(self, other: "WindowBounds") -> "WindowBounds":
        """The keys that both leave visible.

        Example:
            >>> WindowBounds(right=0) & WindowBounds(left=8, right=4)
            WindowBounds(left=8, right=0)
        """
        return WindowBounds(left=_narrower(self.left, other.left), right=_narrower(self.right, other.right))

    @property
    def text(self) -> str:
        """In words: 'causal', 'window of 8 keys to the left, 0 to the right'.

        Example:
            >>> WindowBounds(left=8, right=0).text
            'causal, window 8 left'
        """
        right = [] if self.right is None else ["causal"] if self.right == 0 else [f"window {self.right} right"]
        left = [] if self.left is None else [f"window {self.left} left"]
        return ", ".join([*right, *left])


def bounds_of(spec: AttentionSpec) -> WindowBounds:
    """Causality and windows of a spec as window bounds."""
    right = 0 if spec.is_causal else spec.right_window
    return WindowBounds(left=None if spec.left_window < 0 else spec.left_window, right=None if right < 0 else right)


def _narrower(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)
