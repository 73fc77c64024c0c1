"""The first screen of a run: complete in golden texts, and never longer than a screen."""

from dataclasses import replace

import msgspec
import pytest

from sdpa_onnx.core.records.cause_text import looks_like
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Record, TimingRecord, Verdict
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.report.run.first_screen import first_screen
from sdpa_onnx.report.run.markdown import render_summary
from sdpa_onnx.report.run.terminal import print_report
from tests.conftest import GoldenCheck
from tests.report.synthetic import check, comparison, header, quick_records
from tests.report.synthetic_saturation import module_cells, sweep
from tests.report.synthetic_timing import launch_records
from tests.report.text.test_printing import printed

EVIDENCE = "8 of 8 elements exceed the proven bound, at worst 38.2 times at (0, 0)."
WRONG = {
    "outcome": Outcome.DISAGREES,
    "verdict": Verdict.WRONG,
    "max_bound_ratio": 38.2,
    "diagnosis": f"{EVIDENCE} {looks_like('the scale is off by 1.8 %')}",
}


def wrong_scale() -> list[Record]:
    """A quick run in which the fused form of bare attention has a wrong scale, at every size."""
    return [
        msgspec.structs.replace(one, **WRONG)
        if isinstance(one, AgreementRecord) and (one.target, one.form, one.runtime) == ("sdpa", "attention", "ort-cpu")
        else one
        for one in quick_records()
    ]


def skipped(reason: str = "budget") -> list[Record]:
    """A run without a result."""
    return [
        msgspec.structs.replace(one, outcome=Outcome.SKIPPED, reason=reason, verdict=None)
        for one in (*comparison(), check())
    ]


RUNS: dict[str, list[Record]] = {
    "good": [*quick_records(), *sweep(), *module_cells()],
    "wrong": wrong_scale(),
    "launches": launch_records(),
    "skipped": skipped(),
    "agreement": [check(), check(runtime="onnx-reference")],
    "one_arm": [one for one in comparison() if one.arm == "torch"],
    "nothing": [],
}


def disturbed() -> list[Record]:
    """A good run during which another timing ran."""
    other = ("Another timing of sdpa_onnx (process 7) ran at the same time.",)
    return [
        msgspec.structs.replace(one, warnings=other) if isinstance(one, TimingRecord) else one
        for one in launch_records()
        if one.outcome is Outcome.OK
    ]


RUNS["disturbed"] = disturbed()
INTERRUPTED = replace(header(), finished=None, done_cells=40)


def screen(records: list[Record], width: int, told: RunHeader | None = None) -> str:
    """What a terminal of this width shows."""
    return printed(
        records,
        width=width,
        what=lambda found, console: print_report(
            found, told or header(), console, report="reports/quick/summary.md", folder="reports/quick"
        ),
    )


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("run", RUNS)
def test_first_screen(run: str, width: int, golden: GoldenCheck) -> None:
    """The verdict first, what is wrong before anything else; one screen at 80 columns."""
    text = screen(RUNS[run], width)
    golden(f"screen_{run}_{width}.txt", text)
    assert width < 80 or text.count("\n") <= 25


def test_interrupted_run(golden: GoldenCheck) -> None:
    """It starts with what is missing, and the next step is to resume; no form is advised yet."""
    golden("screen_interrupted.txt", screen(quick_records(), 80, INTERRUPTED))


def test_one_cause_is_one_line() -> None:
    """A wrong scale at every size is one sentence, with the command that repeats the worst."""
    found = first_screen(wrong_scale(), header(), most_groups=8)
    assert found.verdict == ("WRONG: the scale is off by 1.8 % (sdpa, ort-cpu attention 23; 24 of 144 checks).",)
    assert found.steps[0].command == (
        "sdpa-onnx export sdpa --q-num-heads 8 --head-dim 16 --form attention --opset 23 -o F.onnx && "
        "sdpa-onnx verify F.onnx --runtime ort-cpu"
    )


def test_wrong_outputs_are_neither_fastest_nor_advised() -> None:
    """Their times do not count: they are marked, not praised."""
    found = first_screen(wrong_scale(), header(), most_groups=30)
    bare = [group for group in found.groups.groups if group.cases[0].first.target == "sdpa"]
    for group in bare:
        fused = group.range_of("ort-cpu attention 23")
        assert fused is not None
        assert fused.is_wrong
        assert not fused.is_fastest
    assert "15 of 30" not in found.trust
    assert "12 are of wrong outputs" in found.trust
    assert not [step for step in found.steps if "'attention'" in step.sentence]


@pytest.mark.parametrize("most", [2, 3, 5, 8, 30])
def test_groups_have_every_case_once(most: int) -> None:
    """However few rows there are, no case is lost and none is counted twice."""
    found = first_screen(quick_records(), header(), most_groups=most).groups
    assert len(found.groups) <= most
    cases = [one.first.group for group in found.groups for one in group.cases]
    assert sorted(cases) == sorted({one.group for one in quick_records() if isinstance(one, TimingRecord)})


def test_a_group_is_cut_where_the_answer_changes() -> None:
    """Torch is the fastest at length 32 and the fused form beyond: these are two rows, if there is room."""
    found = first_screen(quick_records(), header(), most_groups=9).groups
    fastest = {group.label: group.fastest for group in found.groups}
    assert fastest["length 32"] == "torch"
    assert fastest["length 128 to 1024"] == "ort-cpu attention 23"
    assert sum(one.is_worst for group in found.groups for one in group.ranges) == 1


def test_summary_begins_with_the_same() -> None:
    """The report has the verdict, the table and the next steps too, then each thing once."""
    text = render_summary(wrong_scale(), header(), [])
    assert "**WRONG: the scale is off by 1.8 % (sdpa, ort-cpu attention 23; 24 of 144 checks).**" in text
    assert "- Next: repeat the wrong output: `sdpa-onnx export sdpa" in text
    assert text.count("38.2 times its proven bound") == 1
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings[1:] == ["## Numbers", "## Times", "## Exports", "## Environment", "## How to repeat"]


def test_command_that_cannot_be_split() -> None:
    """A run.json with half a quote still has a report: the step without its command."""
    text = screen(RUNS["good"], 80, replace(INTERRUPTED, command="sdpa-onnx run 'quick"))
    assert "\nNext: run the 56 jobs that are left.\n" in text
