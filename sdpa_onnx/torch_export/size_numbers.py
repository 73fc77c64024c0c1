"""Find Python numbers that depend on sizes, by running a module at two sizes and comparing its PyTorch calls.

An export freezes such a number at the size of the sample. Does not check which of them an exported graph contains.
"""

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from sdpa_onnx.errors import ExportError
from sdpa_onnx.torch_export.capture import eval_mode
from sdpa_onnx.torch_export.quiet import quiet
from sdpa_onnx.torch_export.source_line import SourceLine, innermost_user_line

__all__ = ["SizeDependentNumber", "find_size_dependent_number"]

# Calls in which an integer is an operand; in other calls it is a size or an axis, which a graph can compute.
_ARITHMETIC = frozenset({"add", "sub", "rsub", "mul", "div", "truediv", "true_divide", "rdiv", "rtruediv", "pow"})

Call = tuple[Sequence[object], Mapping[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeDependentNumber:
    """A number that differs between two runs, and the source line that passed it to PyTorch."""

    first: float
    second: float
    where: SourceLine | None


def find_size_dependent_number(module: nn.Module, first: Call, second: Call) -> SizeDependentNumber | None:
    """The first number passed to PyTorch that differs between two runs; None if there is none.

    Raises:
        ExportError: If forward raises at these sizes.
    """
    one, other = _recorded_calls(module, first), _recorded_calls(module, second)
    for (name, numbers, where), (other_name, others, _) in zip(one, other, strict=False):
        if name != other_name or len(numbers) != len(others):
            return None  # the code took another branch, so the calls cannot be compared
        for before, after in zip(numbers, others, strict=True):
            if before != after and not math.isnan(before):
                return SizeDependentNumber(first=before, second=after, where=where)
    return None


def _recorded_calls(module: nn.Module, call: Call) -> list[tuple[str, list[float], SourceLine | None]]:
    recorder = _CallRecorder()
    args, kwargs = call
    try:
        with eval_mode(module), quiet(), recorder:
            module(*args, **kwargs)
    except Exception as error:  # whatever the user's code raises
        raise ExportError(f"The module does not run at these sizes: {type(error).__name__}: {error}.") from error
    return recorder.calls


class _CallRecorder(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, list[float], SourceLine | None]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        name = getattr(func, "__name__", "").strip("_")
        kinds: type[float] | tuple[type[float], type[int]] = (float, int) if name in _ARITHMETIC else float
        arguments = (*args, *(kwargs or {}).values())
        numbers = [float(item) for item in arguments if isinstance(item, kinds) and not isinstance(item, bool)]
        if numbers:
            self.calls.append((name, numbers, innermost_user_line(traceback.extract_stack())))
        return func(*args, **(kwargs or {}))
