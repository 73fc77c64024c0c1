"""Types and ranks that no shape inference knows, as a run returns them: three runs, of which two have other sizes.

An axis that is the same number in all runs is fixed; one that is as long as a single axis of the inputs is that axis.
What is read with these types is judged like any other reading. Values inside bodies are not observed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sdpa_onnx.errors import ModelError, RuntimeNotFoundError, RuntimeUnavailableError, SessionError
from sdpa_onnx.graph.inferred_shapes import infer_shapes, makes_tensors
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, Unsupported, get_runtime
from sdpa_onnx.workflows.check.feeds import draw_feeds
from sdpa_onnx.workflows.check.file_feeds import named_axes
from sdpa_onnx.workflows.isolate.isolated_runtime import own_process

__all__ = ["OBSERVED", "with_observed_types"]

OBSERVED = "Types of values before it are known from a run only: no shape inference has a rule for their operators."
_Arrays = Mapping[str, NDArray[np.generic]]

_RUNTIME = "ort-cpu"
_PATIENCE_SECONDS = 60.0
_MOST_VALUES = 64
# Lengths of the axes in turn, no two alike in a run; then a single one, for files whose axes must be equally long.
_LENGTHS = ((3, 5, 7, 11, 13), (4, 6, 9, 10, 14)), ((3,), (4,))


def with_observed_types(model: OnnxModel) -> OnnxModel | None:
    """A copy whose values have the types and shapes of a run; None if all are known, or nothing runs.

    Args:
        model: Is not changed. Its file is run in a process of its own.
    """
    named = named_axes(model)
    copy = named.ir.clone()
    infer_shapes(copy)
    unknown = list(_unknown(copy.graph))[:_MOST_VALUES]
    axes = named.facts.axes
    if not unknown or len(axes) > len(_LENGTHS[0][0]):
        return None
    tapped = named.ir.clone()
    values = {value.name: value for node in tapped.graph for value in node.outputs}
    outputs = {value.name for value in tapped.graph.outputs}
    tapped.graph.outputs.extend(values[one.name] for one in unknown if one.name not in outputs)
    for lengths in _LENGTHS:
        first, second = (dict(zip(axes, one * len(axes), strict=False)) for one in lengths)
        sizes = (first, second, second)
        runs = _runs(named, replace(named, ir=tapped, sites=(), body_sites=()), sizes)
        if runs is not None:
            for value in unknown:
                _state(value, [run[value.name or ""] for run in runs], sizes)
            return replace(model, ir=copy)
    return None


def _unknown(graph: ir.Graph) -> Iterator[ir.Value]:
    """The tensors of the main graph whose type or rank is not known."""
    for node in graph:
        for value in node.outputs if makes_tensors(node) else ():
            is_tensor = value.type is None or isinstance(value.type, ir.TensorType)
            if value.name and is_tensor and (value.dtype is None or value.shape is None):
                yield value


def _runs(model: OnnxModel, tapped: OnnxModel, sizes: Sequence[Mapping[str, int]]) -> "list[_Arrays] | None":
    """The values of runs at these sizes, each with other contents; None if the runtime refuses one."""
    try:
        runtime = get_runtime(_RUNTIME)
        if isinstance(runtime.supports(model), Unsupported):
            return None
        feeds = [draw_feeds(model, one, spread=1.0, seed=seed) for seed, one in enumerate(sizes)]
        with (
            own_process(runtime, _PATIENCE_SECONDS) as worker,
            worker.load(tapped, LoadOptions()) as session,
        ):
            return [session.run(one) for one in feeds]
    except (ModelError, SessionError, RuntimeNotFoundError, RuntimeUnavailableError):
        return None


def _state(value: ir.Value, arrays: "Sequence[NDArray[np.generic]]", sizes: Sequence[Mapping[str, int]]) -> None:
    """Give a value the type that all runs show, and the axes of which they show a rule."""
    if len({(array.dtype, array.ndim) for array in arrays}) > 1:
        return
    value.dtype = ir.DataType.from_numpy(arrays[0].dtype)
    value.shape = ir.Shape([_axis(lengths, sizes) for lengths in zip(*(array.shape for array in arrays), strict=True)])


def _axis(lengths: Sequence[int], sizes: Sequence[Mapping[str, int]]) -> int | str | None:
    if len(set(lengths)) == 1:
        return lengths[0]
    same = [name for name in sizes[0] if all(one[name] == length for one, length in zip(sizes, lengths, strict=True))]
    return same[0] if len(same) == 1 else None
