"""Trace a module with torch.export and dynamic axes. Does not change the traced graph."""

import contextlib
from collections.abc import Iterator, Mapping

import sympy  # type: ignore[import-untyped]  # a dependency of torch; it ships no types
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx.experimental import _config as symbolic_config
from torch.utils import _pytree as pytree

from sdpa_onnx.core.attention.axis_limits import AxisLimit
from sdpa_onnx.torch_export.baked import BakedSizes, record_baked_sizes
from sdpa_onnx.torch_export.bound_inputs import BoundInputs, enlarged
from sdpa_onnx.torch_export.failures import baked_axes, baked_error, forward_error, number_error, trace_error
from sdpa_onnx.torch_export.quiet import quiet
from sdpa_onnx.torch_export.scale_by_size import ScaleBySize, sizes_as_tensors
from sdpa_onnx.torch_export.traced_limits import traced_limits

__all__ = [
    "Axes",
    "capture",
    "equal_symbols",
    "eval_mode",
    "run_once",
    "small_sizes_stay_dynamic",
    "with_enlarged_sizes",
]

Axes = Mapping[str, tuple[int, ...]]


@contextlib.contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Put the module into eval mode without gradients, and restore its training flags afterwards."""
    training = [(part, part.training) for part in module.modules()]
    fastpath = torch.backends.mha.get_fastpath_enabled()
    try:
        module.eval()
        # The fused encoder operators of torch.nn have no ONNX form.
        torch.backends.mha.set_fastpath_enabled(False)
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
        for part, flag in training:
            part.training = flag


def run_once(module: nn.Module, inputs: BoundInputs) -> None:
    """Run forward on the sample first, so that its errors are reported clearly.

    Raises:
        ExportError: If forward raises; names the error and the source line.
    """
    try:
        with quiet():
            module(*inputs.args, **inputs.kwargs)
    except Exception as error:  # whatever the user's code raises
        raise forward_error(error, type(module).__name__) from error


def with_enlarged_sizes(module: nn.Module, inputs: BoundInputs, axes: Axes) -> BoundInputs:
    """Enlarge sizes of 0 and 1 on dynamic axes, if the module runs with the result."""
    larger = enlarged(inputs, axes)
    if larger is None:
        return inputs
    try:
        with quiet():
            module(*larger.args, **larger.kwargs)
    except Exception:  # noqa: BLE001  # the sizes depend on each other in the module's code
        return inputs
    return larger


@contextlib.contextmanager
def small_sizes_stay_dynamic(inputs: BoundInputs, axes: Axes) -> Iterator[None]:
    """Let torch.export generalise sizes of 0 and 1 on dynamic axes, which it would specialise otherwise."""
    leaves = inputs.leaves()
    small = any(leaves[name].shape[axis] < 2 for name, chosen in axes.items() for axis in chosen)
    with contextlib.ExitStack() as stack:
        if small:
            patch = symbolic_config.patch  # type: ignore[attr-defined]  # installed by torch at import
            stack.enter_context(patch(backed_size_oblivious=True))
        yield


def capture(
    module: nn.Module, inputs: BoundInputs, axes: Axes, guesses: frozenset[tuple[str, int]]
) -> tuple[ExportedProgram, tuple[AxisLimit, ...]]:
    """Trace the module, in eval mode, with dynamic axes.

    Args:
        module: Any module.
        inputs: Its sample inputs.
        axes: Dynamic axes by tensor name.
        guesses: Axes that may become static without an error.

    Returns:
        The program, and the sizes that its trace allows, in its symbols.

    Raises:
        ExportError: If forward branches on tensor values, or specialises an axis.
    """
    name = type(module).__name__
    with quiet(), record_baked_sizes() as heard:
        try:
            program = _trace(module, inputs, axes, heard)
        except Exception as error:  # torch.export raises bare RuntimeError, ValueError and its own
            baked = baked_axes(error, heard)
            if not baked:
                raise trace_error(error, name) from error
            wrong = tuple(axis for axis in baked if (axis.parameter, axis.axis) not in guesses)
            if wrong:
                raise baked_error(wrong, axes) from error
            dropped = {(axis.parameter, axis.axis) for axis in baked}
            fewer = {leaf: tuple(a for a in chosen if (leaf, a) not in dropped) for leaf, chosen in axes.items()}
            return capture(module, inputs, fewer, frozenset())
    if heard.numbers:
        raise number_error(heard)
    return program, traced_limits(program, heard)


def equal_symbols(program: ExportedProgram) -> dict[str, str]:
    """Find symbols that the trace proved equal; maps the second symbol to the first.

    torch keeps 16*a*b == 16*a*c as a guard and does not conclude b == c.
    """
    aliases: dict[str, str] = {}
    values = [node.meta.get("val") for node in program.graph.nodes]
    modes = [value.fake_mode for value in values if hasattr(value, "fake_mode")]
    for guard in modes[0].shape_env.guards if modes and modes[0].shape_env is not None else ():
        if not isinstance(guard.expr, sympy.Eq) or guard.expr.rhs.is_number:
            continue
        above, below = sympy.fraction(sympy.cancel(guard.expr.lhs / guard.expr.rhs))
        if above.is_Symbol and below.is_Symbol:
            first, second = sorted((str(above), str(below)))
            aliases.setdefault(second, first)
    return aliases


def _trace(module: nn.Module, inputs: BoundInputs, axes: Axes, heard: BakedSizes) -> ExportedProgram:
    """Trace with sizes as tensors, so that functions of sizes stay dynamic; if that fails, trace the plain code."""
    shapes = _dynamic_shapes(inputs, axes)
    followed: list[str] = []
    with ScaleBySize(), small_sizes_stay_dynamic(inputs, axes):
        try:
            with sizes_as_tensors() as followed:
                return torch.export.export(module, inputs.args, inputs.kwargs, dynamic_shapes=shapes, strict=False)
        except Exception:
            if not followed:
                raise
        heard.clear()
        return torch.export.export(module, inputs.args, inputs.kwargs, dynamic_shapes=shapes, strict=False)


def _dynamic_shapes(inputs: BoundInputs, axes: Axes) -> dict[str, object]:
    names = iter(inputs.leaves())

    def of_leaf(leaf: object) -> object:
        return dict.fromkeys(axes[next(names)], Dim.DYNAMIC) if isinstance(leaf, Tensor) else None

    return {parameter: pytree.tree_map(of_leaf, value) for parameter, value in inputs.arguments.items()}
