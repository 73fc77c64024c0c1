"""The terminal, Markdown and the files: golden texts, narrow screens, odd encodings, full disks."""

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sdpa_onnx.core.records.records import Outcome, Record
from sdpa_onnx.errors import FolderError
from sdpa_onnx.report.page.render_run import render
from sdpa_onnx.report.run.markdown import render_summary
from sdpa_onnx.report.run.tables import all_tables
from sdpa_onnx.report.run.terminal import print_report, print_tables
from sdpa_onnx.report.text.layout import paragraph, table_lines
from tests.conftest import GoldenCheck
from tests.report.synthetic import check, comparison, header, quick_records, troubled_records
from tests.report.synthetic_saturation import flagged, module_cells, sweep


def saturation_records() -> list[Record]:
    """One check, a sweep with a cell that is off, and the module check."""
    first, *others = sweep()
    return [check(), flagged(first, -5.2), *others, *module_cells()]


RUNS = {"quick": quick_records, "troubled": troubled_records, "saturation": saturation_records}
CHARTS = {
    "quick": ["time-over-length-sdpa", "error-over-d_k-sdpa"],
    "saturation": ["saturation-over-d_k-sdpa", "saturation-over-length-sdpa"],
}


def printed(
    records: list[Record],
    *,
    width: int = 80,
    encoding: str = "utf-8",
    colour: bool = False,
    what: Callable[[list[Record], Console], None] = lambda records, console: print_report(records, header(), console),
) -> str:
    """What a terminal or pipe of this width gets: the first screen of a run, or what else is to be printed."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    console = Console(file=stream, width=width, force_terminal=colour, color_system="standard" if colour else None)
    what(records, console)
    stream.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("run", RUNS)
def test_terminal_at_80_columns(run: str, golden: GoldenCheck) -> None:
    """The first screen on a plain 80-column terminal."""
    golden(f"terminal_{run}.txt", printed(RUNS[run]()))


@pytest.mark.parametrize("run", RUNS)
def test_summary(run: str, golden: GoldenCheck) -> None:
    """The whole Markdown."""
    golden(f"summary_{run}.md", render_summary(RUNS[run](), header(), CHARTS.get(run, [])))


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_screen(run: str, width: int) -> None:
    """Nothing wraps in a way that we did not choose; a command is one line, so that it can be copied."""
    lines = printed(RUNS[run](), width=width).splitlines()
    assert max(len(line) for line in lines if not line.startswith("  sdpa-onnx ")) <= width


@pytest.mark.parametrize("width", [20, 40, 79, 80, 81, 120, 400])
def test_no_number_is_lost(width: int) -> None:
    """Every number cell is complete in the output, however narrow the screen is."""
    records = troubled_records()
    text = printed(records, width=width, what=print_tables)
    for table in all_tables(records):
        numbers = [index for index, column in enumerate(table.columns) if column.is_number]
        cells = {row[index] for section in table.sections for row in section.rows for index in numbers}
        assert {cell for cell in cells if cell not in text} == set()


def test_no_word_is_lost_in_narrow_text_columns() -> None:
    """A text cell is folded, never cut."""
    records: list[Record] = [check(outcome=Outcome.FAILED, verdict=None, reason="a " + "x" * 100 + " z")]
    (table,) = [table for table in all_tables(records) if table.title == "Not ok"]
    text = "".join(line.text for line in table_lines(table, 60))
    assert text.count("x") == 100


def test_a_paragraph_keeps_intervals_together() -> None:
    """An interval, or a number with its unit, is not broken over two lines."""
    text = "it takes 0.83 x [0.80, 0.86] and 4.51 ms at length 512"
    for width in range(14, 60):
        lines = paragraph(text, width)
        assert " ".join(lines) == text
        assert [line for line in lines if re.search(r"\[[^\]]*$|\d$", line) and line != lines[-1]] == []


def test_brackets_are_not_markup() -> None:
    """A reason that looks like rich markup or an emoji is printed unchanged."""
    records: list[Record] = [check(outcome=Outcome.FAILED, verdict=None, reason="[bold]x[/nope] :smile:")]
    assert "[bold]x[/nope] :smile:" in printed(records, width=200)


def test_ascii_pipe() -> None:
    """Microseconds stay microseconds where the encoding has no such letter."""
    text = printed([*comparison(seq_len=32)], encoding="ascii", what=print_tables)
    assert "39.2 us [38.6, 39.7]" in text


def test_colour_only_where_it_is_asked_for() -> None:
    """Colours are an addition: without them the text is the same."""
    plain, coloured = printed(quick_records()), printed(quick_records(), colour=True)
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NO_COLOR a terminal gets no colour."""
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.StringIO()
    print_report(troubled_records(), header(), Console(file=stream, width=80, force_terminal=True))
    assert not re.search(r"\x1b\[[\d;]*3\dm", stream.getvalue())


def test_summary_is_the_same_every_time() -> None:
    """The same records and header give the same bytes."""
    assert len({render_summary(quick_records(), header(), ["error-over-d_k-sdpa"]) for _ in range(3)}) == 1


def test_summary_of_nothing() -> None:
    """An empty run still has a summary that states it."""
    text = render_summary([], replace(header(), finished=None, done_cells=0), [])
    assert "**This run is not finished: 0 of 96 cells are done. There are no records" in text
    assert "charts/" not in text


def test_markdown_of_a_hostile_reason() -> None:
    """Table marks, HTML and line ends in a reason do not break the page."""
    reason = "a|b <script> *c* `d`\nnext \\ & end"
    text = render_summary([check(outcome=Outcome.FAILED, verdict=None, reason=reason)], header(), [])
    assert "a\\|b &lt;script> \\*c\\* \\`d\\` next \\\\ &amp; end" in text
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_markdown_tables_have_as_many_cells_in_every_line() -> None:
    """A stroke in a head, as in |J|, is no border."""
    text = render_summary(saturation_records(), header(), [])
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert "\\|J\\| rms" in text
    assert [len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) for table in tables] == [1] * 5


def test_render_writes_what_it_refers_to(tmp_path: Path) -> None:
    """The page, the summary and every chart in it are there, and nothing else is."""
    page, summary, *drawn = written = render(quick_records(), header(), tmp_path)
    text = summary.read_text(encoding="utf-8")
    assert (page, summary) == (tmp_path / "index.html", tmp_path / "summary.md")
    assert {tmp_path / link for link in re.findall(r"\]\((.*?)\)", text)} == set(drawn)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(written)


def test_saturation_has_one_section(tmp_path: Path) -> None:
    """Its claims, charts and tables are in one section, and its charts are written."""
    written = render(saturation_records(), header(), tmp_path)
    text = written[1].read_text(encoding="utf-8")
    (section,) = re.findall(r"^## What dividing by sqrt\(d_k\) does\n.*?(?=^## )", text, flags=re.MULTILINE | re.DOTALL)
    assert [path.stem for path in written[2:]] == CHARTS["saturation"]
    for words in (
        *CHARTS["saturation"],
        "### Saturation of the softmax",
        "### Saturation, measured and",
        "largest \\|z\\| is",
    ):
        assert words in section
    assert "What dividing by" not in render_summary(quick_records(), header(), [])


def test_rendering_again_changes_no_byte(tmp_path: Path) -> None:
    """Rendered files are pure functions of the records, charts too."""
    first = {path: path.read_bytes() for path in render(quick_records(), header(), tmp_path)}
    assert {path: path.read_bytes() for path in render(quick_records(), header(), tmp_path)} == first


def test_a_run_without_charts_refers_to_none(tmp_path: Path) -> None:
    """No data, no chart, no folder."""
    assert render([check()], header(), tmp_path) == [tmp_path / "index.html", tmp_path / "summary.md"]
    assert not (tmp_path / "charts").exists()


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails raises, keeps the old page and leaves no half file."""
    (tmp_path / "index.html").write_text("old")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(FolderError, match=r"^Cannot write \S+index\.html: No space left on device\.$"):
        render([check()], header(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]
    assert (tmp_path / "index.html").read_text() == "old"


def test_a_file_in_the_way_is_an_os_error(tmp_path: Path) -> None:
    """An unusable folder is the caller's to report."""
    (tmp_path / "run").write_text("")
    with pytest.raises(OSError, match="run"):
        render([check()], header(), tmp_path / "run")
