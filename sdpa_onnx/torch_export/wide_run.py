"""Run a module in float64 throughout, also where its code names a narrower type.

`module.double()` changes parameters and buffers only: `softmax(x, dtype=torch.float32)` or `.float()` inside the
module rounds again, and turns the lowest float64 number into -inf. Does not judge.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = ["float64_throughout", "nudge", "nudge_weights"]

_WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}
# These read the bits of a tensor as another type.
_BITS = ("view", "view_as_real", "view_as_complex")
# Numbers beyond this are masks, not weights: one rounding of them is larger than every score.
_LARGEST_WEIGHT = 2.0**64


class _Wide(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # whatever the function returns
        named = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "float" and args and isinstance(args[0], Tensor):
            return args[0].double()
        if name in _BITS:
            return func(*args, **named)
        return func(*map(_wider, args), **{key: _wider(value) for key, value in named.items()})


def _wider(argument: Any) -> Any:  # any argument of a torch function
    return _WIDER.get(argument, argument) if isinstance(argument, torch.dtype) else argument


@contextmanager
def float64_throughout() -> Iterator[None]:
    """While active, torch functions that are given float32 compute in float64.

    Shorter types stay: a module that rounds to float16 on purpose does so in every run.
    """
    before = torch.get_default_dtype()
    # Tensors that the module makes of Python numbers, such as positions or a fill value.
    torch.set_default_dtype(torch.float64)
    try:
        with _Wide():
            yield
    finally:
        torch.set_default_dtype(before)


def nudge_weights(module: nn.Module, unit_roundoff: float, generator: torch.Generator) -> None:
    """Move every weight of a module by about one rounding, up or down at random, in place.

    Whole numbers and masks (infinite, or beyond 2^64) are kept: they are exact in every type.
    """
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(nudge(tensor, unit_roundoff, generator))


def nudge(tensor: Tensor, unit_roundoff: float, generator: torch.Generator) -> Tensor:
    """The same for one tensor; returns a new one."""
    signs = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor.dtype) * 2 - 1
    moved = tensor * (1.0 + 2.0 * unit_roundoff * signs)
    kept = (tensor == tensor.round()) | ~(tensor.abs() < _LARGEST_WEIGHT)
    return torch.where(kept, tensor, moved)
