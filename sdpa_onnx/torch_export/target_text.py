"""Parse a TARGET: WHERE:NAME or WHERE:NAME(literals). Imports and calls nothing."""

import ast
import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sdpa_onnx.catalog import entry_names
from sdpa_onnx.errors import PlanError

__all__ = ["FOUNDING_USES", "TARGET_MODULE", "TargetText", "check_target", "parse_target"]

# The three uses of attention in the Transformer, d_model = 512, h = 8, d_k = d_v = 64.
# Source: Vaswani et al. 2017, sections 3.2.2 and 3.2.3.
FOUNDING_USES: tuple[str, ...] = ("encoder-self", "decoder-self", "encoder-decoder")


# Begin of the name under which the file of a target is imported; no path leads to it.
TARGET_MODULE = "sdpa_onnx_target_"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetText:
    """A parsed TARGET.

    Args:
        where: A dotted module name, or the path of a .py file.
        name: The attribute of that module.
        has_call: Whether it has parentheses, even empty ones.
        args: Positional literals.
        kwargs: Literals by name.
    """

    where: str
    name: str
    has_call: bool = False
    args: tuple[object, ...] = ()
    kwargs: dict[str, object] = field(default_factory=dict)

    @property
    def is_file(self) -> bool:
        """Whether `where` is a path."""
        return self.where.endswith(".py") or "/" in self.where or "\\" in self.where


def check_target(text: str) -> TargetText | None:
    """Check the syntax of a TARGET before anything heavy is loaded.

    Returns:
        The parsed TARGET, or None for one of the three uses.

    Raises:
        PlanError: If it is neither a known name nor WHERE:NAME, or names a file that does not exist.
    """
    if text in FOUNDING_USES:
        return None
    parsed = parse_target(text, known=(*FOUNDING_USES, "sdpa", *entry_names()))
    if parsed.is_file and not Path(parsed.where).is_file():
        raise PlanError(f"There is no file {parsed.where}.")
    return parsed


def parse_target(text: str, *, known: Sequence[str]) -> TargetText:
    """Parse a TARGET.

    Args:
        text: The user's text.
        known: Known names without WHERE, of which the nearest is suggested.

    Raises:
        PlanError: If it is neither a known name nor WHERE:NAME.

    Example:
        >>> parse_target("layers.py:Block(512, heads=8)", known=()).kwargs
        {'heads': 8}
    """
    head, opened, rest = text.partition("(")
    where, _, name = head.rpartition(":")
    if not where or not name.strip().isidentifier():
        near = difflib.get_close_matches(text, known, n=1)
        raise PlanError(
            f"'{text}' is not a target.",
            hint=f"Did you mean '{near[0]}'?"
            if near
            else f"Give package.module:Class, file.py:Class, or one of {', '.join(known)}.",
        )
    if not opened:
        return TargetText(where=where, name=name.strip())
    args, kwargs = _literals(text, f"call({rest}")
    return TargetText(where=where, name=name.strip(), has_call=True, args=args, kwargs=kwargs)


def _literals(text: str, call: str) -> tuple[tuple[object, ...], dict[str, object]]:
    try:
        parsed = ast.parse(call, mode="eval").body
        if not isinstance(parsed, ast.Call) or not isinstance(parsed.func, ast.Name):
            raise ValueError("not one call")
        args = tuple(ast.literal_eval(argument) for argument in parsed.args)
        kwargs = {keyword.arg or "**": ast.literal_eval(keyword.value) for keyword in parsed.keywords}
        if "**" in kwargs:
            raise ValueError("** is not a literal")
    except (SyntaxError, ValueError) as error:
        raise PlanError(
            f"The arguments in '{text}' cannot be read.",
            hint="Give literals only: numbers, strings, True, False, None, tuples, lists, dicts.",
        ) from error
    return args, kwargs
