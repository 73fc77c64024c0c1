"""A torch module behind the session protocol: numpy in, numpy out, bound runs on tensors.

torch's thread count belongs to the whole process. It is set, where it differs,
at `run` and `bind`, and never set back.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.attention.inputs import ONNX_INPUT_NAMES
from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, RanReport
from sdpa_onnx.runtimes.feeds import check_sizes_fit, checked_feeds
from sdpa_onnx.runtimes.live_session import LiveSession
from sdpa_onnx.runtimes.torch_ran import recorded_kernels, report_of
from sdpa_onnx.runtimes.torch_values import to_numpy, to_tensor

if TYPE_CHECKING:
    from torch import nn

__all__ = ["RUNTIME", "TorchBoundRun", "TorchSession"]

RUNTIME = "torch"

Array = NDArray[np.generic]

# What torch raises on operands that do not fit.
_FAILURES = (RuntimeError, TypeError, ValueError, LookupError, AssertionError, AttributeError)


class TorchBoundRun:
    """Runs one problem per call on tensors that were converted once."""

    __slots__ = ("_collect", "_forward", "_result")

    def __init__(self, forward: Callable[[], object], collect: Callable[[object], dict[str, Array]]) -> None:
        self._forward = forward
        self._collect = collect
        self._result: object = None

    def __call__(self) -> None:
        self._result = self._forward()

    def outputs(self) -> dict[str, Array]:
        """Copies of what the last call gave, by output name."""
        return self._collect(self._result)


class TorchSession(LiveSession["nn.Module"]):
    """A module in torch; see `runtimes.base.Session`."""

    def __init__(self, model: OnnxModel, module: "nn.Module", options: LoadOptions) -> None:
        super().__init__(RUNTIME, module)
        self._model = model
        self._threads = options.threads
        self._kernels: Mapping[str, int] | None = None

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once; see `Session.run`."""
        return self._collect(self._first_call(self._call_with(inputs)))

    def bind(self, inputs: Mapping[str, Array]) -> TorchBoundRun:
        """Convert the inputs once; see `Session.bind`. Runs once, to fail here and not in the timed call."""
        call = self._call_with(inputs)
        self._collect(self._first_call(call))
        return TorchBoundRun(call, self._collect)

    def ran(self) -> RanReport:
        """Which kernels the first run called; see `Session.ran`. Nothing is known before a run."""
        return report_of(self._kernels, self._model.facts.attention_dtype)

    def _call_with(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        feeds = checked_feeds(RUNTIME, self._model, inputs)
        if self._model.source is None:
            check_sizes_fit(RUNTIME, self._model, feeds)
        _set_threads(self._threads)
        tensors = {name: to_tensor(array) for name, array in feeds.items()}
        if self._model.bind is not None:  # knows nested arguments, and those that are no tensors
            return _inference(self._called(), *self._model.bind(list(tensors.values())))
        keywords = _keywords(self._model, self.live)
        if keywords is not None:
            return _inference(self._called(), (), {keywords[name]: tensor for name, tensor in tensors.items()})
        return _inference(self._called(), tuple(tensors.values()), {})

    def _called(self) -> Callable[..., object]:
        return self.live

    def _first_call(self, call: Callable[[], object]) -> object:
        """Run, and watch the kernels if none were seen yet."""
        try:
            if self._kernels is None:
                result, self._kernels = recorded_kernels(call)
                return result
            return call()
        except _FAILURES as error:
            what = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise SessionError(f"{RUNTIME} failed: {what}.") from error

    def _collect(self, result: object) -> dict[str, Array]:
        import torch
        from torch.utils import _pytree

        tensors = [leaf for leaf in _pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        names = self._model.output_names
        if len(tensors) != len(names):
            raise SessionError(
                f"{RUNTIME} gave {len(tensors)} outputs; the model has {len(names)}: {', '.join(names)}.",
                hint="A module cannot give the inner values that a tapped model outputs.",
            )
        return {name: to_numpy(tensor) for name, tensor in zip(names, tensors, strict=True)}


def _keywords(model: OnnxModel, module: "nn.Module") -> dict[str, str] | None:
    """Parameter of forward for each graph input, or None where only the order tells.

    By keyword, an optional parameter that was left out of the export cannot shift the later ones.
    """
    if model.source is None:
        return {value: ONNX_INPUT_NAMES[field] for field, value in model.sites[0].inputs.items()}
    parameters = inspect.signature(module.forward).parameters
    return {name: name for name in model.input_names} if set(model.input_names) <= set(parameters) else None


def _inference(module: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, Any]) -> Callable[[], object]:
    import torch

    return torch.inference_mode()(partial(module, *args, **kwargs))


def _set_threads(threads: int) -> None:
    import torch

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
