"""Convert torch's export errors to an `ExportError`: one sentence, the user's source line, and what to do.

Raises nothing itself.
"""

import re
import traceback
from collections.abc import Iterator, Mapping

from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from sdpa_onnx.errors import ExportError
from sdpa_onnx.torch_export.baked import BakedSizes, TracedBakedAxis
from sdpa_onnx.torch_export.source_line import innermost_user_line, stored_line

__all__ = [
    "baked_axes",
    "baked_error",
    "complex_error",
    "forward_error",
    "number_error",
    "trace_error",
    "translation_error",
]

_SPECIALISED = re.compile(r"You marked (\S+) as dynamic but your code specialized it to be a constant \((\d+)\)")
_INFERRED = re.compile(r"inferred a static shape of (\d+) for dimension inputs\['(\w+)'\](\S*)\.shape\[(\d+)\]")
_OPERATOR = re.compile(r"No ONNX function found for <OpOverload\(op='([^']+)', overload='([^']+)'\)>")


def baked_axes(error: BaseException, heard: BakedSizes) -> tuple[TracedBakedAxis, ...]:
    """Parse the specialised axes out of a torch.export error; empty for any other error."""
    text = str(error)
    found = [heard.axis(source, int(size)) for source, size in _SPECIALISED.findall(text)]
    for size, parameter, path, axis in _INFERRED.findall(text):
        found.append(heard.axis(f"L['{parameter}']{path}.size()[{axis}]", int(size)))
    return tuple(dict.fromkeys(axis for axis in found if axis is not None))


def baked_error(baked: tuple[TracedBakedAxis, ...], axes: Mapping[str, tuple[int, ...]]) -> ExportError:
    """Error for specialised axes: names each axis, the source line, and the dynamic_axes without it."""
    remaining = {axis.parameter: axes.get(axis.parameter, ()) for axis in baked}
    for axis in baked:
        remaining[axis.parameter] = tuple(kept for kept in remaining[axis.parameter] if kept != axis.axis)
    text = "; ".join(str(axis) for axis in baked)
    flags = " ".join(f"--dynamic {name}={','.join(map(str, kept))}" for name, kept in remaining.items())
    return ExportError(
        f"The export cannot keep its axes dynamic: {text}.",
        hint=f"Change that code, or export at this size: dynamic_axes={remaining!r}, on the command line {flags}.",
    )


def number_error(heard: BakedSizes) -> ExportError:
    """Error for a number that depends on a dynamic size and would be frozen at the sample's value."""
    where, expression = heard.numbers[0]
    return ExportError(
        f"A number that depends on a dynamic size is used as a constant by {where or 'the code'} ({expression}).",
        hint="Multiply a tensor by it instead, or give dynamic_axes without that axis.",
    )


def forward_error(error: Exception, name: str) -> ExportError:
    """Error for an exception raised by the module's forward: names it and the source line."""
    where = innermost_user_line(traceback.extract_tb(error.__traceback__))
    return ExportError(
        f"{name}.forward raised {type(error).__name__} at {where or 'an unknown line'}: {_first(error)}."
    )


def trace_error(error: Exception, name: str) -> ExportError:
    """Error for a failed trace of torch.export."""
    where = innermost_user_line(traceback.extract_tb(error.__traceback__))
    if any(isinstance(cause, GuardOnDataDependentSymNode) for cause in _chain(error)):
        return ExportError(
            f"{name} branches on the values of a tensor at {where or 'an unknown line'}, which a graph cannot do.",
            hint="Move the branch out of forward, or pass the flag that the code checks "
            "(torch.nn.TransformerDecoder: tgt_is_causal=True or False).",
        )
    return ExportError(
        f"torch.export failed in {name} at {where or 'an unknown line'}: {type(error).__name__}: {_first(error)}."
    )


def translation_error(error: Exception, name: str, opset: int) -> ExportError:
    """Error for a failed translation by torch.onnx: names the operator if it is known."""
    causes = list(_chain(error))
    for cause in causes:
        found = _OPERATOR.search(str(cause))
        if found is not None:
            return ExportError(f"torch.onnx has no translation of {found[1]} at opset {opset}, which {name} uses.")
    last = causes[-1]
    if "SymbolicTensor" in str(last):
        return ExportError(
            f"{name} uses a number that depends on a dynamic size where ONNX needs a constant.",
            hint="Multiply a tensor by it instead, or give dynamic_axes without that axis.",
        )
    return ExportError(f"torch.onnx failed on {name} at opset {opset}: {type(last).__name__}: {_first(last)}.")


def complex_error(program: ExportedProgram, error: BaseException, name: str, opset: int) -> ExportError | None:
    """Error for a module that torch.onnx refuses and that computes with complex numbers, which ONNX has no type for.

    None if it has none, or if the operator that torch.onnx misses does not read or return them.
    """
    operator = next((found[1] for cause in _chain(error) if (found := _OPERATOR.search(str(cause)))), "")
    for node in program.graph.nodes:
        parts = (node, *node.all_input_nodes)
        is_complex = any(getattr(part.meta.get("val"), "is_complex", bool)() for part in parts)
        if node.op != "call_function" or not is_complex or not str(node.target).startswith(operator):
            continue
        where = stored_line(str(node.meta.get("stack_trace") or ""))
        missing = f" of {operator}" if operator else ""
        return ExportError(
            f"{name} computes with complex numbers{f' at {where}' if where else ''}, which ONNX has no type for: "
            f"torch.onnx has no translation{missing} for them at opset {opset}.",
            hint="Write the same in real numbers: of a rotation, the cosine and the sine on two halves.",
        )
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _first(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else "no text"
