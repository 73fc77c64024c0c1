"""The page of a run: complete, deterministic, offline, and safe against hostile names."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from sdpa_onnx.core.records.records import Outcome, Record, Verdict
from sdpa_onnx.report.page.cells import sort_key
from sdpa_onnx.report.page.content import PageTable, PageText
from sdpa_onnx.report.page.html import page_html
from sdpa_onnx.report.page.parts import page_data, page_table
from sdpa_onnx.report.page.render_run import render
from sdpa_onnx.report.page.run_page import run_page
from sdpa_onnx.report.page.scripts import chart_script, json_text, script_hash
from sdpa_onnx.report.run.charts import charts
from sdpa_onnx.report.text.svg import to_svg
from sdpa_onnx.report.text.table import Column, Section, Table
from tests.report.synthetic import case_of, check, header, quick_records, sizes_of, troubled_records
from tests.report.synthetic_conformance import rows as conformance_rows
from tests.report.synthetic_saturation import sweep

HOSTILE = "</script><img src=x onerror=alert(1)><!-- \u2028 {{ 7*7 }} ${x} \x1b[2J ]]> '\"&lt;"
_VOID = {"meta", "img", "br", "wbr", "rect", "path", "line"}


class Elements(HTMLParser):
    """Start tags with their attributes, and the text of each script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of the quick suite."""
    written = render([*quick_records(), *sweep()], header(), tmp_path_factory.mktemp("run"))
    return written[0].read_text(encoding="utf-8")


def without_charts(records: list[Record]) -> str:
    """A page that needs no chart, so that a test of texts is fast."""
    return page_html(run_page(records, header(), []))


def test_the_page_is_small(page: str) -> None:
    """Below 3 MB, scripts included."""
    assert len(page.encode()) < 3_000_000


def test_the_page_requests_nothing(page: str) -> None:
    """No element that loads, and a policy that forbids it; only scripts that match a hash run."""
    elements = Elements(page)
    for tag, attributes in elements.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        assert "src" not in attributes
        assert not (attributes.get("href") or "#").startswith(("http:", "https:", "//"))
    (policy,) = [one["content"] for tag, one in elements.tags if tag == "meta" and "http-equiv" in one]
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-")
    kinds = [one.get("type") for tag, one in elements.tags if tag == "script"]
    code = [text for text, kind in zip(elements.scripts, kinds, strict=True) if kind is None]
    assert [f"'{script_hash(text)}'" in policy for text in code] == [True] * 4


def test_every_chart_is_there_twice(page: str) -> None:
    """Interactive and as a picture, under one name."""
    names = list(charts([*quick_records(), *sweep()], header().ceilings))
    (specs,) = re.findall(r'<script type="application/json" id="specs">(.*?)</script>', page)
    assert sorted(json.loads(specs)) == sorted(names)
    assert re.findall(r'<figure class="chart" data-chart="(.*?)">', page) == names
    assert page.count('class="scroll fallback"') == len(names)


def test_ids_are_unique_and_links_lead_somewhere(page: str) -> None:
    """Each evidence link of the matrix has its target; no id is the name of something that scripts use."""
    tags = Elements(page).tags
    ids = [one["id"] for _, one in tags if "id" in one]
    links = [one["href"] or "" for tag, one in tags if tag == "a" and (one.get("href") or "").startswith("#")]
    assert len(ids) == len(set(ids))
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert not {"exports", "module", "define", "name", "top", "self", "vega", "DataTable"} & set(ids)


def test_colours_have_a_twin_for_the_dark_theme() -> None:
    """Every dark colour of a chart is replaced on a dark background."""
    style = (Path(__file__).parents[3] / "sdpa_onnx/report/page/page.css").read_text(encoding="utf-8")
    bright = {"#cc79a7", "#e69f00", "#56b4e9"}  # of the palette: readable on both grounds
    for chart in charts([*quick_records(), *sweep()], header().ceilings).values():
        for attribute, colour in re.findall(r'(fill|stroke)="(#\w+|white|black)"', to_svg(chart)):
            assert colour in bright or f'[{attribute}="{colour}"]' in style


def test_the_same_run_gives_the_same_bytes() -> None:
    """No clock, no random id."""
    drawn = [without_charts([*troubled_records()]) for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_hostile_names_stay_text() -> None:
    """Names, reasons and warnings become neither markup nor code, in the page and in its data."""
    fields = {"target": HOSTILE, "reason": HOSTILE, "warnings": (HOSTILE,), "case": HOSTILE, "runtime": HOSTILE}
    bad = check(outcome=Outcome.FAILED, verdict=None, **fields)  # type: ignore[arg-type]
    text = without_charts([bad])
    elements = Elements(text)
    assert not [tag for tag, _ in elements.tags if tag == "img"]
    assert [one for tag, one in elements.tags if tag == "script"] == [
        {},
        {"type": "application/json", "id": "specs"},
        {"type": "application/json", "id": "records"},
        {},
        {},
    ]
    (row,) = json.loads(elements.scripts[2])
    assert row["target"] == HOSTILE.replace("\x1b", "\ufffd").replace("\u2028", "\ufffd")
    assert "49" not in text.rpartition("<main")[2].partition("<script")[0]


def test_json_in_a_script_is_plain() -> None:
    """What could end an element or a line is escaped, and the value is the same."""
    text = json_text({"a": HOSTILE})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": HOSTILE}


def test_the_bundle_cannot_end_its_element() -> None:
    """The parser of HTML ends a script at its end tag, wherever that is."""
    assert "</script" not in chart_script()
    assert "<!--" not in chart_script()


def test_the_first_lines_are_the_verdict() -> None:
    """A wrong check colours the page and is in its first sentence."""
    wrong = check(outcome=Outcome.DISAGREES, verdict=Verdict.WRONG, max_bound_ratio=12.0)
    content = run_page([wrong, check()], header(), [])
    assert content.tone.value == "bad"
    assert content.verdict.startswith("WRONG: the output is off by up to 12 times its proven bound")
    assert content.sections[0].anchor == "troubles"


def test_a_cell_leads_to_evidence_and_command() -> None:
    """The evidence of a cell has the commands that export the same graph and verify it at the same sizes."""
    case = case_of(head_dim=32, causal=True)
    axes = {"batch_size": 1, "q_seq_len": 67}
    record = check(
        case=case.case_id,
        spec=case.spec,
        sizes=sizes_of(case),
        target="sdpa",
        form="blocked",
        opset=23,
        axes=axes,
        seed=3,
    )
    text = without_charts([record])
    (target,) = re.findall(r'<td class="good"><a href="#(.*?)"', text)
    assert f'id="{target}"' in text
    assert "sdpa-onnx export sdpa --q-num-heads 8 --head-dim 32 --causal --form blocked --opset 23 --seed 3" in text
    assert f"&amp;&amp; sdpa-onnx verify F.onnx --runtime {record.runtime} --seed 3 --size batch_size=1" in text


def test_many_records_are_cut_and_counted() -> None:
    """What is not ok comes first, and the page says how many records it has."""
    many = [check() for _ in range(3000)]
    many[-1] = msgspec.structs.replace(many[-1], outcome=Outcome.FAILED, reason="it failed")
    data = page_data([*many], "records.jsonl")
    assert data.rows[0]["reason"] == "it failed"
    assert len(data.rows) == 2000
    assert 'of 3000 records are in this page, those that are not ok first. The file <a href="records.jsonl">' in (
        without_charts([*many])
    )


def test_a_long_table_is_cut() -> None:
    """The rows of the first sections are kept, and the number of all rows is known."""
    sections = tuple(Section(heading=str(number), rows=(("a",),) * 600) for number in range(3))
    table = Table(title="Long", heading="of", columns=(Column(head="x"),), sections=sections)
    shown: PageTable = page_table(table)
    assert (shown.table.rows, shown.total) == (1000, 1800)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18.7 ms [18.6, 19.2]", 0.0187),
        ("60.4 µs", 60.4e-6),
        ("1.0e-05", 1e-5),
        ("<.01 %", None),
        ("82.5 (84 %)", 82.5),
        ("12.3 MiB", 12.3 * 2**20),
        ("baseline", None),
        ("-", None),
        ("-2.1", -2.1),
        ("1,240", 1240.0),
    ],
)
def test_cells_sort_by_their_number(text: str, value: float | None) -> None:
    """Units count: 60 µs is less than 18 ms."""
    assert sort_key(text) == (None if value is None else pytest.approx(value, rel=1e-5))


def test_a_run_with_conformance_has_the_matrix() -> None:
    """With the evidence of every row that is not right."""
    text = without_charts([check(), *conformance_rows()])
    assert "Feature by feature" in text
    assert "Evidence of every row that is not right" in text
    assert "Feature by feature" not in without_charts([check()])


def test_the_effect_of_the_scale_is_shown_unfolded() -> None:
    """Its first sentence needs no click; the other claims do."""
    records = [*quick_records(), *sweep()]
    (section,) = [one for one in run_page(records, header(), []).sections if one.anchor == "scale"]
    first, others, *_ = section.blocks
    assert isinstance(first, PageText)
    assert not first.title
    assert "effective keys instead of" in first.lines[-1]
    assert isinstance(others, PageText)
    assert others.title == "All claims in words"


def test_the_menu_has_the_names_of_the_sections(page: str) -> None:
    """So that a reader recognises where a link leads."""
    menu = re.findall(r'<li><a href="#([^"]+)">([^<]+)</a></li>', page.partition("</nav>")[0])
    headings = re.findall(r'<h2 id="([^"]+)">([^<]+)</h2>', page)
    assert menu == headings != []
