"""`sdpa-onnx report`: render a stored run again."""

from pathlib import Path
from typing import Annotated

import typer

from sdpa_onnx.cli.guard import OK, guarded
from sdpa_onnx.cli.options import Debug, Json

__all__ = ["report"]


@guarded
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)],
    *,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Write summary.md and the charts of a run again, and print it."""
    from sdpa_onnx.cli.expect import kept_known
    from sdpa_onnx.cli.show import show_report
    from sdpa_onnx.report.render import render
    from sdpa_onnx.sweep.store import read_run

    header, records = read_run(run)
    expected = kept_known(run)
    known = expected.sort(records) if expected is not None else None
    written = render(records, header, run, known=known)
    show_report(records, header, written[0], as_json=json, known=known)
    return OK
