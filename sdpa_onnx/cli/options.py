"""Options that several commands share, so that they read the same everywhere."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from sdpa_onnx.errors import PlanError

__all__ = [
    "PATIENCE_SECONDS",
    "Debug",
    "Expect",
    "Inputs",
    "Json",
    "ModelFile",
    "Output",
    "Runtimes",
    "Seed",
    "SizeOptions",
    "Threads",
    "Timeout",
    "parse_settings",
    "parse_sizes",
]

Json = Annotated[bool, typer.Option("--json", help="Records as JSON on stdout, nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Threads = Annotated[int, typer.Option("--threads", min=1, help="Threads inside one operator, the same for all.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of weights and inputs.")]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0.1, metavar="S", help="Seconds after which a runtime is given up.")
]
# Longest wait for one answer of a runtime whose crash is to be told: far beyond the load of any model.
PATIENCE_SECONDS = 600.0
Expect = Annotated[
    Path | None,
    typer.Option("--expect", metavar="F.toml", help="Known findings: only what it does not list fails the command."),
]
Runtimes = Annotated[list[str], typer.Option("--runtime", help="Runtime; repeatable, or 'all'. See `runtimes`.")]
ModelFile = Annotated[Path, typer.Argument(metavar="F.onnx", help="An ONNX model.", show_default=False)]
Output = Annotated[Path, typer.Option("-o", "--output", help="Where to write the model.", show_default=False)]
Inputs = Annotated[Path | None, typer.Option("--inputs", help="Inputs by name in an .npz file, instead of drawn ones.")]
SizeOptions = Annotated[
    list[str], typer.Option("--size", metavar="AXIS=N", help="Size of a dynamic axis; repeatable, e.g. q_seq_len=128.")
]
AutoSizes = Annotated[
    list[str],
    typer.Option("--at", metavar="AXIS=N,...", help="auto: sizes to time the forms at; repeatable. Default: a ladder."),
]
AutoSeconds = Annotated[
    float | None,
    typer.Option(
        "--seconds", min=0.1, help="auto: for timing the forms of an attention. Default: 20.", show_default=False
    ),
]
# Enough for seven ways at three lengths up to 2048 of a usual attention.
AUTO_SECONDS = 20.0
# Behind a record of outcome TIMED_OUT.
TIMEOUT_HINT = "--timeout allows a runtime more time for an answer."
MaskName = Literal["none", "bool", "float", "lengths"]
DtypeName = Literal["float64", "float32", "float16", "bfloat16"]


def check_auto_options(form: str | None, at: Sequence[object], seconds: float | None) -> None:
    """Refuse what only `--form auto` takes.

    Raises:
        PlanError: If the form is another one.
    """
    given = "--at" if at else "--seconds" if seconds is not None else ""
    if given and form != "auto":
        raise PlanError(f"{given} is of --form auto, which times the forms.", hint="Leave it out, or give --form auto.")


def parse_size_sets(texts: list[str]) -> tuple[dict[str, int], ...]:
    """Read AXIS=N,AXIS=N options, one set of sizes each.

    Raises:
        PlanError: If one is of another form or not positive, or is there twice.
    """
    found: list[dict[str, int]] = []
    for text in texts:
        sizes = parse_sizes(text.split(","), option="--at")
        if sizes in found:
            raise PlanError(f"--at {text} is given twice.", hint="Each set of sizes is a comparison of its own.")
        found.append(sizes)
    return tuple(found)


def parse_settings(texts: list[str]) -> tuple[dict[str, str], ...]:
    """Read KEY=VALUE,KEY=VALUE options, one set of settings each; a comma that no KEY= follows is of the value.

    Raises:
        PlanError: If one is of another form, or two are the same.
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
            raise PlanError(f"--option {text} is given twice.", hint="Each set of settings is an arm of its own.")
        found.append(settings)
    return tuple(found)


def parse_sizes(texts: list[str], *, option: str = "--size") -> dict[str, int]:
    """Read AXIS=N options.

    Raises:
        PlanError: If one is of another form or not positive, or an axis is named twice.
    """
    sizes: dict[str, int] = {}
    for text in texts:
        found = re.fullmatch(r"([A-Za-z_]\w*)=(\d+)", text)
        if found is None or int(found[2]) < 1:
            raise PlanError(f"{option} {text} is not of the form AXIS=N with N at least 1.", hint="E.g. q_seq_len=128.")
        if found[1] in sizes:
            raise PlanError(f"{option} {text} gives {found[1]} a second size.", hint="Give each axis one size.")
        sizes[found[1]] = int(found[2])
    return sizes
