"""The parser's errors in our words: what is wrong, the nearest name, and where the help is."""

import difflib
import re
from typing import Any

__all__ = ["usage_message"]

_WORDS = (
    (re.compile(r"Value error, "), ""),
    (re.compile(r"Input should be greater than or equal to "), "it must be at least "),
    (re.compile(r"Input should be less than or equal to "), "it must be at most "),
    (re.compile(r"Input should be a valid integer\b.*"), "it must be a whole number"),
    (re.compile(r"Input should be a valid number\b.*"), "it must be a number"),
)
_CHOICE = re.compile(r"'([^']*)' is not one of ((?:'[^']*'(?:, )?)+)")


def usage_message(text: str, context: Any, *, command: str = "sdpa-onnx") -> str:
    """Write an error of the parser as one line.

    Args:
        text: Its message.
        context: The context of the command, of the copy of click that typer carries; None if there is none.
        command: The command without a context, whose help has the options.

    Example:
        >>> usage_message("Invalid value for '--mask': Value error, 'bol' is not one of 'none', 'bool'", None)
        "Invalid value for '--mask': 'bol' is not one of 'none', 'bool'. Did you mean 'bool'? See sdpa-onnx --help."
    """
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    found = _CHOICE.search(text)
    if found is not None:
        near = difflib.get_close_matches(found[1], re.findall(r"'([^']*)'", found[2]), n=1)
        text = text.rstrip(".") + f". Did you mean '{near[0]}'?" if near else ""
    command = command if context is None else context.command_path
    end = "" if text.endswith((".", "?", "!")) else "."
    return f"{text}{end} See {command} --help."
