"""What `compare` prints and writes: golden texts, hostile names, and files that others must be able to read."""

import io
import re
from xml.etree import ElementTree as ET

import msgspec
import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from sdpa_onnx.core.compare.gate_limits import GateLimits
from sdpa_onnx.core.compare.gates import RunSide, compare_paired, compare_stored
from sdpa_onnx.core.records.gate_records import Gate, GateRecord, GateVerdict
from sdpa_onnx.core.records.records import Subject
from sdpa_onnx.core.records.verdicts import Outcome, RatioVerdict, Verdict
from sdpa_onnx.report.compare.gate_report import GateReport, evidence_lines, place, summary
from sdpa_onnx.report.compare.junit import render_junit
from sdpa_onnx.report.compare.markdown import MOST_BYTES, render_gates
from sdpa_onnx.report.compare.terminal import gate_lines, print_gates
from sdpa_onnx.workflows.expected.known_findings import KnownFinding
from tests.conftest import GoldenCheck
from tests.core.gate_problems import MACHINE, TORCH, agreed, beside, timed
from tests.report.synthetic_gates import hostile, mixed, report


def read(data: bytes) -> ET.Element:
    """What a CI server makes of it."""
    return ET.fromstring(data)  # noqa: S314 - our own text


def text(found: GateReport, width: int = 100) -> str:
    return "".join(f"{line.text}\n" for line in gate_lines(found, width))


def test_terminal_with_every_word(golden: GoldenCheck) -> None:
    """The sentence first, then what changed, the worst first, then why."""
    golden("gates_mixed.txt", text(report(mixed())))


def test_markdown_with_every_word(golden: GoldenCheck) -> None:
    """For a comment on a pull request."""
    golden("gates_mixed.md", render_gates(report(mixed())))


def test_junit_with_every_word(golden: GoldenCheck) -> None:
    """For a CI server."""
    golden("gates_mixed.xml", render_junit(report(mixed())).decode())


def test_printed_case_of_a_larger_model() -> None:
    """The sizes of the axes are printed, not the name of the case; JUnit readers know the test case by that name."""
    row = GateRecord(
        gate=Gate.AGREEMENT,
        word=GateVerdict.REGRESSION,
        outcome=Outcome.DISAGREES,
        runtime="ort-cpu",
        target="head.onnx",
        case="head.onnx_b2",
        subject=Subject.OUTPUT,
        site="output",
        inputs="spread 1",
        axes={"batch_size": 2, "x_seq_len": 13},
        evidence="It differs.",
    )
    found = report([row])
    printed = " ".join(text(found).split())
    assert "regression: output 'output', batch_size 2, x_seq_len 13, spread 1: It differs." in printed
    assert "All of head.onnx, on ort-cpu unless stated otherwise." in printed
    assert "What changed" in printed
    assert "head.onnx_b2" not in printed
    assert "and times" not in printed
    assert b"head.onnx_b2" in render_junit(found)


def test_nothing_changed(golden: GoldenCheck) -> None:
    """All the same: one sentence and no table."""
    found = report(compare_paired([agreed()], [agreed()], [beside(1.0)], GateLimits()))
    golden("gates_same.md", render_gates(found))
    assert text(found).startswith(
        "No regression in 2 checks: 2 the same.\n"
        "BASE base/model.onnx, HEAD head/model.onnx. Both were judged, and timed interleaved on one machine.\n"
    )
    untimed = report(compare_paired([agreed()], [agreed()], [], GateLimits()))
    assert text(untimed).count("\n") == 2


def test_known_findings_pass_and_are_told() -> None:
    """A listed regression is no regression, neither in the sentence nor for a CI server."""
    rows = compare_paired([agreed()], [agreed(verdict=Verdict.WRONG, outcome=Outcome.DISAGREES)], [], GateLimits())
    known = KnownFinding(
        fields={"kind": "gate", "gate": "agreement", "word": "regression"}, why="#12", place="k.toml, entry 1"
    )
    found = report(rows, known)
    assert summary(found) == "No regression in 1 check: 1 known."
    assert evidence_lines(found)[0][1].endswith("Known: #12 (k.toml, entry 1).")
    suite = read(render_junit(found))
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "1")
    assert [one.get("message") for one in suite.iter("skipped")] == ["known: #12"]


@pytest.mark.parametrize(("word", "sentence"), [(GateVerdict.UNDECIDED, "TIME WAS NOT GATED in 1 case")])
def test_noisy_is_in_the_first_lines(word: GateVerdict, sentence: str) -> None:
    """A machine that was too noisy must not look like a pass."""
    rows = compare_paired([], [], [beside(1.3, verdict=RatioVerdict.NOISY)], GateLimits())
    assert rows[0].word is word
    assert text(report(rows)).splitlines()[1].startswith(sentence)
    assert render_gates(report(rows)).startswith("## \u26a0\ufe0f Attention: no regression found, time not gated")


def test_many_cases_that_say_the_same_are_one_row() -> None:
    """Forty timings that are not comparable for one reason: one row with their number."""
    base = [
        one
        for n in range(40)
        for one in (timed(case=f"q{n}", group=f"q{n}"), msgspec.structs.replace(TORCH, group=f"q{n}", case=f"q{n}"))
    ]
    rows = compare_stored(
        RunSide(records=base), RunSide(records=base, machine=MACHINE), GateLimits(skipped=frozenset({Gate.GRAPH}))
    )
    found = [line for line in text(report(rows)).splitlines() if "40 cases" in line]
    assert len(found) == 2


def test_hostile_names_stay_text_in_markdown() -> None:
    """No tag, no emphasis, no link, no mention, no row more than there should be."""
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(render_gates(hostile()))
    assert "<script" not in page
    assert "<em>" not in page
    assert "<a " not in page
    assert page.count("<h2>") == 1
    outside = re.sub(r"(?s)<code.*?</code>", "", page)
    assert "@all" not in outside
    assert "#12" not in outside
    plain = MarkdownIt("commonmark", {"html": True}).enable("table").render(render_gates(report(mixed())))
    assert page.count("<td") == plain.count("<td")


def test_hostile_names_in_junit() -> None:
    """Well-formed, the same number of cases, and the name is there but for what XML cannot hold."""
    root = read(render_junit(hostile()))
    cases = list(root.iter("testcase"))
    assert len(cases) == len(mixed())
    assert "<script>alert(1)</script>" in str(cases[0].get("name"))
    assert "\x00" not in str(cases[0].get("name"))


def test_junit_names_are_unique() -> None:
    """Readers of JUnit merge two test cases of one name."""
    names = [(one.get("classname"), one.get("name")) for one in read(render_junit(report(mixed()))).iter("testcase")]
    assert len(names) == len(set(names))


def test_a_comment_is_never_too_long() -> None:
    """Thousands of different regressions: the comment is cut and states it, and its first line is complete."""
    rows = [
        GateRecord(
            gate=Gate.TIME,
            word=GateVerdict.REGRESSION,
            outcome=Outcome.DISAGREES,
            case=f"case {n}",
            arm=f"arm {n}",
            ratio=1.2,
            margin=0.05,
            evidence=f"{n} " + "long " * 60,
        )
        for n in range(3000)
    ]
    page = render_gates(report(rows))
    assert len(page.encode()) <= MOST_BYTES
    assert page.startswith(
        "## \u274c Attention: 3000 regressions\n\n**arm 0 is 20 % slower (allowed: 5 %). Also: arm 1 is 20 % slower "
    )
    assert "more rows not shown" in page
    assert page.count("<details>") == page.count("</details>")


def test_place_names_what_there_is() -> None:
    """Runtime, target, case, form and opset, attention, inputs."""
    row = compare_paired([agreed()], [agreed(inputs="probe mask")], [], GateLimits())[0]
    assert place(row) == (
        "ort-cpu, sdpa, batch 1, length 512, d_k 64, 8 heads, float32, attention, opset 23, attention_0, probe mask"
    )


def test_an_output_is_quoted() -> None:
    """The output of the name "output" would read oddly without."""
    row = compare_paired([agreed()], [agreed(subject=Subject.OUTPUT, site="output", case="x")], [], GateLimits())[0]
    assert ", output 'output', spread 1" in place(row)


def test_slower_within_the_margin_is_in_the_sentence() -> None:
    """A pass, and nobody may read it as the same."""
    found = report(compare_paired([], [], [beside(1.0), beside(1.02)], GateLimits()))
    assert summary(found) == "No regression in 2 checks: 1 the same and 1 slower within the margin of 5 %."
    allowed = report(compare_paired([], [], [beside(1.2)], GateLimits(allowed=frozenset({Gate.TIME}))))
    assert summary(allowed) == "No regression in 1 check: 1 worse, allowed."
    assert summary(report(mixed())).endswith(" 4 of 12 checks fail. 1 more check is slower within the margin of 5 %.")


def test_one_cause_is_one_finding() -> None:
    """The worst row of six in full, one row in the table, one failure for a CI server."""
    base = [agreed(inputs=f"spread {n}") for n in range(6)]
    head = [
        agreed(
            inputs=f"spread {n}",
            verdict=Verdict.WRONG if n == 4 else Verdict.SUSPICIOUS,
            outcome=Outcome.DISAGREES,
            diagnosis=f"Off by {n}.",
        )
        for n in range(6)
    ]
    ((label, sentence),) = evidence_lines(report(compare_paired(base, head, [], GateLimits())))
    assert label == "agreement, regression"
    assert sentence.startswith("6 cases, such as ")
    assert sentence.endswith("spread 4: wrong, ok before: Off by 4.")
    found = report(compare_paired(base, head, [], GateLimits()))
    for printed in (text(found), render_gates(found)):
        assert printed.count("Off by 4.") == 1  # the first sentence has no full stop there
        assert "Off by 1." not in printed
    suite = read(render_junit(found))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("6", "1", "5")
    (failure,) = suite.iter("failure")
    assert failure.get("message") == "regression: Off by 4: wrong on ort-cpu in 6 checks, ok before."
    failed = [str(case.get("name")) for case in suite.iter("testcase") if case.find("failure") is not None]
    assert {str(one.get("message")) for one in suite.iter("skipped")} == {f"regression: same cause as {failed[0]}"}


def test_the_same_sentence_of_several_gates_is_one_line() -> None:
    """What a time limit did not reach is said once, and its gates are listed."""
    why = "Skipped: the time limit (--budget) was reached first."
    rows = [
        GateRecord(gate=gate, word=GateVerdict.NOT_COMPARABLE, outcome=Outcome.SKIPPED, runtime="r", evidence=why)
        for gate in (Gate.AGREEMENT, Gate.GRAPH, Gate.TIME)
    ]
    ((label, sentence),) = evidence_lines(report(rows))
    assert label == "agreement, graph and time, not comparable"
    assert sentence == f"r: {why}"


def test_junit_of_many_foreign_benchmarks_is_short() -> None:
    """Thousands that were timed alone differ in their figures only: one case with their number, without failures."""
    rows = [
        GateRecord(
            gate=Gate.TIME,
            word=GateVerdict.NOT_COMPARABLE,
            outcome=Outcome.SKIPPED,
            case=f"f.py::t{n}",
            evidence=f"Not comparable: its median is {1 + n / 1000:.3f} times that of BASE.",
        )
        for n in range(2000)
    ]
    strict = msgspec.structs.replace(rows[0], outcome=Outcome.DISAGREES)
    root = read(render_junit(report([*rows, strict, *mixed()])))
    names = [str(one.get("name")) for one in root.iter("testcase")]
    assert names.count("2000 cases, such as f.py::t0") == 1
    assert len(names) == 2 + len(mixed())
    assert root.get("tests") == str(len(names))
    assert len(list(root.iter("failure"))) == int(root.get("failures", "0"))
    few = read(render_junit(report(rows[:20])))
    assert len(list(few.iter("testcase"))) == 20


def test_hostile_names_act_nowhere() -> None:
    """No escape, bell or turned line in any of the three outputs; no formula and no bare link in Markdown."""
    name = "a\x1b[2J\x07\u202eb$x$ https://evil.example www.evil.example"
    rows = [msgspec.structs.replace(row, case=name, target=name, evidence=name) for row in mixed()]
    found = GateReport(rows=rows, base=name, head=name, how="x", command=f"sdpa-onnx compare {name}")
    page = render_gates(found)
    console = Console(file=io.StringIO(), width=100)
    print_gates(found, console)
    for shown in (page, render_junit(found).decode(), console.file.getvalue()):  # type: ignore[attr-defined]
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    outside = re.sub(r"(?s)<code.*?</code>", "", MarkdownIt("commonmark").enable("table").render(page))
    assert "$x$" in outside
    assert "$" not in re.sub(r"(?s)```.*?```|`[^`]*`", "", page)
    assert "://" not in outside
    assert "www." not in outside
