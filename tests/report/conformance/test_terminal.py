"""The conformance report on a terminal: golden texts, and what no width may lose."""

import io
import re

import msgspec
import pytest
from rich.console import Console

from sdpa_onnx.core.records.records import ConformanceRecord, Outcome
from sdpa_onnx.core.records.verdicts import Conformity
from sdpa_onnx.report.conformance.findings import conformance_findings
from sdpa_onnx.report.conformance.matrix import MARK_WORDS, by_place, mark_of
from sdpa_onnx.report.conformance.run import ConformanceRun, evidence, findings_of, places
from sdpa_onnx.report.conformance.terminal import conformance_lines
from sdpa_onnx.report.text.print_lines import print_lines
from sdpa_onnx.workflows.expected.known_findings import KnownFinding, KnownFindings
from tests.conftest import GoldenCheck
from tests.report.synthetic_conformance import FEATURES, row, rows, run_of


def printed(run: ConformanceRun, width: int = 100, encoding: str = "utf-8") -> str:
    """The report as text."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    print_lines(conformance_lines(run, width), Console(file=stream, width=width))
    stream.flush()
    stream.seek(0)
    return stream.read()


def two_runtimes() -> ConformanceRun:
    """One with something of every kind, and one that is right everywhere."""
    right = [msgspec.structs.replace(one, runtime="openvino") for one in rows()]
    fields = {"verdict": Conformity.RIGHT, "outcome": Outcome.OK, "path": "native"}
    return run_of(*rows(), *(msgspec.structs.replace(one, **fields) for one in right))


def with_known(*fields: dict[str, str | int | float | bool]) -> ConformanceRun:
    """The run sorted by entries with these fields."""
    entries = [KnownFinding(fields=one, why=f"reason {n}", place=f"k.toml, entry {n}") for n, one in enumerate(fields)]
    return run_of(*rows(), known=KnownFindings(entries=tuple(entries)).sort(list(rows())))


@pytest.mark.parametrize(
    ("name", "run", "width"),
    [
        ("conformance_one.txt", run_of(*rows()), 100),
        ("conformance_narrow.txt", run_of(*rows()), 34),
        ("conformance_two.txt", two_runtimes(), 80),
        ("conformance_known.txt", with_known({"feature": "mask-*"}, {"dtype": "bfloat16"}, {"feature": "plain"}), 100),
    ],
)
def test_whole_text(name: str, run: ConformanceRun, width: int, golden: GoldenCheck) -> None:
    """One runtime, a narrow screen, two runtimes, and with known findings."""
    golden(name, printed(run, width))


@pytest.mark.parametrize("width", [20, 34, 60, 80, 200])
def test_every_row_has_its_mark(width: int) -> None:
    """However narrow the screen is, each feature shows one mark a row, in the order of the columns."""
    text = printed(run_of(*rows()), width)
    matrix = text.partition("Feature by feature\n")[2]
    for line in by_place(list(rows())).rows:
        marks = "".join(str(mark_of(record)) for cell in line.cells for record in cell)
        shown = re.findall(rf"^{re.escape(line.feature)} +([CWrs:. ]+)$", matrix, flags=re.MULTILINE)
        assert "".join("".join(shown).split()) == marks


def test_every_command_stands_whole() -> None:
    """A command is there to be copied: it is never broken at the width."""
    text = printed(run_of(*rows()), 30)
    for finding in findings_of(run_of(*rows()), Conformity.WRONG):
        assert f"  {finding.worst.repeat}\n" in text


def test_nothing_wraps_but_commands_and_the_matrix() -> None:
    """Sentences keep to the width."""
    lines = printed(run_of(*rows()), 60).partition("Feature by feature")[0].splitlines()
    assert [line for line in lines if len(line) > 60 and "sdpa-onnx" not in line] == []


@pytest.mark.parametrize(
    ("records", "sentences"),
    [
        ([], ["There are no rows: nothing was tested."]),
        ([row()], ["ort-cpu (onnxruntime 1.32.0): 1 right, 0 wrong, 0 refused, 0 crashed of 1 row."]),
        (
            [row(None, reason="stopped"), row(Conformity.CRASHED, opset=24)],
            ["ort-cpu (onnxruntime 1.32.0): 0 right, 0 wrong, 0 refused, 1 crashed, 1 skipped of 2 rows."],
        ),
        (
            [
                row(Conformity.WRONG, reading="window-ignored"),
                row(Conformity.WRONG, opset=24),
                row(Conformity.WRONG, opset=25, reading="window-ignored (ONNX's text of 2025)"),
                row(Conformity.REFUSED, opset=26, reading="not-wrong"),
            ],
            [
                "ort-cpu (onnxruntime 1.32.0): 0 right, 3 wrong, 1 refused, 0 crashed of 4 rows.",
                "Wrong results of ort-cpu match window-ignored in 2 rows and no known reading in 1 row.",
            ],
        ),
        (
            [row(Conformity.WRONG), row(Conformity.SUSPICIOUS, opset=24), row(Conformity.SUSPICIOUS, opset=25)],
            ["ort-cpu (onnxruntime 1.32.0): 0 right, 1 wrong, 2 suspicious, 0 refused, 0 crashed of 3 rows."],
        ),
        (
            [row(path="expanded", path_nodes=1), row(opset=25, path="expanded", path_nodes=59)],
            [
                (
                    "ort-cpu (onnxruntime 1.32.0): 2 right, 0 wrong, 0 refused, 0 crashed of 2 rows; Attention at "
                    "opset 23 is expanded into 1 node in 1 row; Attention at opset 25 is expanded into 59 nodes in "
                    "1 row."
                )
            ],
        ),
        (
            [row(runtime="other", path="expanded", path_nodes=nodes) for nodes in (59, 70)],
            [
                (
                    "other: 2 right, 0 wrong, 0 refused, 0 crashed of 2 rows; Attention at opset 23 is expanded into "
                    "59 to 70 nodes in 2 rows."
                )
            ],
        ),
    ],
    ids=["none", "one", "skipped", "readings", "suspicious", "expanded", "unknown-version"],
)
def test_first_lines(records: list[ConformanceRecord], sentences: list[str]) -> None:
    """Counts, and what is expanded, as text."""
    assert conformance_findings(run_of(*records)) == sentences


def test_suspicious_rows_have_their_own_section() -> None:
    """They follow the wrong ones, have their own mark, and are never called wrong."""
    text = "Suspicious 2 times: b1: 9 sigma."
    suspicious = row(Conformity.SUSPICIOUS, feature="softcap-before-mask", opset=24, diagnosis=text, wrong_cases=0)
    lines = printed(run_of(row(Conformity.WRONG, diagnosis="Off by one."), suspicious)).splitlines()
    assert lines.index("Wrong") < lines.index("Suspicious")
    assert f"  Attention 24 float32. {text}" in lines
    assert "W wrong; ? suspicious; blank: not tested." in lines
    cells = [line.split(maxsplit=1)[1] for line in lines if line.startswith(("plain ", "softcap-before-mask "))]
    assert cells == ["W", "?"]
    assert "wrong" not in printed(run_of(suspicious)).partition("Suspicious")[2]


@pytest.mark.parametrize("verdict", Conformity)
def test_each_verdict_has_a_mark(verdict: Conformity) -> None:
    """A row of any verdict is drawn, and the legend explains its mark."""
    assert MARK_WORDS[mark_of(row(verdict))] == verdict.value.replace("no-answer", "no answer in time")


def test_a_run_that_was_stopped_says_so_first() -> None:
    """A stopped run must not look like a complete one; a runtime that was not reached is named."""
    run = run_of(row(), is_finished=False, versions={"ort-cpu": "", "torch": "torch 2.13.0"})
    assert conformance_findings(run) == [
        "Incomplete: the run was stopped, and only the rows finished by then follow.",
        "ort-cpu: 1 right, 0 wrong, 0 refused, 0 crashed of 1 row.",
        "torch (torch 2.13.0): no row.",
    ]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, ""),
        ({"cases": 1, "wrong_cases": 1}, "1 of 1 case wrong."),
        (
            {"max_abs_error": 0.5, "max_bound_ratio": 1.5, "diagnosis": "off"},
            "largest error 0.500, 1.50 times the bound. off.",
        ),
        ({"max_abs_error": 0.5, "max_bound_ratio": 1.0, "diagnosis": "Off by one."}, "Off by one."),
        ({"diagnosis": "the same", "reason": "the same"}, "the same."),
        ({"reason": "two\n  lines", "warnings": ("A doubt.",)}, "two lines. A doubt."),
    ],
)
def test_evidence(fields: dict[str, object], text: str) -> None:
    """Figures, diagnosis and reason, each once; an error inside its bound is no evidence."""
    assert evidence(row(Conformity.WRONG, **({"cases": 4} | fields))) == text


def test_places_are_listed_shortly() -> None:
    """Element types of one operator and opset are next to each other."""
    records = [row(dtype="float32"), row(dtype="float16"), row(opset=24), row(operator="decomposed", opset=0)]
    assert places(records) == "Attention 23 float32, float16; Attention 24 float32; decomposed float32"


def test_different_observations_are_different_findings() -> None:
    """Rows that are wrong in different manners are separate findings, each with its worst row."""
    wrong = [
        row(Conformity.WRONG, observed="zero", max_bound_ratio=2.0),
        row(Conformity.WRONG, observed="nan", opset=24),
        row(Conformity.WRONG, observed="zero", opset=25, max_bound_ratio=3.0),
    ]
    found = findings_of(run_of(*wrong), Conformity.WRONG)
    assert [(one.worst.opset, len(one.rows)) for one in found] == [(25, 2), (24, 1)]


def test_what_a_runtime_says_cannot_steer_the_terminal() -> None:
    """Escape sequences, brackets and control characters are printed as text."""
    reason = "\x1b[31mred\x1b[0m [bold]x[/nope] \x07 :smile:"
    text = printed(run_of(row(Conformity.REFUSED, reason=reason)))
    assert "?[31mred?[0m [bold]x[/nope] ? :smile:" in text
    assert "\x1b" not in text


def test_ascii_pipe() -> None:
    """Nothing is lost where the encoding has ASCII only."""
    assert printed(run_of(*rows()), encoding="ascii") == printed(run_of(*rows()))


def test_features_of_the_synthetic_rows_are_all_used() -> None:
    """The golden texts show each of them."""
    assert {record.feature for record in rows()} == set(FEATURES)


def test_most_wrong_comes_first() -> None:
    """Findings go by the share of wrong cases, then by the error; runtimes stay together."""
    figures = {"plain": (1, 9e9), "heads-grouped": (4, 2.0), "causal-square": (4, 1e36), "window-left": (2, 3.0)}
    wrong = [
        row(Conformity.WRONG, runtime=runtime, feature=feature, cases=4, wrong_cases=number, max_bound_ratio=ratio)
        for runtime in ("ort-cpu", "openvino")
        for feature, (number, ratio) in figures.items()
    ]
    found = findings_of(run_of(*wrong), Conformity.WRONG)
    wanted = ["causal-square", "heads-grouped", "window-left", "plain"]
    assert [(one.worst.runtime, one.worst.feature) for one in found] == [
        (runtime, feature) for runtime in ("ort-cpu", "openvino") for feature in wanted
    ]


@pytest.mark.parametrize(("observed", "shown"), [("none of the known", ""), ("upper-left", "  Observed: upper-left.")])
def test_seen_is_what_is_known(observed: str, shown: str) -> None:
    """An outcome that is none of the known ones is not printed next to the reading that names it."""
    text = printed(run_of(row(Conformity.WRONG, observed=observed, reading="nan-swallowed")))
    assert [line for line in text.splitlines() if line.startswith("  Observed")] == ([shown] if shown else [])
    assert "  Reading: nan-swallowed" in text
