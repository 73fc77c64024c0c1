"""The outputs of a module compared with the same module in float64.

Each attention inside is judged by the oracle. The operators after it (projections,
norms) have no proven bound, so the error of PyTorch in the same type is the yardstick.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.judge.agreement import Agreement
from sdpa_onnx.core.records.records import Verdict
from sdpa_onnx.errors import ExportError

if TYPE_CHECKING:
    import torch

__all__ = ["Float64Module"]

Bind = Callable[..., tuple[tuple[object, ...], dict[str, object]]]
Arrays = Mapping[str, NDArray[np.generic]]

# The error of the exported graph may be this many times the error of PyTorch in the same type. A sum of n terms in
# one sequence has a rounding error of variance n^2/2, in p partial sums n^2/(2p): the ratio of the standard deviations
# is sqrt(p), and a kernel of 16 float32 lanes and 4 accumulators has p = 64. See docs/decisions/0001.
_ALLOWED_TIMES = 8.0


@dataclass(slots=True)
class Float64Module:
    """A module and its float64 copy.

    Args:
        module: A copy of the module, in evaluation mode, in its own type.
        wide: The same in float64.
        dtype: Its element type, as numpy names it.
        bind: Makes its arguments from tensors in the graph's order; None = they are the arguments.
        relative_yardstick: Largest PyTorch error over the output's largest
            magnitude, over all sizes seen so far; small outputs are judged by it too.
        is_repeatable: Whether a second run on the same inputs returned the same; None = not tried.
    """

    module: "torch.nn.Module"
    wide: "torch.nn.Module"
    dtype: str
    bind: Bind | None = None
    relative_yardstick: float = 0.0
    is_repeatable: bool | None = None

    @classmethod
    def of(cls, module: "torch.nn.Module", dtype: str, bind: Bind | None = None) -> "Float64Module":
        """Copy the module twice, in evaluation mode as it is exported: as it is, and in float64."""
        own = copy.deepcopy(module).eval()
        return cls(module=own, wide=copy.deepcopy(own).double(), dtype=dtype, bind=bind)

    def judge(self, feeds: Arrays, actual: Sequence[NDArray[np.generic]]) -> list[Agreement]:
        """Judge every output of the module at these inputs.

        An output passes when its largest error is at most eight times PyTorch's
        in the same type plus one rounding of the output.

        Args:
            feeds: Inputs in the order of the graph.
            actual: Outputs of the exported graph, in the module's order.

        Raises:
            ExportError: If the module does not run in float64 or at these sizes.

        Source: docs/decisions/0001.
        """
        truths = _run(self.wide, self.bind, feeds, wide=True)
        baselines = _run(self.module, self.bind, feeds, wide=False)
        if self.is_repeatable is None:
            again = _run(self.module, self.bind, feeds, wide=False)
            self.is_repeatable = all(map(_same, baselines, again))
        if not self.is_repeatable:
            return [
                Agreement(
                    verdict=Verdict.SUSPICIOUS,
                    diagnosis="The module returns a different output when it runs again on the same inputs (randomness "
                    "in evaluation mode, or state that changes), so nothing can be compared with it.",
                )
            ]
        if len(actual) != len(truths):
            return [
                Agreement(
                    verdict=Verdict.WRONG,
                    diagnosis=f"The graph has {len(actual)} outputs, PyTorch's module returns {len(truths)}.",
                )
            ]
        return [self._judge_one(*arrays) for arrays in zip(truths, baselines, actual, strict=True)]

    def _judge_one(
        self, truth: NDArray[np.generic], baseline: NDArray[np.generic], actual: NDArray[np.generic]
    ) -> Agreement:
        if actual.shape != truth.shape:
            return Agreement(
                verdict=Verdict.WRONG,
                diagnosis=f"The output has shape {actual.shape}, PyTorch returns {truth.shape}.",
            )
        if truth.dtype.kind != "f" or not truth.size:
            equal = bool(np.array_equal(actual, truth))
            return Agreement(
                verdict=Verdict.OK if equal else Verdict.WRONG,
                diagnosis="The outputs are equal." if equal else "The outputs differ.",
                total=truth.size,
            )
        exact, values = truth.astype(np.float64), actual.astype(np.float64)
        usable = np.isfinite(exact)
        # A module may return infinity or NaN; the graph must return the same there, and a number elsewhere.
        odd = int(np.count_nonzero(np.isfinite(values) != usable))
        odd += int(np.count_nonzero((values != exact) & ~usable & ~(np.isnan(values) & np.isnan(exact))))
        if odd:
            return Agreement(
                verdict=Verdict.WRONG,
                diagnosis=f"Places where only one of the output and PyTorch's is finite: {odd}.",
                not_finite=odd,
                total=exact.size,
            )
        if not usable.any():
            return Agreement(verdict=Verdict.OK, diagnosis="No element is finite, as in PyTorch.", total=exact.size)
        return self._compare(exact[usable], baseline.astype(np.float64)[usable], values[usable])

    def _compare(
        self, exact: NDArray[np.float64], baseline: NDArray[np.float64], values: NDArray[np.float64]
    ) -> Agreement:
        largest = float(np.abs(exact).max())
        own = float(np.abs(np.where(np.isfinite(baseline), baseline, exact) - exact).max())
        self.relative_yardstick = max(self.relative_yardstick, own / largest if largest else 0.0)
        allowed = _ALLOWED_TIMES * max(own, self.relative_yardstick * largest)
        allowed += find_precision(self.dtype).output.unit_roundoff * largest
        error = float(np.abs(values - exact).max())
        return Agreement(
            verdict=Verdict.OK if error <= allowed else Verdict.SUSPICIOUS,
            diagnosis=(
                f"The largest error is {error:.3g}; PyTorch's own in the same type is {own:.3g}, allowed {allowed:.3g}."
            ),
            max_abs_error=error,
            max_bound_ratio=error / allowed if allowed else 0.0,
            total=exact.size,
        )


def _same(one: NDArray[np.generic], other: NDArray[np.generic]) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _run(module: "torch.nn.Module", bind: Bind | None, feeds: Arrays, *, wide: bool) -> list[NDArray[np.generic]]:
    import torch

    from sdpa_onnx.torch_export.capture import eval_mode

    arguments = [torch.from_numpy(np.ascontiguousarray(array)) for array in feeds.values()]
    if wide:
        arguments = [a.double() if a.is_floating_point() else a for a in arguments]
    try:
        # As it is exported: the fused encoder operators of torch.nn return NaN where a row has no visible key.
        with eval_mode(module), torch.inference_mode():
            args, kwargs = bind(arguments) if bind is not None else (tuple(arguments), {})
            result: Any = module(*args, **kwargs)
    except Exception as error:
        what = "in float64" if wide else "at these sizes"
        raise ExportError(f"The module does not run {what}: {type(error).__name__}: {error}.") from error
    return [tensor.numpy() for tensor in _tensors(result)]


def _tensors(result: object) -> "list[torch.Tensor]":
    """Tensors of a nested result, in order; None and numbers are left out, as in the graph."""
    import torch

    match result:
        case torch.Tensor():
            return [result]
        case dict():
            return [tensor for part in result.values() for tensor in _tensors(part)]
        case tuple() | list():
            return [tensor for part in result for tensor in _tensors(part)]
        case _:
            return []
