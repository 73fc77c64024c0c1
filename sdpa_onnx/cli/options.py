"""Options that several commands share, defined once so that their help texts are identical."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from sdpa_onnx.cli.help.completion import complete_runtime_or_all
from sdpa_onnx.cli.help.layout import AUTO_GROUP, OUTPUT_GROUP, RUN_GROUP
from sdpa_onnx.errors import PlanError

__all__ = [
    "PATIENCE_SECONDS",
    "BenchBudget",
    "Budget",
    "Debug",
    "Expect",
    "Inputs",
    "Json",
    "ModelFile",
    "Output",
    "Quiet",
    "Runtimes",
    "Seed",
    "SizeOptions",
    "Threads",
    "Timeout",
    "Verbose",
    "output_option",
    "parse_settings",
    "parse_sizes",
    "run_option",
]

run_option = partial(typer.Option, rich_help_panel=RUN_GROUP)
output_option = partial(typer.Option, rich_help_panel=OUTPUT_GROUP)
_auto_option = partial(typer.Option, rich_help_panel=AUTO_GROUP)

Json = Annotated[
    bool,
    output_option("--json", help="Print only the records, as JSON, on stdout."),
]
Debug = Annotated[bool, output_option("--debug", help="Print the traceback of an error.")]
Quiet = Annotated[
    bool,
    output_option("-q", "--quiet", help="Print only the verdict, one sentence; the exit code is the same."),
]
Verbose = Annotated[bool, output_option("-v", "--verbose", help="Print every row and table.")]
Threads = Annotated[int, run_option("--threads", min=1, help="Intra-op threads, the same for all.")]
Seed = Annotated[int, run_option("--seed", min=0, help="Random seed of weights and inputs.")]
Timeout = Annotated[
    float,
    run_option("--timeout", min=0.1, metavar="S", help="Seconds to wait for each answer of a runtime."),
]
Budget = Annotated[
    float | None,
    typer.Option(
        "--budget",
        min=0.1,
        metavar="S",
        help="Time limit of the command in seconds; what it does not reach is skipped.",
        show_default=False,
    ),
]
BenchBudget = Annotated[
    float | None,
    typer.Option(
        "--budget",
        min=0.1,
        metavar="S",
        help="--bench: time limit of the command in seconds; timings that it does not reach are skipped.",
        show_default=False,
    ),
]
# Default of --timeout: much longer than the load of any model, so that only a runtime that hangs exceeds it.
PATIENCE_SECONDS = 600.0
Expect = Annotated[
    Path | None,
    output_option(
        "--expect", metavar="F.toml", help="Known findings; only findings not listed in it cause exit code 1."
    ),
]
Runtimes = Annotated[
    list[str],
    run_option(
        "--runtime",
        help="Runtime, or 'all'; repeatable. `runtimes` lists them.",
        autocompletion=complete_runtime_or_all,
    ),
]
ModelFile = Annotated[Path, typer.Argument(metavar="F.onnx", help="An ONNX model.", show_default=False)]
Output = Annotated[Path, typer.Option("-o", "--output", help="Where to write the model.", show_default=False)]
Inputs = Annotated[
    Path | None,
    run_option("--inputs", help="Read the inputs from this .npz file instead of drawing them."),
]
SizeOptions = Annotated[
    list[str],
    run_option("--size", metavar="AXIS=N", help="Size of a dynamic axis; repeatable, e.g. q_seq_len=128."),
]
AutoSizes = Annotated[
    list[str],
    _auto_option(
        "--at", metavar="AXIS=N,...", help="Sizes at which to time the forms; repeatable. Default: several lengths."
    ),
]
AutoSeconds = Annotated[
    float | None,
    _auto_option(
        "--seconds", min=0.1, help="Time budget for the forms of one attention. Default: 20.", show_default=False
    ),
]
# Enough to time seven forms of a typical attention at three lengths up to 2048.
AUTO_SECONDS = 20.0
# Printed after a record with the outcome TIMED_OUT.
TIMEOUT_HINT = "Use --timeout to give the runtime more time."
MaskName = Literal["none", "bool", "float", "lengths"]
DtypeName = Literal["float64", "float32", "float16", "bfloat16"]


def check_auto_options(form: str | None, at: Sequence[object], seconds: float | None) -> None:
    """Reject options that require `--form auto`.

    Raises:
        PlanError: If one is given with another form.
    """
    given = "--at" if at else "--seconds" if seconds is not None else ""
    if given and form != "auto":
        raise PlanError(f"{given} requires --form auto, which times the forms.", hint=f"Leave out {given}.")


def parse_size_sets(texts: list[str]) -> tuple[dict[str, int], ...]:
    """Parse AXIS=N,AXIS=N options; each is one set of sizes.

    Raises:
        PlanError: If one is malformed, has a size below 1, or is given twice.
    """
    found: list[dict[str, int]] = []
    for text in texts:
        sizes = parse_sizes(text.split(","), option="--at")
        if sizes in found:
            raise PlanError(f"--at {text} is given twice.", hint="Give each set of sizes once.")
        found.append(sizes)
    return tuple(found)


def parse_settings(texts: list[str]) -> tuple[dict[str, str], ...]:
    """Parse KEY=VALUE,KEY=VALUE options; each is one set of settings.

    A comma that is not followed by KEY= is part of the value.

    Raises:
        PlanError: If one is malformed, or two are the same.
    """
    found: list[dict[str, str]] = []
    for text in texts:
        settings: dict[str, str] = {}
        for part in re.split(r",(?=[A-Za-z_][\w.]*=)", text):
            key, equals, value = part.partition("=")
            if not (equals and value and re.fullmatch(r"[A-Za-z_][\w.]*", key)) or key in settings:
                raise PlanError(
                    f"--option {text} is not of the form KEY=VALUE.", hint="E.g. session.disable_prepacking=1."
                )
            settings[key] = value
        if settings in found:
            raise PlanError(f"--option {text} is given twice.", hint="Give each set of settings once.")
        found.append(settings)
    return tuple(found)


def parse_sizes(texts: list[str], *, option: str = "--size", smallest: int = 1) -> dict[str, int]:
    """Parse AXIS=N options.

    Args:
        texts: The options; a name may be any text that a runtime accepts.
        option: Name of the option, for the error text.
        smallest: The smallest size that has a meaning, 0 for an empty cache.

    Raises:
        PlanError: If one is malformed or has a smaller size, or an axis is named twice.
    """
    sizes: dict[str, int] = {}
    for text in texts:
        found = re.fullmatch(r"([^=]+)=(\d+)", text)
        if found is None or int(found[2]) < smallest:
            raise PlanError(
                f"{option} {text} is not of the form AXIS=N with N at least {smallest}.", hint="E.g. q_seq_len=128."
            )
        if found[1] in sizes:
            raise PlanError(f"{option} {text} sets {found[1]} a second time.", hint="Give each axis one size.")
        sizes[found[1]] = int(found[2])
    return sizes
