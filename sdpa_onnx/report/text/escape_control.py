"""Make untrusted text safe to print: replace characters that control a terminal or the direction of writing."""

import re
from collections.abc import Callable
from typing import Any

__all__ = ["clean_throughout", "escape_control", "escape_control_throughout"]

# Control characters except tab and newline (C0, DEL, C1), those that set the direction of writing, those without a
# width (two names that differ by one look the same), line and paragraph separators; lone surrogates, which cannot be
# encoded, and U+FFFE and U+FFFF, which XML cannot hold. Sources: Unicode 15, general categories Cc and Cf; UAX 9, 2
# (directional formatting characters); XML 1.0, production 2.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufffe\uffff]"
)


def escape_control(text: str) -> str:
    r"""Replace every control character by the replacement character.

    Example:
        >>> ascii(escape_control("model" + chr(27) + "[2J"))
        "'model\\ufffd[2J'"
    """
    return _HARMFUL.sub("\N{REPLACEMENT CHARACTER}", text)


def escape_control_throughout(value: Any) -> Any:
    """Apply `escape_control` to every string in plain dicts and lists, keys included."""
    return clean_throughout(value, escape_control)


def clean_throughout(value: Any, clean: Callable[[str], str]) -> Any:
    """Apply a function to every string in plain dicts and lists, keys included."""
    match value:
        case str():
            return clean(value)
        case dict():
            return {clean_throughout(key, clean): clean_throughout(one, clean) for key, one in value.items()}
        case list() | tuple():
            return [clean_throughout(one, clean) for one in value]
        case _:
            return value
