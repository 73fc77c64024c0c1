"""What a module gives to scaled_dot_product_attention when it runs: scale, causality, mask.

Listens to PyTorch itself, not to a trace, so that it hears what a trace would
freeze. It compares nothing.
"""

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sdpa_onnx.errors import ExportError
from sdpa_onnx.torch_export.capture import evaluating
from sdpa_onnx.torch_export.quiet import quiet
from sdpa_onnx.torch_export.source_line import SourceLine, innermost_user_line

__all__ = ["AttentionCall", "WithScales", "attention_calls"]

_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """One call of scaled_dot_product_attention.

    Args:
        scale: The factor on QK^T, 1/sqrt(head_dim) where none was given.
        is_causal: The flag.
        has_mask: Whether a mask was given.
        head_dim: Width of a query.
        where: The line that called it, if it is known.
    """

    scale: float
    is_causal: bool
    has_mask: bool
    head_dim: int
    where: SourceLine | None


def attention_calls(module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> list[AttentionCall]:
    """Run a module once and list its attentions in the order of their calls.

    Raises:
        ExportError: If forward raises at these sizes.
    """
    listener = _Listener()
    try:
        with evaluating(module), quiet(), listener:
            module(*args, **kwargs)
    except Exception as error:  # whatever the user's code raises
        raise ExportError(f"The module does not run at these sizes: {type(error).__name__}: {error}.") from error
    return listener.calls


class WithScales(nn.Module):
    """A module whose attentions get these scales instead of their own, in the order of their calls.

    Args:
        module: The module.
        scales: One for each call; the last one for any more.
    """

    def __init__(self, module: nn.Module, scales: Sequence[float]) -> None:
        super().__init__()
        self.module = module
        self.scales = tuple(scales)

    def forward(self, *args: object, **kwargs: object) -> object:
        with _Overriding(self.scales):
            return self.module(*args, **kwargs)


class _Listener(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[AttentionCall] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        if func is functional.scaled_dot_product_attention:
            self.calls.append(_call(dict(zip(_PARAMETERS, args, strict=False)) | (kwargs or {})))
        return func(*args, **(kwargs or {}))


class _Overriding(TorchFunctionMode):
    def __init__(self, scales: Sequence[float]) -> None:
        super().__init__()
        self._scales = list(scales)

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        named = dict(kwargs or {})
        if func is functional.scaled_dot_product_attention:
            named["scale"] = self._scales.pop(0) if len(self._scales) > 1 else self._scales[0]
        return func(*args, **named)


def _call(given: Mapping[str, Any]) -> AttentionCall:
    width = int(given["query"].shape[-1])
    scale = given.get("scale")
    return AttentionCall(
        scale=width**-0.5 if scale is None else float(scale),
        is_causal=bool(given.get("is_causal", False)),
        has_mask=given.get("attn_mask") is not None,
        head_dim=width,
        where=innermost_user_line(traceback.extract_stack()),
    )
