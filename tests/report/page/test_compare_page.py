"""The page of `compare`: the verdict first, ratios as dots with regressions first, and names that stay text."""

import json

import msgspec

from sdpa_onnx.report.compare.gate_points import gate_ratios
from sdpa_onnx.report.page.compare_page import compare_page, render_page
from sdpa_onnx.report.page.content import PageTone
from sdpa_onnx.report.page.html import page_html
from tests.report.page.elements import Parsed, require_text_only
from tests.report.synthetic_gates import HOSTILE, hostile, mixed, report


def test_the_verdict_and_the_regressions_come_first() -> None:
    """In the first sentence, in the table and in the data."""
    text = page_html(compare_page(report(mixed()), []))
    page = Parsed(text)
    assert page.texts("p", class_="first")[0].startswith("Off by one: wrong on ort-cpu in 2 checks, ok before.")
    assert page.attributes("div", class_="verdict")[0]["class"] == "verdict bad"
    words = [row for row in page.texts("tr") if row.startswith(("agreement", "time", "memory", "graph"))]
    assert words[0].startswith("agreementregression")
    data = json.loads("".join(page.texts("script", id="records")))
    assert [row["word"] for row in data][:4] == ["regression"] * 4
    assert len(data) == len(mixed())


def test_every_ratio_is_a_dot() -> None:
    """The worst verdict first; hollow where nothing is decided."""
    picture = gate_ratios(report(mixed()))
    assert picture is not None
    points = [point for panel in picture.panels for case in panel.cases for point in case.points]
    assert [(point.ratio, point.is_decided) for point in points] == [
        (1.12, True),
        (1.04, False),
        (1.3, False),
        (1.02, True),
        (0.9, True),
    ]
    assert all(point.low < point.ratio < point.high for point in points)
    assert (picture.baseline, picture.series) == ("BASE", ("ort-cpu",))


def test_the_page_of_hostile_names() -> None:
    """Chart included: no element, no script, no control character; the same rows give the same bytes."""
    rows = [msgspec.structs.replace(row, runtime=HOSTILE) for row in hostile().rows]
    found = render_page(report(rows))
    assert found == render_page(report(rows))
    require_text_only(found, scripts=6)
    assert not {"\x00", "\x1b"} & set(found)
    assert "a|b`c`&lt;script&gt;alert(1)&lt;/script&gt;" in found


def test_a_comparison_without_times_has_no_chart() -> None:
    """And nothing that draws one."""
    rows = [row for row in mixed() if row.ratio is None and not row.fails]
    assert gate_ratios(report(rows)) is None
    text = render_page(report(rows))
    assert len(Parsed(text).attributes("script")) == 5
    assert compare_page(report(rows), []).tone is PageTone.GOOD
