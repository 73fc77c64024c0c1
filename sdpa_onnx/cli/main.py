"""The entry point: collects the commands. Imports nothing heavy, so that `--help` is quick."""

from typing import Annotated

import typer

from sdpa_onnx.cli import bench, export, inspect, report, run, runtimes, saturation, verify
from sdpa_onnx.cli.guard import MISUSE, OK, tell
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
    verify.verify,
    bench.bench,
    saturation.saturation,
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
    """Run the command line; what the parser refuses is told like every other error."""
    try:
        code = app(standalone_mode=False, prog_name="sdpa-onnx")
    except Exception as error:
        say = getattr(error, "format_message", None)  # click's own errors, whichever click typer carries
        if say is None:
            raise
        tell(f"{say().rstrip('.')}. See sdpa-onnx --help.")
        raise SystemExit(MISUSE) from error
    raise SystemExit(code or OK)
