"""`sdpa-onnx report`: render a stored run again, or the history of a folder of runs."""

from pathlib import Path
from typing import Annotated

import typer

from sdpa_onnx.cli.error_boundary import OK, with_exit_codes
from sdpa_onnx.cli.open_page import Open, show_in_browser
from sdpa_onnx.cli.options import (
    Debug,
    Json,
    Quiet,
    Verbose,
)

__all__ = ["report"]


@with_exit_codes
def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN|FOLDER", help="A run folder, or a folder of runs.", show_default=False)
    ],
    *,
    open_page: Open = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> int:
    """Render the report of a run again, or the history of a folder of runs, and print it."""
    from sdpa_onnx.sweep.history import is_history

    page = _history(run, as_json=json) if is_history(run) else _run(run, as_json=json)
    if open_page:
        show_in_browser(page)
    return OK


def _run(run: Path, *, as_json: bool) -> Path:
    """Write index.html, summary.md and the charts of one run; return the page."""
    from sdpa_onnx.cli.show import show_report
    from sdpa_onnx.report.page.render_run import render
    from sdpa_onnx.sweep.expected import stored_known_findings
    from sdpa_onnx.sweep.store import read_run

    header, records = read_run(run)
    expected = stored_known_findings(run)
    known = expected.sort(records) if expected is not None else None
    written = render(records, header, run, known=known)
    show_report(records, header, written[0], as_json=as_json, known=known)
    return written[0]


def _history(folder: Path, *, as_json: bool) -> Path:
    """Write history.html, history.md and the charts of a folder of runs; return the page."""
    from sdpa_onnx.cli.show import show_history
    from sdpa_onnx.core.compare.history import history_of
    from sdpa_onnx.report.page.history_page import render_history
    from sdpa_onnx.sweep.history import read_runs

    stored = read_runs(folder)
    history = history_of(stored.runs, stored.skipped)
    written = render_history(history, folder)
    show_history(history, written[0], as_json=as_json)
    return written[0]
