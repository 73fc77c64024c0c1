"""Whether a module can be what a file came from: it runs on the file's inputs and returns outputs of the same shapes.

Compares no numbers.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from sdpa_onnx.errors import ExportError, ModelError, PlanError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.workflows.check.feeds import Feeds, resolve_shape
from sdpa_onnx.workflows.check.long_sizes import sizes_in_words
from sdpa_onnx.workflows.check.module_output_check import run_module

if TYPE_CHECKING:
    from torch import nn

__all__ = ["require_fit"]

Sizes = Mapping[str, int]
_HINT = "Is it the right module?"


def require_fit(model: OnnxModel, module: str, file: str, trials: Iterable[tuple[Sizes, Feeds]]) -> None:
    """Run the module of a model at the first sizes at which it runs, and compare its outputs with those of the graph.

    Args:
        model: The model with its module; one without is not compared.
        module: Name of the module in the error.
        file: Name of the file in the error.
        trials: Sizes and inputs, in the order in which they are tried; read only as far as needed.

    Raises:
        PlanError: If it runs at none of these sizes, or returns another number of outputs or other shapes than the
            graph declares.
    """
    if model.source is None or (model.is_bare_attention and model.bind is None):
        return  # nothing is compared with it, see `ExpectationCache.truth`
    failure = ""
    for sizes, feeds in trials:
        try:
            shapes = _shapes(model, feeds)
        except ExportError as error:
            failure = failure or _failed(module, file, sizes, error)
            continue
        if difference := _difference(model, module, file, sizes, shapes):
            raise PlanError(difference, hint=_HINT)
        return
    if failure:
        raise PlanError(failure, hint=_HINT)


def _shapes(model: OnnxModel, feeds: Feeds) -> list[tuple[int, ...]]:
    from sdpa_onnx.torch_export.quiet import quiet

    # A copy: what the module remembers of this call must not reach the judge.
    module = cast("nn.Module", copy.deepcopy(model.source))
    with quiet():
        return [output.shape for output in run_module(module, model.bind, feeds)]


def _failed(module: str, file: str, sizes: Sizes, error: ExportError) -> str:
    from sdpa_onnx.torch_export.source_line import raised_words

    why = raised_words(error.__cause__ or error)
    return f"{module} does not run on the inputs of {file} ({sizes_in_words(sizes)}): {why}."


def _difference(model: OnnxModel, module: str, file: str, sizes: Sizes, shapes: Sequence[tuple[int, ...]]) -> str:
    """The first difference between the outputs of the module and those of the graph; "" if there is none."""
    names = model.output_names
    if len(shapes) != len(names):
        return f"{module} returns {_outputs(len(shapes))}, {file} has {_outputs(len(names))}: {', '.join(names)}."
    for value, shape in zip(model.ir.graph.outputs, shapes, strict=True):
        try:
            declared = resolve_shape(value, sizes)
        except ModelError:
            continue  # the graph does not declare it
        if shape != declared:
            return (
                f"{module} returns shape {shape} where output '{value.name}' of {file} has {declared} "
                f"({sizes_in_words(sizes)})."
            )
    return ""


def _outputs(number: int) -> str:
    return "1 output" if number == 1 else f"{number} outputs"
