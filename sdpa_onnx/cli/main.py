"""The entry point, which registers the commands. It imports nothing heavy, so `--help` is fast."""

import atexit
import contextlib
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from sdpa_onnx.cli import (
    bench,
    compare,
    conformance,
    convert,
    export,
    fuzz,
    inspect,
    reduce,
    report,
    run,
    runtimes,
    saturation,
    verify,
)
from sdpa_onnx.cli.error_boundary import (
    INTERRUPTED,
    MISUSE,
    OK,
    escape_unencodable,
    print_message,
    replace_closed_streams,
)
from sdpa_onnx.cli.help.layout import CommandHelp
from sdpa_onnx.cli.help.usage_errors import usage_message
from sdpa_onnx.cli.process.interruption import interruptible
from sdpa_onnx.cli.process.open_files import allow_open_files
from sdpa_onnx.version import __version__

__all__ = ["app", "main"]

# New objects until the youngest are looked through: a few 10 MB. Then how many times until the older ones are.
_COLLECTION_THRESHOLDS = (200_000, 20, 20)

app = typer.Typer(
    name="sdpa-onnx",
    help="Export attention from PyTorch to ONNX with dynamic axes, verify it against a float64 oracle, and time it.",
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    run.run,
    export.export,
    inspect.inspect,
    convert.convert,
    verify.verify,
    bench.bench,
    compare.compare,
    saturation.saturation,
    conformance.conformance,
    fuzz.fuzz,
    reduce.reduce,
    report.report,
    runtimes.runtimes,
):
    app.command(cls=CommandHelp)(command)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"sdpa-onnx {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("-V", "--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Export attention from PyTorch to ONNX with dynamic axes, verify it against a float64 oracle, and time it."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run the command line. Parser errors and early interrupts are printed like every other error."""
    replace_closed_streams()
    escape_unencodable()
    _require_utf8(sys.argv[1:])
    allow_open_files()
    with interruptible(), _few_collections():
        try:
            code = app(standalone_mode=False, prog_name="sdpa-onnx")
        except KeyboardInterrupt:
            code = INTERRUPTED
        except OSError as error:  # commands handle their own; this is --install-completion
            print_message(f"The completion cannot be installed: {error}. Use --show-completion.")
            raise SystemExit(MISUSE) from error
        except Exception as error:
            format_message = getattr(error, "format_message", None)  # click's own errors, whichever click typer carries
            if format_message is None:
                raise
            print_message(usage_message(format_message(), getattr(error, "ctx", None), command=_started(sys.argv[1:])))
            raise SystemExit(MISUSE) from error
        if code == INTERRUPTED:  # while parsing; a running command prints this itself and raises SystemExit
            print_message("Interrupted.")
        raise SystemExit(code or OK)


def _started(arguments: Sequence[str]) -> str:
    """The command that was started, as in `sdpa-onnx run`."""
    names = {command.callback.__name__ for command in app.registered_commands if command.callback is not None}
    return " ".join(["sdpa-onnx", *(name for name in arguments[:1] if name in names)])


def _require_utf8(arguments: Sequence[str]) -> None:
    """Reject arguments that a record cannot store. Python decodes bytes that are not UTF-8 as lone surrogates."""
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            print_message(_encoding_error(argument))
            raise SystemExit(MISUSE)


def _encoding_error(argument: str) -> str:
    shown = argument.encode(errors="backslashreplace").decode()
    try:
        os.fsencode(argument).decode()
    except UnicodeError:
        return f"{shown} is not valid UTF-8, which records and reports require. Rename the file."
    return f"{shown} cannot be decoded in this locale, which is not UTF-8. Set PYTHONUTF8=1."


@contextlib.contextmanager
def _few_collections() -> Iterator[None]:
    """Collect garbage after more new objects than by default, and not when the process ends.

    Packages such as torch make millions of objects that stay, and each collection looks through them all: a sixth of
    the CPU time of `export`.
    """
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECTION_THRESHOLDS)
    atexit.register(gc.freeze)
    try:
        yield
    finally:
        gc.set_threshold(*before)
