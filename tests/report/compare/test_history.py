import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from sdpa_onnx.core.compare.history import History, StoredRun, history_of
from sdpa_onnx.report.compare.history import history_data, history_markdown
from sdpa_onnx.report.compare.history_chart import history_charts
from sdpa_onnx.report.compare.history_text import history_sentences
from sdpa_onnx.report.page.history_page import history_page, render_history
from sdpa_onnx.report.page.html import page_html
from sdpa_onnx.report.text.svg import to_svg
from tests.conftest import GoldenCheck
from tests.report.page.elements import Parsed, require_text_only
from tests.report.synthetic_history import run_header, stored, upgraded

FUSED = "ort-cpu attention 23"


@pytest.fixture(scope="module")
def history() -> History:
    """An upgrade that made the operator slower, another machine, a run that was stopped, one that cannot be read."""
    other = stored(11, environment={"cpu": "Other <CPU>", "cores": "4", "python": "3.11.9"})
    cut = StoredRun(name="cut", header=run_header(12, finished=None, done_cells=3), records=[])
    return history_of([*upgraded(), other, cut], {"broken": "run.json: JSON is malformed."})


def test_markdown(history: History, golden: GoldenCheck) -> None:
    """The whole page: changes with their cause, separate groups, skipped runs, the tables."""
    golden("history.md", history_markdown(history, {"history-1": ""}))


def test_a_quiet_history_says_so() -> None:
    """The first sentence is enough to read."""
    first, *_ = history_sentences(history_of(stored(day) for day in range(1, 8)))
    assert first == "No level change in 7 runs (4 series)."


def test_a_change_in_the_newest_run_only_is_told_as_such() -> None:
    """One run may differ for a reason that the rule does not model; the reader is advised to wait."""
    runs = [*(stored(day) for day in range(1, 8)), stored(8, {FUSED: 1.3})]
    _, sentence, *_ = history_sentences(history_of(runs))
    assert sentence.startswith("From 2026-07-08 on, Attention (opset 23) on ort-cpu in sdpa")
    assert "No version changed between 2026-07-07 and 2026-07-08." in sentence
    assert sentence.endswith("Only the newest run shows it; the next run will confirm it or not.")


def test_of_many_changes_at_once_the_largest_are_named() -> None:
    """A sentence stays readable: the three largest, and how many more there are."""
    faster = {"ort-cpu decomposed 18": 0.6, FUSED: 0.7}
    runs = [*(stored(day) for day in range(1, 6)), *(stored(day, faster) for day in range(6, 11))]
    _, sentence, *_ = history_sentences(history_of(runs))
    assert sentence.count(" is faster: ") == 3
    assert "; 1 more changed less. No version changed" in sentence
    assert sentence.index("decomposed graph") < sentence.index("Attention (opset 23)")


def test_files_are_written_beside_the_runs(history: History, tmp_path: Path) -> None:
    """Markdown, page and a chart for the machine with several runs; each is sound and the page holds the chart."""
    written = render_history(history, tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in written] == [
        "history.html",
        "history.md",
        "charts/history-1.svg",
    ]
    chart = (tmp_path / "charts" / "history-1.svg").read_text(encoding="utf-8")
    marks = [node for node in ET.fromstring(chart).iter() if node.get("aria-roledescription") == "point"]  # noqa: S314
    assert len(marks) == 4 * 10 + 2  # every point, and a ring around each change
    assert chart.rstrip() in (tmp_path / "history.html").read_text(encoding="utf-8")


def test_the_page_has_every_point_as_data(history: History) -> None:
    """Names are text, not markup; a row of data per point, with the change of its level."""
    page = page_html(history_page(history, []))
    require_text_only(page, scripts=5)
    assert "Other &lt;CPU&gt;" in page
    points = json.loads("".join(Parsed(page).texts("script", id="records")))
    assert len(points) == sum(len(series["points"]) for series in history_data(history))
    assert {point["run"] for point in points if point["log_change"]} == {"2026-07-06"}


def test_data_has_every_point(history: History) -> None:
    """For programs: series with their points and changes."""
    data = history_data(history)
    (series,) = [one for one in data if one["arm"] == FUSED and one["target"] == "sdpa" and one["changes"]]
    assert len(series["points"]) == 10
    assert [change["run"] for change in series["changes"]] == ["2026-07-06"]
    assert series["reference_version"] == "2.13.0"


def test_hostile_names_stay_text() -> None:
    """The name of a folder cannot become a link, mention, formula or control character, in Markdown and on the page."""
    name = "[l](http://evil.example) @all #12 $x$ <b> \x1b[2J\u202e"
    found = history_of(upgraded(), {name: "it is broken"})
    text, page = history_markdown(found, {}), page_html(history_page(found, []))
    require_text_only(page)
    assert not {"\x1b", "\u202e", "$"} & set(text)
    assert not {"\x1b", "\u202e"} & set(page)
    assert not [mark for mark in ("[l](", "://", "@all", "#12", "<b>") if mark in text]


def test_a_chart_of_hostile_names_is_drawn() -> None:
    """The drawing library aborts the whole process at a control character."""
    name = "a\x1b[2J\x00\u202e\uffff<b>"
    runs = [replace(run, name=f"{name}{index}") for index, run in enumerate(upgraded())]
    spoilt = [msgspec.structs.replace(one, target=name) for one in runs[0].records]  # type: ignore[call-arg]
    (chart,) = history_charts(history_of([replace(runs[0], records=spoilt), *runs[1:]])).values()
    svg = to_svg(chart)
    assert ET.fromstring(svg).tag.endswith("svg")  # noqa: S314 - our own text
    assert not {"\x1b", "\u202e"} & set(svg)
