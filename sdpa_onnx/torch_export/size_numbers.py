"""Numbers that a module makes of sizes in Python, found by running it at two sizes and comparing its calls.

A plain export freezes such a number at the size of its sample. Which of them a
graph holds is not asked here.
"""

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from sdpa_onnx.errors import ExportError
from sdpa_onnx.torch_export.capture import evaluating
from sdpa_onnx.torch_export.quiet import quiet
from sdpa_onnx.torch_export.source_line import SourceLine, innermost_user_line

__all__ = ["SizeNumber", "size_number"]

# Where a whole number is a factor or summand; elsewhere it is a size or an axis, which a graph can follow.
_ARITHMETIC = frozenset({"add", "sub", "rsub", "mul", "div", "truediv", "true_divide", "rdiv", "rtruediv", "pow"})

Call = tuple[Sequence[object], Mapping[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeNumber:
    """A number that differs between two runs, and the line that gave it to PyTorch."""

    first: float
    second: float
    where: SourceLine | None


def size_number(module: nn.Module, first: Call, second: Call) -> SizeNumber | None:
    """The first number given to PyTorch that differs between two calls; None if there is none.

    Raises:
        ExportError: If forward raises at these sizes.
    """
    one, other = _heard(module, first), _heard(module, second)
    for (name, numbers, where), (other_name, others, _) in zip(one, other, strict=False):
        if name != other_name or len(numbers) != len(others):
            return None  # the code took another way: nothing can be compared
        for before, after in zip(numbers, others, strict=True):
            if before != after and not math.isnan(before):
                return SizeNumber(first=before, second=after, where=where)
    return None


def _heard(module: nn.Module, call: Call) -> list[tuple[str, list[float], SourceLine | None]]:
    listener = _Listener()
    args, kwargs = call
    try:
        with evaluating(module), quiet(), listener:
            module(*args, **kwargs)
    except Exception as error:  # whatever the user's code raises
        raise ExportError(f"The module does not run at these sizes: {type(error).__name__}: {error}.") from error
    return listener.calls


class _Listener(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, list[float], SourceLine | None]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        name = getattr(func, "__name__", "").strip("_")
        kinds: type[float] | tuple[type[float], type[int]] = (float, int) if name in _ARITHMETIC else float
        given = (*args, *(kwargs or {}).values())
        numbers = [float(item) for item in given if isinstance(item, kinds) and not isinstance(item, bool)]
        if numbers:
            self.calls.append((name, numbers, innermost_user_line(traceback.extract_stack())))
        return func(*args, **(kwargs or {}))
