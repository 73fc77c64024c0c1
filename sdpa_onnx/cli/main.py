"""The entry point: collects the commands. Imports nothing heavy, so that `--help` is quick."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
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
from sdpa_onnx.cli.error_boundary import INTERRUPTED, MISUSE, OK, fill_closed_streams, replace_unsayable, tell
from sdpa_onnx.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    name="sdpa-onnx",
    help="Attention from PyTorch to ONNX: exported with dynamic axes, verified against a float64 oracle, timed.",
    add_completion=False,
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
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"sdpa-onnx {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    """Attention from PyTorch to ONNX: exported with dynamic axes, verified against a float64 oracle, timed."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run the command line; what the parser refuses, and a stop before the command, are told like every error."""
    fill_closed_streams()
    replace_unsayable()
    _require_text(sys.argv[1:])
    with _terminated_like_ctrl_c():
        try:
            code = app(standalone_mode=False, prog_name="sdpa-onnx")
        except KeyboardInterrupt:
            code = INTERRUPTED
        except Exception as error:
            say = getattr(error, "format_message", None)  # click's own errors, whichever click typer carries
            if say is None:
                raise
            tell(f"{say().rstrip('.')}. See sdpa-onnx --help.")
            raise SystemExit(MISUSE) from error
        if code == INTERRUPTED:  # while parsing: a command tells of it itself, and leaves by SystemExit
            tell("Interrupted.")
        raise SystemExit(code or OK)


def _require_text(arguments: Sequence[str]) -> None:
    """Refuse names that no record could hold; Python gives bytes that are no UTF-8 as lone surrogates."""
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            tell(_why_no_text(argument))
            raise SystemExit(MISUSE)


def _why_no_text(argument: str) -> str:
    said = argument.encode(errors="backslashreplace").decode()
    try:
        os.fsencode(argument).decode()
    except UnicodeError:
        return f"{said} is not UTF-8, as the names in records and reports are. Rename the file."
    return f"{said} cannot be read in this locale, which is not UTF-8. Set PYTHONUTF8=1."


@contextlib.contextmanager
def _terminated_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does: one sentence, no half file, exit code 130."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup, which must go on
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
