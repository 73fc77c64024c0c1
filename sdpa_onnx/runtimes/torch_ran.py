"""Watch which kernels torch calls in one run, and report them.

torch picks the kernel of `scaled_dot_product_attention` anew for every call,
from types, shapes and masks; so it is watched, not predicted. A watched run is
slower and never timed.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.runtimes.base import RanReport

__all__ = ["recorded_kernels", "report_of"]

_SDPA = "scaled_dot_product_attention"
# nn.TransformerEncoderLayer and nn.MultiheadAttention in inference: one fused call that never reaches SDPA.
_FAST_PATHS = ("_transformer_encoder_layer_fwd", "_native_multi_head_attention")


def recorded_kernels(call: Callable[[], object]) -> tuple[object, dict[str, int]]:
    """Run a call once and count the operators that it reached.

    Operators that torch only composes of others are opened; of those only
    `scaled_dot_product_attention` itself is counted too.

    Returns:
        What the call gave, and calls by operator name without "aten::".
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    counts: Counter[str] = Counter()

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves __init_subclass__ untyped
        pass

    def dispatch(
        self: Watch, func: Any, _: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        name = func.overloadpacket.__name__
        if name == _SDPA:
            counts[name] += 1
        with self:
            opened: object = func.decompose(*args, **(kwargs or {}))
        if opened is not NotImplemented:
            return opened
        counts[name] += 1
        result: object = func(*args, **(kwargs or {}))
        return result

    # Not in the class: torch wraps what it finds there in a call that imports torch._dynamo, up to a second of CPU time
    # in every process, and nothing is compiled here.
    Watch.__torch_dispatch__ = dispatch  # type: ignore[method-assign, assignment]  # on purpose, see above
    with Watch():  # type: ignore[no-untyped-call]  # nor its __init__
        result = call()
    return result, dict(sorted(counts.items()))


def report_of(kernels: Mapping[str, int] | None, dtype: Dtype) -> RanReport:
    """Sort the counted operators into kernel families.

    Args:
        kernels: From `recorded_kernels`, or None before the first run.
        dtype: Element type of the attention.
    """
    if kernels is None:
        warning = "torch chooses its kernels in each call, and nothing has run yet."
        return RanReport(providers={}, node_counts={}, precision=dtype.value, warnings=(warning,))
    fast = sum(kernels.get(name, 0) for name in _FAST_PATHS)
    families = {"torch sdpa": kernels.get(_SDPA, 0), "torch fast path": fast}
    found = {name: count for name, count in families.items() if count}
    return RanReport(
        providers=found or {"torch eager": sum(kernels.values())},
        node_counts={name: count for name, count in kernels.items() if name != _SDPA},
        precision=dtype.value,
        warnings=_precision_warnings(),
    )


def _precision_warnings() -> tuple[str, ...]:
    import torch

    setting = torch.get_float32_matmul_precision()
    if setting == "highest":
        return ()
    return (f"torch.set_float32_matmul_precision is '{setting}': float32 products may be computed in less.",)
