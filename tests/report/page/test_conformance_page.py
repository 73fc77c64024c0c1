"""The page of `conformance`: it is self-contained, has every row, and reveals nothing about the machine or its user."""

import json
import re
from collections import Counter

import msgspec
import pytest

from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec
from sdpa_onnx.core.records.records import Outcome
from sdpa_onnx.core.records.verdicts import Conformity
from sdpa_onnx.report.conformance.matrix import mark_of
from sdpa_onnx.report.conformance.run import ConformanceRun
from sdpa_onnx.report.page.conformance_page import render_page
from sdpa_onnx.report.page.without_paths import without_paths
from sdpa_onnx.workflows.expected.known_findings import KnownFinding, KnownFindings
from tests.report.page.elements import Parsed, require_text_only
from tests.report.synthetic_conformance import row, rows, run_of


def parsed(run: ConformanceRun) -> Parsed:
    return Parsed(render_page(run))


def two_runtimes() -> ConformanceRun:
    """One with something of every kind, and one that is right everywhere."""
    fields = {"runtime": "openvino", "verdict": Conformity.RIGHT, "outcome": Outcome.OK, "path": "native"}
    return run_of(*rows(), *(msgspec.structs.replace(one, **fields) for one in rows()))


@pytest.mark.parametrize("run", [run_of(*rows()), two_runtimes()], ids=["one-runtime", "two-runtimes"])
def test_every_row_has_its_cell(run: ConformanceRun) -> None:
    """Each row is in the matrix once, with its mark, in words for a screen reader too; nothing else is."""
    page = parsed(run)
    cells = [
        (found.get("aria-label") or found["title"], "".join(text))
        for tag, found, text in page.elements
        if tag in ("a", "span") and "title" in found
    ]
    shown = Counter((label.partition(". ")[0], mark) for label, mark in cells)
    wanted = Counter(
        (
            f"{one.runtime}, {one.feature}, {one.operator} {one.opset} {one.dtype}: {one.verdict}".removesuffix("."),
            str(mark_of(one)),
        )
        for one in run.records
    )
    assert {(label.removesuffix("."), mark): number for (label, mark), number in shown.items()} == wanted


def test_every_row_that_is_not_right_has_its_evidence_and_command() -> None:
    """Wrong, refused and crashed rows are listed one by one, below their feature."""
    page = parsed(run_of(*rows()))
    for record in rows():
        if record.verdict is not Conformity.RIGHT:
            place = f"{record.operator} {record.opset} {record.dtype}"
            (fold,) = [text for text in page.texts("details") if text.startswith(record.feature)]
            found = [text for text in page.texts("tr") if place in text and record.repeat in text]
            assert any((record.diagnosis or record.reason) in text and record.reading in text for text in found), place
            assert place in fold


def test_links_of_the_matrix_lead_to_their_findings() -> None:
    """A mark that is not right is a link to the finding of that row."""
    page = parsed(run_of(*rows()))
    ids = [found["id"] for _, found, _ in page.elements if "id" in found]
    assert len(ids) == len(set(ids))
    links = [link["href"] for link in page.attributes("a") if link["href"].startswith("#feature-")]
    assert len(links) == sum(one.verdict is not Conformity.RIGHT for one in rows())
    assert {link[1:] for link in links} <= set(ids)


def test_columns_are_as_many_in_every_line_of_the_matrix() -> None:
    """Heads, groups and rows fit the same grid."""
    page = re.findall(r"<table class=\"matrix many\">.*?</table>", render_page(two_runtimes()), flags=re.DOTALL)[0]
    widths = set()
    for line in re.findall(r"<tr.*?</tr>", page, flags=re.DOTALL):
        spans = re.findall(r"<t[hd]\b([^>]*)>", line)
        widths.add(sum(int((re.findall(r"colspan=\"(\d+)\"", span) or ["1"])[0]) for span in spans))
    assert widths == {23}


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
    require_text_only(render_page(run))
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
    assert "Attention-23, text of onnx 1.23" in page.texts("td")


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
    shown = page.partition("</style>")[2].partition('<script type="application/json" id="specs">')
    assert "ann" not in re.findall(r"[a-z]+", shown[0].partition("</script>")[2])
    data = "".join(Parsed(page).texts("script", id="records"))
    assert len(json.loads(data)) == 2
    assert "ann" not in re.findall(r"[a-z]+", data)
    assert "died in core.so:7" in page


def test_known_and_new_are_marked() -> None:
    """With known findings a column has the reason of those that are known, and another marks those that are new."""
    records = list(rows())
    entry = KnownFinding(fields={"verdict": "wrong", "opset": 25}, why="https://example.org/issues/1", place="k")
    page = parsed(run_of(*records, known=KnownFindings(entries=(entry,)).sort(records)))
    rows_of = page.texts("tr")
    (known,) = [text for text in rows_of if "https://example.org/issues/1" in text]
    assert known.startswith("mask-row-fully-masked")
    assert "new" not in known
    assert [text.partition(":")[0] for text in rows_of if ".new" in text] == ["window-left", "causal-past-one-query"]
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
    page = " ".join(
        parsed(run_of(row(Conformity.WRONG, observed="none of the known", reading="nan-swallowed"))).texts("main")
    )
    assert "Observed" not in page
    assert "Reading: nan-swallowed." in page
    shown = parsed(run_of(row(Conformity.WRONG, observed="shielded"))).texts("main")
    assert "Observed: shielded." in shown[0]


def test_case_ids_are_explained() -> None:
    """The page explains every part of a case id."""
    spec = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8, is_causal=True)
    case_id = AttentionCase(spec=spec, batch_size=2, q_seq_len=5, kv_seq_len=7).case_id
    (told,) = [text for text in parsed(run_of()).texts("li") if case_id in text]
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
