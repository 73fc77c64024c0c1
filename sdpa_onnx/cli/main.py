"""The entry point: collects the commands. Imports nothing heavy, so that `--help` is quick."""

from typing import Annotated

import typer

from sdpa_onnx.cli import bench, export, inspect, report, run, runtimes, verify
from sdpa_onnx.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    name="sdpa-onnx",
    help="Attention from PyTorch to ONNX: exported with dynamic axes, verified against a float64 oracle, timed.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (run.run, export.export, inspect.inspect, verify.verify, bench.bench, report.report, runtimes.runtimes):
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"sdpa-onnx {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    """Attention from PyTorch to ONNX: exported with dynamic axes, verified against a float64 oracle, timed."""


def main() -> None:
    """Run the command line."""
    app()
