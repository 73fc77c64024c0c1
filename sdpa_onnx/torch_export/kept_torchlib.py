"""Read onnxscript's operators for torch.onnx once in a process, not at every export.

torch.onnx asks onnxscript for all its operators in each export, and onnxscript parses the source of each again: 0.37 s
of CPU time on an Intel Xeon (model 167). The list is the same every time: it is read from onnxscript's own code,
and `custom_translation_table` is not part of it. Where another version of onnxscript has it elsewhere, nothing is
replaced and each export reads it. The first export imports the module, so the second is the last that reads.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator

from sdpa_onnx.torch_export.replace_function import replaced

__all__ = ["kept_torchlib"]

# One module for each version of torch, "Stable APIs for PyTorch 2.11"; torch.onnx calls one of them.
_MODULES = "onnxscript._framework_apis.torch_"
_FUNCTION = "get_torchlib_ops"


@contextlib.contextmanager
def kept_torchlib() -> Iterator[None]:
    """Give torch.onnx the operators that an earlier export in this process read, for the length of a `with` block."""
    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            read = getattr(module, _FUNCTION, None) if name.startswith(_MODULES) else None
            if read is not None:
                stack.enter_context(replaced(module, _FUNCTION, functools.partial(_operators, read)))
        yield


def _operators(read: Callable[[], list[object]]) -> list[object]:
    """A list of its own for every caller; what it holds is frozen."""
    return list(_kept(read))


@functools.cache
def _kept(read: Callable[[], list[object]]) -> tuple[object, ...]:
    return tuple(read())
