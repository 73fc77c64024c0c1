"""Record the calls of scaled_dot_product_attention while a module runs: scale, causality, mask.

Intercepts PyTorch calls in an eager run, not in a trace, because a trace would freeze these values. Compares nothing.
"""

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sdpa_onnx.errors import ExportError
from sdpa_onnx.torch_export.capture import eval_mode
from sdpa_onnx.torch_export.quiet import quiet
from sdpa_onnx.torch_export.source_line import SourceLine, innermost_user_line

__all__ = ["AttentionCall", "ModuleWithScales", "attention_calls"]

_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """One call of scaled_dot_product_attention.

    Args:
        scale: The factor on QK^T; 1/sqrt(head_dim) if the call has none.
        is_causal: The argument is_causal.
        has_mask: Whether the call has a mask.
        head_dim: Width of the query heads.
        where: The source line of the call, if known.
    """

    scale: float
    is_causal: bool
    has_mask: bool
    head_dim: int
    where: SourceLine | None


def attention_calls(module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> list[AttentionCall]:
    """Run a module once and list its attention calls in order.

    Raises:
        ExportError: If forward raises at these sizes.
    """
    recorder = _CallRecorder()
    try:
        with eval_mode(module), quiet(), recorder:
            module(*args, **kwargs)
    except Exception as error:  # whatever the user's code raises
        raise ExportError(f"The module does not run at these sizes: {type(error).__name__}: {error}.") from error
    return recorder.calls


class ModuleWithScales(nn.Module):
    """A module whose attention calls use these scales instead of their own, in the order of the calls.

    Args:
        module: The module.
        scales: One scale per call; further calls use the last one.
    """

    def __init__(self, module: nn.Module, scales: Sequence[float]) -> None:
        super().__init__()
        self.module = module
        self.scales = tuple(scales)

    def forward(self, *args: object, **kwargs: object) -> object:
        with _ScaleOverride(self.scales):
            return self.module(*args, **kwargs)


class _CallRecorder(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[AttentionCall] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        if func is functional.scaled_dot_product_attention:
            self.calls.append(_call(dict(zip(_PARAMETERS, args, strict=False)) | (kwargs or {})))
        return func(*args, **(kwargs or {}))


class _ScaleOverride(TorchFunctionMode):
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


def _call(arguments: Mapping[str, Any]) -> AttentionCall:
    width = int(arguments["query"].shape[-1])
    scale = arguments.get("scale")
    return AttentionCall(
        scale=width**-0.5 if scale is None else float(scale),
        is_causal=bool(arguments.get("is_causal", False)),
        has_mask=arguments.get("attn_mask") is not None,
        head_dim=width,
        where=innermost_user_line(traceback.extract_stack()),
    )
