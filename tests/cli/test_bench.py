"""`bench` on the command line: output, files and exit codes. Most comparisons are faked."""

import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sdpa_onnx.cli.options import parse_settings
from sdpa_onnx.core.attention.roofline import Ceilings
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, TimingRecord
from sdpa_onnx.core.timing.paired import Calibration
from sdpa_onnx.core.timing.process_spread import ProcessSpread
from sdpa_onnx.errors import FolderError
from sdpa_onnx.measure.deadline import Deadline
from sdpa_onnx.measure.timing_plan import Cache, TimingPlan
from sdpa_onnx.report.page import bench_page
from sdpa_onnx.sweep.bench_run import BenchRun
from sdpa_onnx.sweep.store import read_run
from sdpa_onnx.workflows.bench import bench_files, calibrate
from sdpa_onnx.workflows.bench.arm_agreement import ArmAgreement
from sdpa_onnx.workflows.bench.calibrate import CalibrationResult
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.timing.comparison import TimedComparison
from sdpa_onnx.workflows.timing.job_folder import Arm
from tests.cli.invoke import Shell
from tests.report.synthetic_bench import benched, timing
from tests.runtimes.worker.environments import NUMPY, ONNXRUNTIME, environment

pytestmark = pytest.mark.alone

# The function of the same name hides the module in its package.
bench_command = importlib.import_module("sdpa_onnx.cli.bench")
_RATIOS = {64: 1.3, 128: 1.2, 256: 0.8}


class FakeBench:
    """Comparisons that time nothing: the baseline takes 1 ms, the other arms depend on the length.

    `stops` is the number of comparisons before the user interrupts; `wrong` has the arms with wrong numbers.
    """

    def __init__(self) -> None:
        self.plans: list[TimingPlan] = []
        self.stops = 100
        self.wrong: tuple[str, ...] = ()

    def __call__(
        self, arms: Sequence[Arm], check: CheckOptions, *, baseline: str, target: str, plan: TimingPlan, **_: object
    ) -> TimedComparison:
        if len(self.plans) == self.stops:
            raise KeyboardInterrupt
        self.plans.append(plan)
        length = check.sizes["kv_seq_len"]
        records = {
            arm.name: msgspec.structs.replace(
                timing(arm.name, 1.0 if arm.name == baseline else _RATIOS.get(length, 0.9), length=length),
                baseline=baseline,
                target=target,
                options=dict(arm.options),
                threads=arm.threads or 1,
            )
            for arm in arms
        }
        return TimedComparison(records=records, samples=benched(*records.values()).samples)

    def judge(self, arms: Sequence[Arm], check: CheckOptions, *, target: str, **_: object) -> ArmAgreement:
        found = [
            AgreementRecord(
                target=f"{target}, {arm.name}", outcome=Outcome.DISAGREES if arm.name in self.wrong else Outcome.OK
            )
            for arm in arms
        ]
        return ArmAgreement(records=tuple(found), warnings=dict.fromkeys(self.wrong, ("Numbers wrong: so.",)))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeBench:
    made = FakeBench()
    monkeypatch.setattr(bench_files, "bench", made)
    monkeypatch.setattr(bench_files, "judge_numbers", made.judge)
    ceilings = Ceilings(gemm_flops_per_second=1e9, exps_per_second=1e9)
    monkeypatch.setattr(bench_files, "measure_ceilings", lambda **_: ceilings)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made


def _records(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)
    return found


def test_table(shell: Shell, fake: FakeBench) -> None:
    """One line per arm on stdout, nothing on stderr, exit code 0."""
    ended = shell("bench", "bare.onnx", "decomposed.onnx", "--runtime", "ort-cpu", "--size", "kv_seq_len=256")
    assert (ended.code, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert "batch_size=1, q_seq_len=512, kv_seq_len=256:" in lines
    assert any(line.split()[:3] == ["decomposed.onnx", "800", "µs"] and "faster" in line for line in lines)


def test_lengths_with_their_crossover(shell: Shell, fake: FakeBench) -> None:
    """One comparison per length, a table of ratios, and where the order changes."""
    at = [word for length in _RATIOS for word in ("--at", f"q_seq_len={length}")]
    ended = shell("bench", "bare.onnx", *at)
    assert ended.code == 0
    assert "Ratio to torch over kv_seq_len" in ended.stdout
    assert "- ort-cpu overtakes torch at kv_seq_len of about 175: proven slower at 128" in ended.stdout


def test_json(shell: Shell, fake: FakeBench) -> None:
    """Times and judgements as records, nothing else on stdout."""
    ended = shell("bench", "bare.onnx", "--json", "--option", "session.disable_prepacking=1")
    assert (ended.code, ended.stderr) == (0, "")
    timings = [one for one in _records(ended.stdout) if one["kind"] == "timing"]
    assert [(one["arm"], one["baseline"], one["options"]) for one in timings] == [
        ("ort-cpu", "torch", {}),
        ("ort-cpu disable_prepacking=1", "torch", {"session.disable_prepacking": "1"}),
        ("torch", "torch", {}),
    ]
    assert sum(one["kind"] == "agreement" for one in _records(ended.stdout)) == 3


def test_wrong_numbers_fail_the_command(shell: Shell, fake: FakeBench) -> None:
    """A fast arm with wrong numbers is marked in its line, and the exit code is 1."""
    fake.wrong = ("ort-cpu",)
    ended = shell("bench", "bare.onnx")
    assert ended.code == 1
    assert "numbers wrong" in ended.stdout
    assert "[1] Numbers wrong: so." in ended.stdout


def test_nothing_was_timed(shell: Shell, fake: FakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """If every arm is skipped, the table has the reasons, and the exit code is 1 so that no CI job passes."""

    def skipped(arms: Sequence[Arm], check: CheckOptions, **more: Any) -> TimedComparison:
        records = {
            name: msgspec.structs.replace(one, outcome=Outcome.SKIPPED, reason="Undecidable: busy.")
            for name, one in fake(arms, check, **more).records.items()
        }
        return TimedComparison(records=records)

    monkeypatch.setattr(bench_files, "bench", skipped)
    ended = shell("bench", "bare.onnx", "decomposed.onnx", "--runtime", "ort-cpu")
    assert (ended.code, ended.stderr) == (1, "sdpa-onnx: nothing was timed; see the reason of each arm\n")
    assert "Undecidable: busy." in ended.stdout


def test_options_reach_the_plan(shell: Shell, fake: FakeBench) -> None:
    """The options of the command line arrive in the plan."""
    shell(
        "bench", "bare.onnx", "--seconds", "7", "--blocks", "20", "--margin", "5", "--cache", "cold", "--seed", "3"
    )  # fmt: skip
    (plan,) = fake.plans
    assert (plan.budget_seconds, plan.blocks, plan.least_blocks) == (7.0, 20, 20)
    assert (plan.margin, plan.cache, plan.seed) == (0.05, Cache.COLD, 3)
    assert plan.calibration == Calibration()


def test_run_folder_and_chart(shell: Shell, fake: FakeBench) -> None:
    """Records, samples, report and chart are written, and the report can be rendered again from the folder."""
    ended = shell("bench", "bare.onnx", "--at", "q_seq_len=64", "--out", "run", "--chart", "c.svg")
    assert ended.code == 0
    assert ended.stderr.splitlines() == ["sdpa-onnx: writing run", "sdpa-onnx: report: run/index.html"]
    header, records = read_run(Path("run"))
    assert header.command == "sdpa-onnx bench bare.onnx --at q_seq_len=64 --out run --chart c.svg"
    assert header.is_finished
    assert {type(record) for record in records} == {TimingRecord, AgreementRecord}
    assert Path("c.svg").read_text().startswith("<svg")
    assert shell("report", "run").code == 0


def test_interrupt_keeps_finished_comparisons(shell: Shell, fake: FakeBench) -> None:
    """After Ctrl-C in the second comparison the first is printed and written."""
    fake.stops = 1
    ended = shell("bench", "bare.onnx", "--at", "q_seq_len=64", "--at", "q_seq_len=128", "--out", "run")
    assert ended.code == 130
    assert ended.stderr.splitlines()[-1] == "sdpa-onnx: interrupted after 1 of 2 comparisons"
    assert "kv_seq_len=64:" in ended.stdout
    assert "kv_seq_len=128:" not in ended.stdout
    header, records = read_run(Path("run"))
    assert not header.is_finished
    assert len(records) == 4


def test_budget_skips_what_it_does_not_reach(shell: Shell, fake: FakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the time is over after the first comparison, the others are *skipped: budget*, and the exit code is 0."""
    clock = [0.0]
    limit = Deadline(budget_seconds=50.0, now=lambda: clock[0], start=0.0)
    monkeypatch.setattr(bench_command, "command_deadline", lambda budget: limit if budget == 60.0 else Deadline())

    def timed(*arms: Any, **more: Any) -> TimedComparison:
        clock[0] += 40.0
        return fake(*arms, **more)

    monkeypatch.setattr(bench_files, "bench", timed)
    at = [word for length in (64, 128, 256) for word in ("--at", f"q_seq_len={length}")]
    ended = shell("bench", "bare.onnx", "--runtime", "ort-cpu", *at, "--budget", "60", "--json")
    assert ended.code == 0
    found = [
        (one["sizes"]["q_seq_len"], one["outcome"], one["reason"])
        for one in _records(ended.stdout)
        if one["kind"] == "timing"
    ]
    assert found == [(64, "ok", ""), (128, "skipped", "budget"), (256, "skipped", "budget")]


def test_budget_interrupts_what_looks_at_no_clock(
    shell: Shell, fake: FakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interruption after the deadline is the time limit's, not the user's: exit code 0, and the rest is skipped."""
    monkeypatch.setattr(bench_command, "command_deadline", lambda _: Deadline(budget_seconds=0.0))
    fake.stops = 0
    ended = shell("bench", "bare.onnx", "--runtime", "ort-cpu", "--budget", "60")
    assert ended.code == 0
    assert ended.stdout.splitlines() == ["Nothing was timed: the time limit was reached first; use a larger --budget."]


class FullDisk:
    """A disk on which one kind of write fails."""

    def __call__(self, *_: object, **__: object) -> None:
        raise FolderError("Cannot write it: No space left on device.", hint="Go on with --resume.")


_FULL = (
    "sdpa-onnx: Cannot write it: No space left on device. Finished comparisons are on stdout. Choose another path and "
    "run again."
)


@pytest.mark.parametrize("at", ["add", "finish"])
def test_full_disk_keeps_finished_comparisons(
    shell: Shell, fake: FakeBench, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """The measured comparisons are printed before the error, whose hint mentions them."""
    monkeypatch.setattr(BenchRun, at, FullDisk())
    ended = shell("bench", "bare.onnx", "--at", "q_seq_len=64", "--at", "q_seq_len=128", "--out", "run")
    assert ended.code == 2
    assert ended.stderr.splitlines() == ["sdpa-onnx: writing run", _FULL]
    assert "kv_seq_len=64:" in ended.stdout
    assert ("kv_seq_len=128:" in ended.stdout) == (at == "finish")


def test_chart_on_a_full_disk(shell: Shell, fake: FakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is printed before the chart is written."""
    monkeypatch.setattr(bench_page, "write_chart", FullDisk())
    ended = shell("bench", "bare.onnx", "--size", "kv_seq_len=64", "--chart", "c.svg")
    assert (ended.code, ended.stderr) == (2, f"{_FULL}\n")
    assert "kv_seq_len=64:" in ended.stdout


def test_worker_folder_on_a_full_disk(shell: Shell, fake: FakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error in the second comparison the first is printed; after one in the first, nothing is."""

    def broken(arms: Sequence[Arm], check: CheckOptions, **more: Any) -> TimedComparison:
        if len(fake.plans) == fake.stops:
            raise FolderError("No room.")
        return fake(arms, check, **more)

    monkeypatch.setattr(bench_files, "bench", broken)
    fake.stops = 1
    ended = shell("bench", "bare.onnx", "--at", "q_seq_len=64", "--at", "q_seq_len=128")
    assert (ended.code, ended.stderr) == (2, "sdpa-onnx: No room.\n")
    assert "kv_seq_len=64:" in ended.stdout
    fake.stops = 1  # one comparison has already run
    assert shell.refusal("bench", "bare.onnx") == "No room."


_MISUSE: dict[str, tuple[list[str], str]] = {
    "no-file": ([], "There is no model to time. Give .onnx files; only --calibrate needs none."),
    "calibrate-file": (["bare.onnx", "--calibrate"], "--calibrate times its own models. Leave out the files."),
    "calibrate-out": (["--calibrate", "--out", "run"], "--out cannot be used with --calibrate. Leave out --out."),
    "calibrate-inputs": (
        ["--calibrate", "--inputs", "x.npz"],
        "--inputs cannot be used with --calibrate. Leave out --inputs.",
    ),
    "calibrate-baseline": (
        ["--calibrate", "--baseline", "x"],
        "--baseline cannot be used with --calibrate. Leave out --baseline.",
    ),
    "calibrate-margin": (
        ["--calibrate", "--margin", "5"],
        "--margin cannot be used with --calibrate. Leave out --margin.",
    ),
    "calibrate-blocks": (
        ["--calibrate", "--blocks", "20"],
        "--blocks cannot be used with --calibrate. Leave out --blocks.",
    ),
    "calibrate-cache": (
        ["--calibrate", "--cache", "cold"],
        "--cache cannot be used with --calibrate. Leave out --cache.",
    ),
    "seconds": (["bare.onnx", "--seconds", "inf"], "--seconds inf is not a finite number."),
    "at-twice": (
        ["bare.onnx", "--at", "q_seq_len=8", "--at", "q_seq_len=8"],
        "--at q_seq_len=8 is given twice. Give each set of sizes once.",
    ),
    "at-axis-twice": (
        ["bare.onnx", "--at", "q_seq_len=4,q_seq_len=5"],
        "--at q_seq_len=5 sets q_seq_len a second time. Give each axis one size.",
    ),
    "size-twice": (
        ["bare.onnx", "--size", "q_seq_len=4", "--size", "q_seq_len=5"],
        "--size q_seq_len=5 sets q_seq_len a second time. Give each axis one size.",
    ),
    "out-input": (
        ["bare.onnx", "--out", "bare.onnx"],
        "--out bare.onnx would overwrite an input. Choose another path.",
    ),
    "chart-input": (
        ["bare.onnx", "--inputs", "x.svg", "--chart", "x.svg"],
        "--chart x.svg would overwrite an input. Choose another path.",
    ),
    "form": (
        ["bare.onnx", "--form", "blokked"],
        "There is no form 'blokked'. Known: as-is, decomposed, attention, blocked, ort-mha, ort-gqa.",
    ),
    "option": (
        ["bare.onnx", "--option", "prepacking"],
        "--option prepacking is not of the form KEY=VALUE. E.g. session.disable_prepacking=1.",
    ),
    "option-empty": (
        ["bare.onnx", "--option", "a="],
        "--option a= is not of the form KEY=VALUE. E.g. session.disable_prepacking=1.",
    ),
    "option-twice": (
        ["bare.onnx", "--option", "a=1", "--option", "a=1"],
        "--option a=1 is given twice. Give each set of settings once.",
    ),
    "option-threads": (
        ["bare.onnx", "--option", "intra_op_num_threads=2"],
        "'intra_op_num_threads' is no option of an arm. Name the runtime and the threads instead.",
    ),
    "option-torch": (
        ["bare.onnx", "--runtime", "torch", "--option", "a=1"],
        "--option works with openvino, ort-cpu, ort-cuda and ort-plugin only. Time one of them too.",
    ),
    "at": (
        ["bare.onnx", "--at", "q_seq_len"],
        "--at q_seq_len is not of the form AXIS=N with N at least 1. E.g. q_seq_len=128.",
    ),
    "at-axis": (
        ["bare.onnx", "--at", "seq=3"],
        "The model has no axis 'seq'. It has batch_size, q_seq_len, kv_seq_len.",
    ),
    "inputs-at": (
        ["bare.onnx", "--inputs", "x.npz", "--at", "q_seq_len=4"],
        "--inputs already fixes the sizes. Leave out --at and --size.",
    ),
    "chart": (
        ["bare.onnx", "--chart", "c.png"],
        "--chart c.png has an unsupported file type. Use .svg or .html.",
    ),
    "chart-folder": (["bare.onnx", "--chart", "no/c.svg"], "Cannot write no/c.svg: there is no folder no."),
    "arms": (
        ["bare.onnx", *(word for n in range(12) for word in ("--option", f"a={n}"))],
        "These are 14 arms; one comparison takes at most 12. Compare fewer things at once.",
    ),
}


@pytest.mark.parametrize(("arguments", "sentence"), _MISUSE.values(), ids=_MISUSE)
def test_misuse(shell: Shell, arguments: list[str], sentence: str) -> None:
    """One message has the mistake and what would be right, before anything is timed."""
    assert shell.refusal("bench", *arguments) == sentence


def test_commas_of_settings() -> None:
    """A comma separates settings only before another KEY=; otherwise it is part of the value."""
    assert parse_settings(["a=1,b.c=2;3,4,d=x=y", "e=5"]) == ({"a": "1", "b.c": "2;3,4", "d": "x=y"}, {"e": "5"})


@pytest.mark.parametrize("option", [("--threads", "0"), ("--seconds", "0"), ("--blocks", "3"), ("--cache", "hot")])
def test_values_out_of_range(shell: Shell, option: tuple[str, str]) -> None:
    """An error of the option parser is one line too."""
    shell.refusal("bench", "bare.onnx", *option)


def test_folder_that_contains_a_run(shell: Shell, fake: FakeBench) -> None:
    """Nothing is timed, and the existing run is not overwritten."""
    assert shell("bench", "bare.onnx", "--out", "run").code == 0
    assert shell.refusal("bench", "bare.onnx", "--out", "run") == "run already contains a run. Choose another --out."
    assert len(fake.plans) == 1


@pytest.fixture
def calibrated(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that sets the result of `--calibrate`."""

    def find(**more: object) -> None:
        spread = ProcessSpread(between_sd=0.0031, degrees=33.0, sampling_sd=0.001)
        found = {"before": Calibration(between_sd=0.0057, degrees=4.0), "machine": "box, 2 cores", "spread": spread}
        facts = {"idle": 1.93, "cores": 2, "disturbed": 0.03, **more}
        monkeypatch.setattr(calibrate, "calibrate", lambda **_: CalibrationResult(**found, **facts))  # type: ignore[arg-type]

    return find


def test_calibration_is_printed(shell: Shell, calibrated: Callable[..., None]) -> None:
    """The load, the figure before and after, and the file that it is saved in."""
    calibrated(path=Path("kept.json"))
    ended = shell("bench", "--calibrate")
    assert ended.code == 0
    assert ended.stdout.splitlines() == [
        "The machine was quiet: 1.9 of 2 cores idle before the start; 3 % of the calls lost time to other processes.",
        "Before: two processes of one model differ by 0.57 %, with 4 degrees of freedom (default).",
        (
            "Measured: two processes of one model differ by 0.31 %, with 33 degrees of freedom; sampling error of a "
            "pair 0.1 %, subtracted."
        ),
        "Saved for box, 2 cores in kept.json; comparisons use it from now on.",
    ]


def test_refused_calibration(shell: Shell, calibrated: Callable[..., None]) -> None:
    """The figure of a busy machine is printed and not saved, and the exit code is 1; as JSON too."""
    calibrated(refusal="Not kept: busy.", idle=0.4)
    ended = shell("bench", "--calibrate")
    assert ended.code == 1
    assert ended.stdout.startswith("The machine was not quiet: 0.4 of 2 cores idle")
    assert ended.stdout.splitlines()[-1] == "Not kept: busy."
    found = json.loads(shell("bench", "--calibrate", "--json").stdout)
    assert (found["kept"], found["refusal"], found["measured"]["between_sd"]) == (False, "Not kept: busy.", 0.0031)


@pytest.mark.slow
def test_two_environments_for_real(shell: Shell, tmp_path: Path) -> None:
    """A second environment that has numpy and onnxruntime alone is an arm: loaded, judged and timed there."""
    python = environment(tmp_path / "old", [*NUMPY, *ONNXRUNTIME])
    ended = shell(
        "bench", "bare.onnx", "--runtime", "ort-cpu", "--python", python, "--at", "q_seq_len=64", "--blocks", "12",
        "--seconds", "5", "--json",
    )  # fmt: skip
    assert ended.code == 0
    records = _records(ended.stdout)
    ours, old = (one for one in records if one["kind"] == "timing")
    assert (ours["python"], ours["outcome"], old["outcome"]) == ("", "ok", "ok")
    assert old["arm"].endswith("(old)")
    assert old["arm"] == f"ort-cpu {old['python']}"
    assert old["runtime_version"] == ours["runtime_version"]
    assert [one["verdict"] for one in records if one["kind"] == "agreement"] == ["ok", "ok"]


@pytest.mark.slow
def test_wrong_file_for_real(shell: Shell) -> None:
    """A file whose metadata differs from what it computes is timed, reported as wrong, and fails the command."""
    import onnx

    model = onnx.load("bare.onnx")
    for entry in model.metadata_props:
        entry.value = entry.value.replace('"is_causal":false', '"is_causal":true')
    onnx.save(model, "wrong.onnx")
    ended = shell(
        "bench", "wrong.onnx", "--runtime", "ort-cpu", "--size", "q_seq_len=16", "--size", "kv_seq_len=16",
        "--blocks", "12", "--seconds", "3",
    )  # fmt: skip
    assert ended.code == 1
    assert "Numbers wrong: " in ended.stdout
