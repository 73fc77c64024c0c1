"""Every command that writes a page: an interrupt leaves the old page whole, and no part of the new one."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sdpa_onnx.cli import conformance
from sdpa_onnx.cli.compare_files import write_results
from sdpa_onnx.report.page.bench_page import write_chart
from sdpa_onnx.report.page.render_run import render
from tests.report.synthetic import exports, header
from tests.report.synthetic_bench import over_lengths
from tests.report.synthetic_conformance import rows, run_of
from tests.report.synthetic_gates import mixed, report

_OLD = b"<!doctype html><title>the old page</title>"
WRITERS: dict[str, Callable[[Path], object]] = {
    "run and report": lambda page: render(list(exports()), header(), page.parent),
    "bench --chart": lambda page: write_chart(over_lengths({128: 1.25, 512: 0.8}), page),
    "compare --html": lambda page: write_results(report(mixed()), None, page, None),
    "conformance --page": lambda page: conformance._show(run_of(*rows()), page, as_json=True),  # no runtime
}
# Where Ctrl-C arrives: when all of the content is written, and when it is about to get its name.
MOMENTS = {"written": (os, "fsync"), "renamed": (Path, "replace")}


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("writer", WRITERS)
def test_an_interrupted_page_never_replaces_a_whole_one(
    writer: str, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old bytes stay, nothing else lies in the folder, and the next try writes the page."""
    page = tmp_path / "index.html"
    page.write_bytes(_OLD)
    with monkeypatch.context() as patched:
        patched.setattr(*MOMENTS[moment], _interrupted)
        with pytest.raises(KeyboardInterrupt):
            WRITERS[writer](page)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"index.html": _OLD}
    WRITERS[writer](page)
    assert page.read_text().rstrip().endswith("</html>")
