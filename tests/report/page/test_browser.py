"""The page in a browser: no request, no error, accessible in both themes; its controls work by mouse and keyboard."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sdpa_onnx.core.compare.history import history_of
from sdpa_onnx.report.page.bench_page import write_chart
from sdpa_onnx.report.page.compare_page import render_page as compare_html
from sdpa_onnx.report.page.conformance_page import render_page as conformance_html
from sdpa_onnx.report.page.history_page import render_history
from sdpa_onnx.report.page.render_run import render
from tests.report.synthetic import header, quick_records
from tests.report.synthetic_bench import over_lengths
from tests.report.synthetic_conformance import rows, run_of
from tests.report.synthetic_gates import mixed, report
from tests.report.synthetic_history import upgraded
from tests.report.synthetic_saturation import sweep

pytestmark = pytest.mark.slow

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'sdpa-onnx[browser]'")
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="needs axe-playwright-python: pip install 'sdpa-onnx[browser]'"
)
_CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
_PATIENCE_MS = 120_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not _CHROMIUM:
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return render([*quick_records(), *sweep()], header(), tmp_path_factory.mktemp("run"))[0]


class Opened:
    """A page, with every request and every complaint of the browser."""

    def __init__(self, browser: Any, file: Path, *, width: int = 1400, scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.page.set_default_timeout(_PATIENCE_MS)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda one: self.complaints.append(one.text) if one.type != "log" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda one: self.requests.append(one.url))
        self.address = file.resolve().as_uri()
        self.page.goto(self.address)
        self.page.wait_for_selector("html.ready")

    def draw_all(self) -> None:
        """Scroll past every chart, so that the interactive ones take their places."""
        for place in range(self.page.locator("figure.chart").count()):
            figure = self.page.locator("figure.chart").nth(place)
            figure.scroll_into_view_if_needed()
            self.page.locator("figure.chart.done").nth(place).wait_for()


@pytest.fixture
def opened(browser: Any, file: Path) -> Iterator[Opened]:
    one = Opened(browser, file)
    yield one
    one.context.close()


@pytest.mark.parametrize("width", [360, 800, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_quiet_accessible_and_fits(browser: Any, file: Path, width: int, scheme: str) -> None:
    """One request, the file itself; no error; no violation that axe knows; nothing wider than the screen."""
    _require_quiet_and_accessible(Opened(browser, file, width=width, scheme=scheme), width)


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1400, "light")])
@pytest.mark.parametrize("name", ["compare", "conformance", "history", "bench"])
def test_so_is_the_page_of_every_other_report(browser: Any, tmp_path: Path, name: str, width: int, scheme: str) -> None:
    """The same page, filled by another command."""
    file = tmp_path / f"{name}.html"
    match name:
        case "compare":
            file.write_text(compare_html(report(mixed())), encoding="utf-8")
        case "conformance":
            file.write_text(conformance_html(run_of(*rows(), *rows("openvino"))), encoding="utf-8")
        case "history":
            render_history(history_of(upgraded()), tmp_path)
        case "bench":
            write_chart(over_lengths({128: 1.25, 512: 0.8}), file)
    _require_quiet_and_accessible(Opened(browser, file, width=width, scheme=scheme), width)


def _require_quiet_and_accessible(one: Opened, width: int) -> None:
    one.draw_all()
    for fold in one.page.locator("details").all():
        fold.evaluate("fold => { fold.open = true; }")
    one.page.evaluate("scrollTo(0, 0)")
    found = axe.Axe().run(one.page).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"][:160]) for each in found] == []
    assert one.complaints == []
    assert one.requests == [one.address]
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width
    one.context.close()


def test_a_table_sorts_and_filters(opened: Opened) -> None:
    """By number with its unit, with the keyboard; the filter leaves the rows that have the text."""
    table = opened.page.locator("#table-time-of-a-call, [id^=table-what-a-call]").first
    opened.page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
    head = table.locator("th", has_text="median").first
    head.locator("[role=button], .dt-column-order").first.focus()
    opened.page.keyboard.press("Enter")
    table.locator("th[aria-sort=ascending]").wait_for()
    keys = [float(cell.get_attribute("data-order") or "nan") for cell in table.locator("tbody td:nth-child(3)").all()]
    assert keys == sorted(keys)
    table.locator("input[type=search]").fill('"attention 23"')
    rows = table.locator("tbody tr").all_inner_texts()
    assert rows
    assert all("attention 23" in row for row in rows)


def test_a_cell_opens_its_evidence(opened: Opened) -> None:
    """With the keyboard: the fold opens, and the focus is in it."""
    cell = opened.page.locator(".matrix td a").first
    target = (cell.get_attribute("href") or "").removeprefix("#")
    cell.focus()
    opened.page.keyboard.press("Enter")
    opened.page.locator(f"#{target}[open]").wait_for()
    assert "sdpa-onnx" in opened.page.locator(f"#{target} code").first.inner_text()
    assert opened.page.evaluate("document.activeElement.tagName") == "SUMMARY"


def test_a_point_has_a_tooltip(opened: Opened) -> None:
    """Its case, arm and ratio."""
    opened.draw_all()
    point = opened.page.locator("figure[data-chart=ratios] [aria-roledescription=point]").first
    point.scroll_into_view_if_needed()
    point.hover(force=True)
    tip = opened.page.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    assert "verdict" in tip.inner_text()


def test_data_can_be_downloaded(opened: Opened) -> None:
    """The records as JSON and each kind as CSV."""
    buttons = opened.page.locator("#downloads button")
    assert buttons.count() >= 4
    for place, name in ((0, "records.json"), (1, ".csv")):
        with opened.page.expect_download() as started:
            buttons.nth(place).click()
        assert started.value.suggested_filename.endswith(name)
        text = Path(started.value.path()).read_text(encoding="utf-8")
        assert (len(json.loads(text)) if place == 0 else len(text.splitlines())) > 2


def test_the_theme_has_a_button(opened: Opened) -> None:
    """It changes the colours, and says which it is."""
    button = opened.page.locator("#theme")
    before = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_it_is_complete_without_scripts(browser: Any, file: Path) -> None:
    """Pictures, tables and evidence are there; controls that need scripts are not."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.resolve().as_uri())
    assert page.locator("figure.chart .fallback svg").first.is_visible()
    assert page.locator("table.data").first.is_visible()
    assert not page.locator("#theme").is_visible()
    context.close()
