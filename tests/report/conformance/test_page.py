"""The page of `conformance`: it is self-contained, has every row, and reveals nothing about the machine or its user."""

import base64
import hashlib
import re
from collections import Counter
from html.parser import HTMLParser

import msgspec
import pytest

from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec
from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.core.records.verdicts import Conformity
from sdpa_onnx.report.conformance.page import render_page, without_paths
from sdpa_onnx.report.conformance.run import ConformanceRun
from sdpa_onnx.workflows.expected.known_findings import KnownFinding, KnownFindings
from tests.report.synthetic_conformance import row, rows, run_of

_VOID = {"meta", "wbr"}


class Parsed(HTMLParser):
    """The elements of a page, with the text inside each; fails on a tag that is not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str], list[str]]] = []
        self._open: list[tuple[str, dict[str, str], list[str]]] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = (tag, {name: value or "" for name, value in attrs}, [])
        self.elements.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for _, _, text in self._open:
            text.append(data)

    def texts(self, tag: str, **attributes: str) -> list[str]:
        """The text of every element of this tag that has these attributes."""
        return [" ".join("".join(text).split()) for _, _, text in self._found(tag, attributes)]

    def attributes(self, tag: str, **attributes: str) -> list[dict[str, str]]:
        """The attributes of every such element."""
        return [found for _, found, _ in self._found(tag, attributes)]

    def _found(self, tag: str, wanted: dict[str, str]) -> list[tuple[str, dict[str, str], list[str]]]:
        has = {name.rstrip("_"): value for name, value in wanted.items()}
        return [
            element
            for element in self.elements
            if element[0] == tag and all(value in element[1].get(name, "").split() for name, value in has.items())
        ]


def parsed(run: ConformanceRun) -> Parsed:
    return Parsed(render_page(run))


def two_runtimes() -> ConformanceRun:
    """One with something of every kind, and one that is right everywhere."""
    fields = {"runtime": "openvino", "verdict": Conformity.RIGHT, "outcome": Outcome.OK, "path": "native"}
    return run_of(*rows(), *(msgspec.structs.replace(one, **fields) for one in rows()))


@pytest.mark.parametrize("run", [run_of(*rows()), two_runtimes()], ids=["one-runtime", "two-runtimes"])
def test_every_row_has_its_cell(run: ConformanceRun) -> None:
    """Each row is in the matrix once, with its verdict as mark, colour and text; nothing else is."""
    cells = [cell for cell in parsed(run).attributes("td", class_="cell") if "title" in cell]
    assert len(cells) == len(run.records)
    told = Counter((cell["title"].partition(". ")[0].partition(":")[0], cell["class"].split()[-1]) for cell in cells)
    wanted = Counter(
        (f"{one.runtime}, {one.feature}, {one.operator} {one.opset} {one.dtype}", f"is-{one.verdict}")
        for one in run.records
    )
    assert told == wanted


def test_every_row_that_is_not_right_has_its_evidence_and_command() -> None:
    """Wrong, refused and crashed rows are listed one by one, under the reason or the figures that they share."""
    page = parsed(run_of(*rows()))
    cards = page.texts("article", class_="finding")
    for record in rows():
        if record.verdict is not Conformity.RIGHT:
            place = f"{record.operator} {record.opset} {record.dtype}"
            says = [card for card in cards if record.feature in card and record.repeat in card]
            assert any((record.diagnosis or record.reason) in card for card in says), place
            assert any(record.reading in card and record.observed in card for card in says), place


def test_links_of_the_matrix_lead_to_their_findings() -> None:
    """A mark that is not right is a link to the finding of that row."""
    page = parsed(run_of(*rows()))
    ids = [found["id"] for _, found, _ in page.elements if "id" in found]
    assert len(ids) == len(set(ids))
    links = [link["href"] for link in page.attributes("a") if link["href"].startswith("#")]
    assert len(links) == sum(one.verdict is not Conformity.RIGHT for one in rows())
    assert {link[1:] for link in links} <= set(ids)


def test_columns_are_as_many_in_every_line_of_the_matrix() -> None:
    """Heads with their spans, groups and rows fit the same grid."""
    page = re.findall(r"<table class=\"matrix\">.*?</table>", render_page(two_runtimes()), flags=re.DOTALL)[0]
    widths = set()
    for line in re.findall(r"<tr.*?</tr>", page, flags=re.DOTALL):
        spans = re.findall(r"<t[hd]\b([^>]*)>", line)
        widths.add(sum(int((re.findall(r"colspan=\"(\d+)\"", span) or ["1"])[0]) for span in spans))
    assert widths == {23}


def test_the_page_stands_alone() -> None:
    """Nothing is loaded; the browser may run only our own script and style."""
    page = parsed(run_of(*rows()))
    tags = {tag for tag, _, _ in page.elements}
    assert tags.isdisjoint({"link", "img", "iframe", "object", "form", "base"})
    assert [found for tag, found, _ in page.elements if found.keys() & {"src", "style", "onclick", "srcset"}] == []
    assert "@import" not in render_page(run_of())
    assert "url(" not in render_page(run_of())
    (policy,) = [found["content"] for found in page.attributes("meta") if found.get("http-equiv")]
    assert policy.startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        (text,) = ["".join(inside) for name, _, inside in page.elements if name == tag]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_buttons_are_hidden_without_scripts() -> None:
    """There is a button for every verdict that occurs; without the script none is shown and no row is hidden."""
    page = parsed(run_of(*rows()))
    (group,) = page.attributes("div", class_="filter")
    assert "hidden" in group
    buttons = [found["value"] for found in page.attributes("button")]
    assert buttons == ["all", "right", "wrong", "refused", "crashed"]
    assert [found for _, found, _ in page.elements if "filtered-out" in found.get("class", "")] == []
    marked = [set(found["data-verdicts"].split()) for _, found, _ in page.elements if "data-verdicts" in found]
    assert set().union(*marked) == set(buttons[1:])


_HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(1)> \" ' & {{ 7 * 7 }} {% raw %} \x1b[31m"


def test_what_a_runtime_says_is_text() -> None:
    """HTML, template marks and control characters in any field are shown, not obeyed."""
    names = ("feature", "group", "title", "operator", "dtype", "observed", "reading", "diagnosis", "reason", "repeat")
    records = [
        row(verdict, **({name: f"{name} {_HOSTILE}" for name in names} | {"path": "expanded"}))
        for verdict in (*Conformity, None)
    ]
    entry = KnownFinding(fields={"verdict": "wrong"}, why=f"why {_HOSTILE}", place="k")
    run = run_of(
        *records,
        versions={"ort-cpu": f"version {_HOSTILE}"},
        sources={records[0].feature: f"javascript:alert(1) {_HOSTILE}"},
        facts={f"fact {_HOSTILE}": f"value {_HOSTILE}"},
        command=f"command {_HOSTILE}",
        known=KnownFindings(entries=(entry,)).sort(records),
        made=f"made {_HOSTILE}",
    )
    page = parsed(run)
    assert len(page.attributes("script")) == 1
    assert page.attributes("img") == []
    assert {href["href"][0] for href in page.attributes("a")} == {"#"}
    shown = _HOSTILE.replace("\x1b", "?")
    text = " ".join(page.texts("body"))
    for name in (*names, "why", "version", "fact", "value", "command", "made"):
        assert f"{name} {shown}" in text, name
    assert "\x1b" not in render_page(run)
    assert f"javascript:alert(1) {shown}" in text


def test_web_sources_are_links() -> None:
    """A source that is a web address can be followed; another is text."""
    wrong = [row(Conformity.WRONG, feature=feature) for feature in ("causal-past-one-query", "plain")]
    page = parsed(run_of(*wrong))
    assert [link["href"] for link in page.attributes("a") if link["href"][0] != "#"] == ["https://onnx.ai/operators"]
    assert "Attention-23, text of onnx 1.23" in page.texts("dd")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("at /srv/ann/src/attention.cc:12 it fails", "at attention.cc:12 it fails"),
        ("in '/srv/.venv/lib/x.py'", "in 'x.py'"),
        ("run in /srv/ann", "run in (path)"),
        ("(/tmp/a/b)", "((path))"),
        ("~/models/m.onnx", "m.onnx"),
        ("C:\\Users\\ann\\m.onnx and D:\\data", "m.onnx and (path)"),
        ("\\\\server\\share\\ann", "(path)"),
        ("file:///srv/ann/x", "(path)"),
        ("see https://example.org/srv/ann/page.html", "see https://example.org/srv/ann/page.html"),
        ("1/sqrt(d_k), q/kv heads, and/or", "1/sqrt(d_k), q/kv heads, and/or"),
        ("a / b, /x", "a / b, /x"),
        ("attn_mask->Shape()[0] / 2 == a/b/c", "attn_mask->Shape()[0] / 2 == a/b/c"),
    ],
)
def test_paths_are_taken_out(text: str, left: str) -> None:
    """Of a path only a file's name is left; addresses and fractions stay."""
    assert without_paths(text) == left


def test_no_path_is_left_on_the_page() -> None:
    """A reason, a command, a fact or a version may contain a path; the page has none of it."""
    where = "/srv/ann/private/thing"
    record = row(Conformity.REFUSED, reason=f"cannot read {where}", repeat=f"sdpa-onnx --page {where}/p.html")
    crashed = row(Conformity.CRASHED, opset=24, diagnosis=f"died in {where}/core.so:7")
    run = run_of(record, crashed, versions={"ort-cpu": where}, facts={"python": where}, command=f"sdpa-onnx {where}")
    page = render_page(run)
    assert "ann" not in re.findall(r"[a-z]+", page.partition("</style>")[2].partition("<script>")[0])
    assert "died in core.so:7" in page


def test_known_and_new_are_marked() -> None:
    """With known findings each card shows whether it is known, with the reason."""
    records = list(rows())
    entry = KnownFinding(fields={"verdict": "wrong", "opset": 25}, why="https://example.org/issues/1", place="k")
    page = parsed(run_of(*records, known=KnownFindings(entries=(entry,)).sort(records)))
    heads = page.texts("h3")
    assert [head for head in heads if head.endswith(" known")] == ["mask-row-fully-masked wrong known"]
    assert [head for head in heads if " new" in head][:2] == [
        "window-left crashed new",
        "causal-past-one-query wrong new",
    ]
    assert "https://example.org/issues/1" in page.texts("a")


def test_no_rows_and_half_a_run() -> None:
    """A page without rows states it, and a stopped run is marked as incomplete."""
    assert "There are no rows: nothing was tested." in parsed(run_of()).texts("p")
    assert "Incomplete: the run was stopped, and only the rows finished by then follow." in parsed(
        run_of(row(), is_finished=False)
    ).texts("p")


def test_the_same_run_gives_the_same_page() -> None:
    """Rendering again changes no byte."""
    assert len({render_page(two_runtimes()) for _ in range(3)}) == 1


def test_seen_is_what_is_known() -> None:
    """An outcome that is none of the known ones is not printed next to the reading that names it."""
    wrong = row(Conformity.WRONG, observed="none of the known", reading="nan-swallowed")
    page = parsed(run_of(wrong))
    assert "observed" not in page.texts("dt")
    assert "nan-swallowed" in page.texts("dd")
    assert "observed" in parsed(run_of(row(Conformity.WRONG, observed="shielded"))).texts("dt")


def test_case_ids_are_explained() -> None:
    """The page explains every part of a case id."""
    spec = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8, is_causal=True)
    case_id = AttentionCase(spec=spec, batch_size=2, q_seq_len=5, kv_seq_len=7).case_id
    (told,) = [text for text in parsed(run_of()).texts("p") if case_id in text]
    for part in (
        "(b)",
        "(hq)",
        "(hkv)",
        "(q)",
        "(kv)",
        "(d)",
        "f32",
        "bf16",
        "causal",
        "dv",
        "wl",
        "past",
        "cap",
        "bsh",
    ):
        assert part in told
