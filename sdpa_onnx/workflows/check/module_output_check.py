"""The outputs of a module compared with the same module in float64.

Each attention inside is judged by the oracle. The operators after it (projections,
norms) have no proven bound, so the error of PyTorch in the same type is the yardstick. The yardstick itself is
checked first, see `core.judge.output_rule`.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.precision import find_precision
from sdpa_onnx.core.judge.agreement import Agreement
from sdpa_onnx.core.judge.output_rule import OutputRuns, OutputYardstick
from sdpa_onnx.core.records.records import Verdict
from sdpa_onnx.errors import ExportError

if TYPE_CHECKING:
    import torch

__all__ = ["Float64Module", "run_module"]

Bind = Callable[..., tuple[tuple[object, ...], dict[str, object]]]
Arrays = Mapping[str, NDArray[np.generic]]
Outputs = list[NDArray[np.generic]]

# Runs with weights and inputs that are each moved by one rounding; the largest of so few is within a factor of two
# of the largest of many.
_NUDGED_RUNS = 3


@dataclass(slots=True)
class Float64Module:
    """A module and its float64 copy.

    Args:
        module: A copy of the module, in evaluation mode, in its own type.
        wide: The same in float64; None if it cannot be converted.
        dtype: Its element type, as numpy names it.
        bind: Makes its arguments from tensors in the graph's order; None = they are the arguments.
        yardstick: What was seen of PyTorch's errors at the sizes so far; small outputs are judged by it too.
        is_repeatable: Whether a second run on the same inputs returned the same; None = not tried.
        raised: The exception of its last run in its own type, in words; "" if it ran.
    """

    module: "torch.nn.Module"
    wide: "torch.nn.Module | None"
    dtype: str
    bind: Bind | None
    yardstick: OutputYardstick
    is_repeatable: bool | None = None
    raised: str = ""

    @classmethod
    def of(cls, module: "torch.nn.Module", dtype: str, bind: Bind | None = None) -> "Float64Module":
        """Copy the module twice, in evaluation mode as it is exported: as it is, and in float64."""
        own = copy.deepcopy(module).eval()
        wide: torch.nn.Module | None
        try:
            wide = copy.deepcopy(own).double()
        except Exception:  # noqa: BLE001  # a module may override `double` or refuse another type
            wide = None
        yardstick = OutputYardstick(unit_roundoff=find_precision(dtype).output.unit_roundoff)
        return cls(module=own, wide=wide, dtype=dtype, bind=bind, yardstick=yardstick)

    def judge(self, feeds: Arrays, actual: Sequence[NDArray[np.generic]], *, nan_rows: bool = False) -> list[Agreement]:
        """Judge every output of the module at these inputs.

        An output passes when its largest error is at most eight times PyTorch's
        in the same type plus one rounding of the output.

        Args:
            feeds: Inputs in the order of the graph.
            actual: Outputs of the exported graph, in the module's order.
            nan_rows: Whether the graph has a softmax without a guard. Where the module returns NaN, nothing is accused.

        Raises:
            ExportError: If the module does not run at these sizes.

        Source: docs/decisions/0001.
        """
        baselines = self._baselines(feeds)
        if self.is_repeatable is None:
            again = run_module(self.module, self.bind, feeds)
            self.is_repeatable = all(map(_same, baselines, again))
        if not self.is_repeatable:
            return [
                Agreement(
                    verdict=Verdict.SUSPICIOUS,
                    diagnosis="The module returns a different output when it runs again on the same inputs (randomness "
                    "in evaluation mode, or state that changes), so nothing can be compared with it.",
                )
            ]
        if len(actual) != len(baselines):
            return [
                Agreement(
                    verdict=Verdict.WRONG,
                    diagnosis=f"The graph has {len(actual)} outputs, PyTorch's module returns {len(baselines)}.",
                )
            ]
        truths, note = self._truths(feeds, baselines)
        if nan_rows:
            actual = [_with_nan(one, own) for one, own in zip(actual, baselines, strict=True)]
        nudged = _Nudged(self, feeds)
        return [
            self.yardstick.judge(
                OutputRuns(exact=truth, own=baseline, nudged=partial(nudged.outputs, place), note=note), one
            )
            for place, (truth, baseline, one) in enumerate(zip(truths, baselines, actual, strict=True))
        ]

    def _baselines(self, feeds: Arrays) -> Outputs:
        """The outputs in its own type; what the module raises is kept.

        Raises:
            ExportError: If the module does not run at these sizes.
        """
        from sdpa_onnx.torch_export.source_line import raised_words

        self.raised = ""
        try:
            return run_module(self.module, self.bind, feeds)
        except ExportError as error:
            self.raised = raised_words(error.__cause__ or error)
            raise

    def _truths(self, feeds: Arrays, baselines: Outputs) -> tuple[Sequence[NDArray[np.generic] | None], str]:
        """The outputs in float64 and "", or None for each output and why there are none."""
        reason = "the module cannot be converted to float64"
        if self.wide is not None:
            try:
                truths = run_module(self.wide, self.bind, feeds, wide=True)
            except ExportError as error:
                reason = str(error).splitlines()[0].rstrip(".")
                reason = reason[:1].lower() + reason[1:]
            else:
                if [one.shape for one in truths] == [one.shape for one in baselines]:
                    return truths, ""
                reason = "the module returns other shapes in float64"
        return [None] * len(baselines), f"Compared with PyTorch in {self.dtype}, not in float64: {reason}."


@dataclass(slots=True)
class _Nudged:
    """Outputs of the module in its own type with weights and inputs moved by one rounding; computed if needed."""

    judge: Float64Module
    feeds: Arrays
    runs: list[Outputs] | None = None

    def outputs(self, place: int) -> Outputs:
        if self.runs is None:
            self.runs = list(self._run())
        return [run[place] for run in self.runs if len(run) > place]

    def _run(self) -> Iterator[Outputs]:
        import torch

        from sdpa_onnx.torch_export.wide_run import nudge, nudge_weights

        unit = find_precision(self.judge.dtype).output.unit_roundoff
        for seed in range(_NUDGED_RUNS):
            rng = torch.Generator().manual_seed(seed)
            module = copy.deepcopy(self.judge.module)
            nudge_weights(module, unit, rng)
            moved = {
                name: nudge(torch.from_numpy(array.copy()), unit, rng).numpy() if array.dtype.kind == "f" else array
                for name, array in self.feeds.items()
            }
            try:
                yield run_module(module, self.judge.bind, moved)
            except ExportError:  # values that must be exact
                continue


def _with_nan(actual: NDArray[np.generic], own: NDArray[np.generic]) -> NDArray[np.generic]:
    """An output with NaN where the module's own is NaN."""
    if own.dtype.kind != "f" or actual.shape != own.shape:
        return actual
    return np.where(np.isnan(own), own, actual)


def _same(one: NDArray[np.generic], other: NDArray[np.generic]) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def run_module(module: "torch.nn.Module", bind: Bind | None, feeds: Arrays, *, wide: bool = False) -> Outputs:
    """Every tensor that a module returns, in evaluation mode.

    Args:
        module: The module; it may remember the call.
        bind: Makes its arguments, see `Float64Module`.
        feeds: Inputs in the order of the graph.
        wide: Run it in float64; the module is converted already.

    Raises:
        ExportError: If it raises.
    """
    import torch

    from sdpa_onnx.torch_export.capture import eval_mode
    from sdpa_onnx.torch_export.wide_run import float64_throughout

    arguments = [torch.from_numpy(np.ascontiguousarray(array)) for array in feeds.values()]
    if wide:
        arguments = [a.double() if a.is_floating_point() else a for a in arguments]
    try:
        # As it is exported: the fused encoder operators of torch.nn return NaN where a row has no visible key.
        with eval_mode(module), torch.inference_mode(), float64_throughout() if wide else nullcontext():
            args, kwargs = bind(arguments) if bind is not None else (tuple(arguments), {})
            result: Any = module(*args, **kwargs)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
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
