"""Keep a scale that follows a dynamic size dynamic while torch.export traces.

The scale of scaled_dot_product_attention is a number there, which a trace
freezes at the sample's value without a word. Anything else that is frozen is
heard by `baked`, or found by running the result at other sizes.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sdpa_onnx.torch_export.replace_function import replaced

__all__ = ["ScaleBySize", "sizes_as_tensors"]

# Functions of `math` that would ask a size for its number, and those of torch that need not.
_OF_SIZES = ("sqrt", "log", "log2", "log10", "log1p", "exp")
_HALF = (torch.float16, torch.bfloat16)


class ScaleBySize(TorchFunctionMode):
    """Move a `scale` that depends on a dynamic size onto the query, and give 1 as the scale."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        named = dict(kwargs or {})
        if func is functional.scaled_dot_product_attention and isinstance(named.get("scale"), torch.SymFloat | Tensor):
            scale = named.pop("scale")
            query = named.pop("query") if "query" in named else args[0]
            return func(_scaled(query, scale), *args[1:], **named, scale=1.0)
        return func(*args, **named)


def _scaled(query: Tensor, scale: Any) -> Tensor:
    """The query times the scale; in half precision the scale itself must not be rounded to 11 or 8 bits."""
    scaled: Tensor = query.float() * scale if query.dtype in _HALF else query * scale
    return scaled.to(query.dtype)


@contextlib.contextmanager
def sizes_as_tensors() -> Iterator[list[str]]:
    """Let `math.log` and its like give a tensor of no axes for a dynamic size, instead of fixing the size.

    Code that holds such a function under a name of its own (`from math import log`)
    is not reached, and fixes its axis as ever.

    Yields:
        Names of the functions that were given a dynamic size; grows meanwhile.
    """
    used: list[str] = []
    with contextlib.ExitStack() as stack:
        for name in _OF_SIZES:
            stack.enter_context(replaced(math, name, _following(name, used)))
        yield used


def _following(name: str, used: list[str]) -> Callable[..., Any]:
    original: Callable[..., float] = getattr(math, name)
    of_tensor: Callable[[Tensor], Tensor] = getattr(torch, name)

    def function(number: Any, *base: Any) -> Any:
        if not isinstance(number, torch.SymInt | torch.SymFloat):
            return original(number, *base)
        used.append(name)
        found = of_tensor(torch.scalar_tensor(number, dtype=torch.float32))  # type: ignore[arg-type]  # torch takes its symbols as numbers
        return found / original(*base) if base else found

    return function
