"""`--open`: show a page in the browser of this machine."""

from pathlib import Path
from typing import Annotated

import typer

from sdpa_onnx.cli.error_boundary import print_message

__all__ = ["Open", "show_in_browser"]

Open = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


def show_in_browser(page: Path) -> None:
    """Open a page; where there is no browser, its path was printed, and one sentence says so."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        print_message(f"no browser was found; open {page}")
