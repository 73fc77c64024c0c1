"""Raise the opset of a graph: up to 18 with onnx's version converter, above with onnxscript's.

Functions are inlined. Does not lower an opset.
"""

from collections.abc import Callable

import onnx_ir as ir

from sdpa_onnx.errors import ModelError
from sdpa_onnx.graph import older_opset
from sdpa_onnx.graph.ir_version import lowest_ir_version
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.graph.quiet import quiet_ir

__all__ = ["raise_opset", "stays_below"]

# The range of onnxscript's converter (onnxscript 0.6 and 0.7).
_MIDDLE, _HIGHEST = 18, 25


def raise_opset(model: ir.Model, opset: int) -> None:
    """Raise the default domain of a model to an opset, in place.

    Args:
        model: Its own opset must not be above the requested one.
        opset: 13 to 25.

    Raises:
        ModelError: If a node has no equivalent there, or the model is older than opset 13.
    """
    own = model.opset_imports.get("", 0)
    if own == opset:
        return
    what = f"The model cannot be converted from opset {own} to {opset}"
    # Every form needs at least the lowest opset: below it no form can be suggested.
    hint = "Use a form that its opset supports, such as decomposed, or export it again at a newer opset."
    if not older_opset.LOWEST <= own <= opset <= _HIGHEST:
        raise ModelError(
            f"{what}: only opset {older_opset.LOWEST} to {_HIGHEST} can be raised.",
            hint=hint if own >= older_opset.LOWEST else "Export it again at opset 18 or newer.",
        )
    try:
        with quiet_ir():
            _raise(model, own, opset)
    except Exception as error:
        reason = " ".join(str(error.__cause__ or error).split()).rstrip(".") or type(error).__name__
        raise ModelError(f"{what}: {reason[:200]}.", hint=hint) from error
    if model.opset_imports.get("") != opset or any((node.version or opset) != opset for node in _standard(model)):
        raise ModelError(f"{what}: a node has no equivalent there.", hint=hint)
    model.ir_version = max(model.ir_version or 0, lowest_ir_version(opset))


def stays_below(model: OnnxModel, opset: int | None) -> Callable[[int], str]:
    """A function that returns why a graph cannot be raised to an opset: a clause, "" if it can; each is tried once.

    Args:
        model: Stays unchanged.
        opset: The requested opset, which decides; None = any that the graph can be raised to.
    """
    known: dict[int, str] = {}

    def cannot_hold(needed: int) -> str:
        if opset is not None:
            return f"--opset is {opset}." if needed > opset else ""
        if needed not in known:
            known[needed] = _obstacle(model.ir, needed)
        return known[needed]

    return cannot_hold


def _obstacle(model: ir.Model, opset: int) -> str:
    own = model.opset_imports.get("", 0)
    if own >= opset:
        return ""
    try:
        raise_opset(model.clone(), opset)
    except ModelError as error:
        return f"the graph stays at {own}: {error.args[0]}"
    return ""


def _raise(model: ir.Model, own: int, opset: int) -> None:
    if own < _MIDDLE:
        older_opset.raise_older(model, min(_MIDDLE, opset))
    if opset > _MIDDLE:
        from onnxscript import version_converter

        version_converter.convert_version(model, opset)


def _standard(model: ir.Model) -> "list[ir.Node]":
    return [node for node in model.graph.all_nodes() if node.domain == ""]
