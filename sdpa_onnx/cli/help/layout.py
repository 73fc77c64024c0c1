"""The layout of `--help`: options in groups, readable types, repeatable options marked, examples.

Does not use rich, so that the help is fast; the groups are those of `rich_help_panel`.
"""

import re
from typing import Any

import typer.core

from sdpa_onnx.cli.help.examples import EXAMPLES

__all__ = ["AUTO_GROUP", "OUTPUT_GROUP", "RUN_GROUP", "SDPA_GROUP", "CommandHelp"]

SDPA_GROUP = "The attention of target sdpa"
AUTO_GROUP = "With --form auto"
RUN_GROUP = "How it runs"
OUTPUT_GROUP = "What it prints"
_GROUPS = ("Arguments", "Options", SDPA_GROUP, AUTO_GROUP, RUN_GROUP, OUTPUT_GROUP)

# Type as typer writes it -> as people do.
_TYPES = (
    (re.compile(r"<?list\[<?([^\]<>]+)>?\]>?"), r"<\1>"),
    (re.compile(r"<int(?: range)?>"), "N"),
    (re.compile(r"<float(?: range)?>"), "X"),
    (re.compile(r"<[Pp]ath>"), "PATH"),
    (re.compile(r"<str>"), "NAME"),
    (re.compile(r"<([^<>]+)>"), r"\1"),
)
_AT_LEAST = re.compile(r"x>=([\d.]+)")


class CommandHelp(typer.core.TyperCommand):
    """A command whose help has groups and examples."""

    # The contexts and formatters are those of the copy of click that typer carries: `Any`, because it is private.
    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options in groups."""
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in _GROUPS}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            is_option = param.param_type_name == "option"
            group = (getattr(param, "rich_help_panel", None) or "Options") if is_option else "Arguments"
            if param.name == "help":
                group = OUTPUT_GROUP
            groups.setdefault(group, []).append(_readable(*record, is_repeatable=getattr(param, "multiple", False)))
        for group, records in groups.items():
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples; they are never broken across lines, because users copy them."""
        examples = EXAMPLES.get(self.name or "", ())
        if examples:
            with formatter.section("Examples"):
                for example in examples:
                    formatter.write(f"{'':{formatter.current_indent}}sdpa-onnx {example}\n")


def _readable(name: str, text: str, *, is_repeatable: bool) -> tuple[str, str]:
    """An option with a readable type and range, and a note if it may be given several times.

    Example:
        >>> _readable("--seed <int range>", "Seed.  [x>=0]", is_repeatable=True)
        ('--seed N', 'Seed. Repeatable.  [at least 0]')
    """
    for pattern, words in _TYPES:
        name = pattern.sub(words, name)
    if is_repeatable and "repeatable" not in text.casefold():
        sentence, gap, extra = text.partition("  [")
        text = f"{sentence} Repeatable.{gap}{extra}"
    return name, _AT_LEAST.sub(r"at least \1", text)
