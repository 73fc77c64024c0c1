"""Read ONNX Runtime's error texts: the sentence in them, and the node they name.

Knows the texts of onnxruntime 1.31 and 1.32 only; an unknown text passes through as it is.
"""

from __future__ import annotations

import re

__all__ = ["clean_message", "failing_node"]

_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : |^Error in execution: ")
_RUNNING = re.compile(r"Non-zero status code returned while running \w+ node\. Name:'[^']*' Status Message: ")
# "path/to/file.cc:69 onnxruntime::common::Status onnxruntime::f(...) text" or "file.h:164 Compute text".
_LOCATION = re.compile(r"(?:\S*/)?[\w.]+\.(?:h|cc|cu|cuh|cpp|hpp):\d+ ")
_SIGNATURE = re.compile(r"[^()]*::[~\w]+(?:<[^()]*>)?\(")
_WITH_NAME = re.compile(r" with name '[^']*'")
# What comes of a file names it, and a reason of that kind may stand in another.
_LOADING = re.compile(r"^(?:Load model (?:from )?.*? failed[:.] *)+")
# An invalid model: the node as a tuple, its inputs and outputs with their types, then the fault.
_INVALID = re.compile(r"This is an invalid model\. (?:In Node, .*? , Error )?", re.DOTALL)
_NAMED = re.compile(
    r"(?:\bIn Node, \(\"|\bName:|node with name |node name: |in node \(|\bNode:)\s*'?(?P<name>[^'\"\s,)]+)'?"
)
# A fused node is called "scores/MatmulTransposeFusion//MatMulScaleFusion/"; "scores" is the node of the model.
_FUSION = re.compile(r"(?:/\w*Fusion/)+$")


def failing_node(message: str) -> str | None:
    """Name of the node that an ONNX Runtime error text names, or None.

    A name that a fusion made is cut back to the node of the model.

    Example:
        >>> failing_node("Non-zero status code returned while running Reshape node. Name:'node_view' Status ...")
        'node_view'
    """
    found = _NAMED.search(message)
    return _FUSION.sub("", found["name"]) or None if found else None


def clean_message(message: str) -> str:
    """The text without codes, node names, paths of the model and of sources, C++ signatures, one line, no final stop.

    Example:
        >>> clean_message("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Invalid input name: X")
        'Invalid input name: X'
    """
    text = _LOADING.sub("", _PREFIX.sub("", message.strip()))
    text = _INVALID.sub("", _RUNNING.sub("", text)).removeprefix("Exception during initialization: ")
    while location := _LOCATION.search(text):
        text = text[: location.start()] + _after_signature(text[location.end() :])
    return " ".join(_WITH_NAME.sub("", text).split()).rstrip(".")


def _after_signature(text: str) -> str:
    """Drop the C++ function that ORT puts before its message: a whole signature, or a bare name."""
    signature = _SIGNATURE.match(text)
    if signature is None:
        return re.sub(r"^\w+ ", "", text)
    depth = 1
    for index in range(signature.end(), len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return re.sub(r"^(?: const)?(?: \[with [^\]]*\])?\s*", "", text[index + 1 :])
    return text
