"""The plugin inside pytest: what passes, fails and skips, its summary and its files."""

import json
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import scipy.special  # noqa: F401 - pytester forgets what was imported in its runs, and scipy cannot be loaded twice

from sdpa_onnx.core.records.records import TimingRecord
from sdpa_onnx.core.timing.paired import Calibration
from sdpa_onnx.errors import RuntimeUnavailableError
from sdpa_onnx.pytest_plugin import agreement, callables, collected, join_benchmark, json_file, models  # noqa: F401
from sdpa_onnx.pytest_plugin.result import TimedArm, TimedPair
from sdpa_onnx.workflows.compare.benchmark_file import read_benchmarks
from tests.measure.test_visits import FakeClock

pytestmark = pytest.mark.alone

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a test file in this process, on a clock that only the callables of `work` advance."""
    clock = FakeClock()
    monkeypatch.setattr(callables, "SystemClock", lambda: clock)
    monkeypatch.setattr(callables, "load_calibration", Calibration)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)

    def go(body: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=body)
        return pytester.runpytest_inprocess(
            "-p", "no:cacheprovider", "-p", "no:cov", "-p", "no:hypothesispytest", *options
        )

    return go


def test_the_plugin_is_registered() -> None:
    """pytest finds it by its entry point, and `-p no:sdpa_onnx` switches it off by this name."""
    (point,) = entry_points(group="pytest11", name="sdpa_onnx")
    assert point.value == "sdpa_onnx.pytest_plugin"


_CALLS = """
from sdpa_onnx.pytest_plugin import callables

def work(milliseconds):
    return callables.SystemClock().arm("", 1_000_000 * milliseconds)
"""

_PAIRS = f"""{_CALLS}
def test_slow(sdpa):
    sdpa.compare(work(1), work(3), name="thrice").assert_not_slower()

def test_equal(sdpa):
    sdpa.compare(work(1), work(1)).assert_not_slower()
    sdpa.compare(work(1), work(1)).assert_not_slower()
"""


def test_slower_fails_equal_passes_and_all_are_told(run: Run, pytester: pytest.Pytester) -> None:
    """Three times the time fails; every comparison has its line and, both arms, its entries in the file."""
    result = run(_PAIRS, "--sdpa-json=a.json", "-p", "no:benchmark")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.re_match_lines(
        [
            r"E +AssertionError: Slower by more than 0.05 of the baseline's time: thrice: candidate / .* SLOWER .*",
            "=+ sdpa-onnx: paired comparisons =+",
            r"test_it.py::test_slow: thrice: candidate / baseline 3\.000 \[.*\] SLOWER \(medians .*, \d+ blocks\)",
            r"test_it.py::test_equal: candidate / baseline .*",
            r"test_it.py::test_equal: 2: candidate / baseline .*",
            r"3 comparison\(s\) written to .*a\.json",
        ]
    )
    found = read_benchmarks(pytester.path / "a.json")
    assert found.places == tuple(
        f"test_it.py::{test} {arm}"
        for test in ("test_slow thrice", "test_equal", "test_equal 2")
        for arm in ("baseline", "candidate")
    )
    assert [record.verdict for record in found.records[:2]] == [None, "slower"]
    assert {record.target for record in found.records} == {"test_it.py::test_slow", "test_it.py::test_equal"}
    assert found.records[0].group == found.records[1].group == "test_it.py::test_slow thrice"


def test_both_arms_join_pytest_benchmark(run: Run, pytester: pytest.Pytester) -> None:
    """They are in its table and its JSON, which our reader reads; its own entries stay."""
    body = f"""{_CALLS}
def test_it(sdpa, benchmark):
    sdpa.compare(work(1), work(3))
    benchmark(lambda: None)
"""
    result = run(body, "--benchmark-json=b.json", "--benchmark-max-time=0.001", "--benchmark-min-rounds=1")
    result.assert_outcomes(passed=1)
    result.stdout.re_match_lines([r"-+ benchmark 'test_it': 2 tests -+"])
    found = read_benchmarks(pytester.path / "b.json")
    assert found.places == ("test_it.py::test_it baseline", "test_it.py::test_it candidate")
    assert [other.fullname for other in found.others] == ["test_it.py::test_it"]
    assert found.environment == json_file.our_run()["environment"]
    told = json.loads((pytester.path / "b.json").read_text())["benchmarks"]
    ours = next(entry for entry in told if entry["name"] == "test_it candidate")
    assert ours["extra_info"]["verdict"] == "slower"
    assert ours["stats"]["rounds"] == len(ours["stats"]["data"]) == found.records[1].blocks


@pytest.mark.parametrize(
    ("options", "variables", "reason"),
    [
        (["--benchmark-disable"], {}, "--benchmark-disable is given"),
        (["--benchmark-skip"], {}, "--benchmark-skip is given"),
        (
            ["-p", "no:benchmark"],
            {"PYTEST_XDIST_WORKER": "gw1"},
            "pytest-xdist runs several tests at once, and they would disturb each other",
        ),
    ],
    ids=["disabled", "skipped", "xdist"],
)
def test_where_nothing_is_timed(
    run: Run, monkeypatch: pytest.MonkeyPatch, options: list[str], variables: dict[str, str], reason: str
) -> None:
    """The callables run once, so that a broken one is seen; then the test is skipped with the reason."""
    body = """
def test_runs(sdpa):
    def say(word):
        return lambda: print(word, "ran")
    sdpa.compare(say("base"), say("head"))

def test_broken(sdpa):
    sdpa.compare(lambda: 1 / 0, lambda: None)
"""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = run(body, "-rs", "-s", *options)
    result.assert_outcomes(skipped=1, failed=1)
    result.stdout.fnmatch_lines(["*base ran", "head ran", f"*Nothing is timed: {reason}."])
    assert str(result.stdout).count("head ran") == 1
    assert "ZeroDivisionError" in str(result.stdout)
    assert "paired comparisons" not in str(result.stdout)


def test_what_a_test_does_wrong_is_its_own_error(run: Run) -> None:
    """One sentence each; an exception of a callable is shown unchanged; no comparison is reported."""
    body = """
import pytest

async def wait(): ...

@pytest.mark.parametrize("given", ["text", wait], ids=["text", "wait"])
def test_not_callable(sdpa, given):
    sdpa.compare(lambda: None, given)

@pytest.mark.parametrize("given", [{"seconds": 0}, {"seconds": float("nan")}, {"margin": -0.1}], ids=["0", "nan", "m"])
def test_numbers(sdpa, given):
    sdpa.compare(lambda: None, lambda: None, **given)

def test_raises(sdpa):
    sdpa.compare(lambda: None, lambda: {}["key"])
"""
    result = run(body, "--tb=line")
    result.assert_outcomes(failed=6)
    hint = "Pass a function that runs it to its end."
    result.stdout.fnmatch_lines(
        [
            "*PlanError: The candidate is a str, not a callable. Pass a function without arguments.",
            f"*PlanError: The candidate is a coroutine or generator function: calling it runs nothing. {hint}",
            "*PlanError: seconds is 0, but must be above 0.",
            "*PlanError: seconds is nan, but must be above 0.",
            "*PlanError: margin is -0.1, but must be a share of at least 0. 0.05 allows 5 %.",
            "*KeyError: 'key'",
        ]
    )
    assert "paired comparisons" not in str(result.stdout)


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("none/a.json", "Cannot write {root}/none/a.json: its folder does not exist."),
        (".", "{root} is a directory. Give the name of a file."),
    ],
    ids=["no-folder", "a-folder"],
)
def test_a_file_that_cannot_be_written_is_told_before_any_test(
    run: Run, pytester: pytest.Pytester, target: str, sentence: str
) -> None:
    """An error of use, in one sentence, and no test has run."""
    result = run("def test_it(): ...", f"--sdpa-json={target}")
    assert result.ret is pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --sdpa-json: " + sentence.format(root=pytester.path)])
    assert "passed" not in str(result.stdout)


def test_a_full_disk_fails_the_run(run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The former content of the file stays, the summary has the reason, and the run does not pass."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    (pytester.path / "a.json").write_text("old", encoding="utf-8")
    monkeypatch.setattr("tempfile.NamedTemporaryFile", full)
    result = run("def test_it(): ...", "--sdpa-json=a.json")
    result.assert_outcomes(passed=1)
    assert result.ret is pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"Cannot write {pytester.path}/a.json: No space left on device."])
    assert (pytester.path / "a.json").read_text(encoding="utf-8") == "old"
    assert [path.name for path in pytester.path.iterdir() if path.name.startswith(".sdpa")] == []


def test_agreement_inside_pytest(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """No finding passes, a finding is the error's text, a missing runtime skips, an unknown one is an error."""

    def found(model: str, runtime: str, **_: object) -> str | None:
        from sdpa_onnx.errors import RuntimeNotFoundError, RuntimeUnavailableError

        match runtime:
            case "absent":
                raise RuntimeUnavailableError("Runtime 'absent' is not available: it is missing.")
            case "unknown":
                raise RuntimeNotFoundError("There is no runtime 'unknown'.")
            case _:
                return model or None

    monkeypatch.setattr(agreement, "find_disagreement", found)
    body = """
def test_right(sdpa):
    sdpa.assert_agrees("")
def test_wrong(sdpa):
    sdpa.assert_agrees("m disagrees:\\n- badly")
def test_absent(sdpa):
    sdpa.assert_agrees("", "absent")
def test_unknown(sdpa):
    sdpa.assert_agrees("", runtime="unknown")
"""
    result = run(body, "-rs")
    result.assert_outcomes(passed=1, failed=2, skipped=1)
    result.stdout.fnmatch_lines(
        [
            '>       sdpa.assert_agrees("m disagrees:\\n- badly")',
            "E       AssertionError: m disagrees:",
            "E       - badly",
            "E       *RuntimeNotFoundError: There is no runtime 'unknown'.",
            "SKIPPED *Runtime 'absent' is not available: it is missing.",
        ]
    )


def test_models_inside_pytest(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair is reported by the names of its arms; a busy machine and a missing runtime skip with the reason."""
    figures = {
        **dict.fromkeys(("ratio", "ratio_low", "ratio_high", "median_seconds"), 1.0),
        **dict.fromkeys(("blocks", "launches"), 1),
        "disturbed": 0.0,
        "confidence": 0.99,
    }
    records = [TimingRecord(arm=name, baseline="base", **figures) for name in "bh"]
    arms = [TimedArm(record=record, rounds=[1.0], iterations=1) for record in records]

    def timed(base: str, head: str, **_: object) -> TimedPair | str:
        if head == "absent":
            raise RuntimeUnavailableError("Runtime 'absent' is not available: it is missing.")
        return TimedPair(baseline=arms[0], candidate=arms[1]) if head == "head" else "Undecidable on this machine now."

    monkeypatch.setattr(models, "time_models", timed)
    body = """
import pytest
@pytest.mark.parametrize("head", ["head", "busy", "absent"])
def test_models(sdpa, head):
    sdpa.compare_models("base", head, name="m").assert_not_slower()
"""
    result = run(body, "-rs")
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines_random(
        [
            "test_it.py::test_models[[]head[]]: m: h / b 1.000 *",
            "SKIPPED *Undecidable on this machine now.",
            "SKIPPED *Runtime 'absent' is not available: it is missing.",
        ]
    )


@pytest.mark.slow
def test_models_for_real(pytester: pytest.Pytester) -> None:
    """A model against itself, in several processes of each; the verdict on the time is not asserted."""
    pytester.makepyfile(
        """
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.graph.attention_node import build_attention_model

MODEL = build_attention_model(AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8), opset=23, dtype=Dtype.FLOAT32)

def test_it(sdpa):
    result = sdpa.compare_models(MODEL, MODEL, sizes={"q_seq_len": 16, "kv_seq_len": 16}, seconds=10, margin=9.0)
    result.assert_not_slower()
    assert result.launches >= 1
    assert result.ratio_low < result.ratio < result.ratio_high
"""
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--sdpa-json=a.json")
    result.assert_outcomes(passed=1)
    result.stdout.re_match_lines([r"test_models_for_real.py::test_it: head / base .* launches\)"])
    assert [record.arm for record in read_benchmarks(pytester.path / "a.json").records] == ["base", "head"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["-p", "no:benchmark"]], ids=["beside", "alone"])
def test_unused_it_loads_nothing(pytester: pytest.Pytester, options: list[str]) -> None:
    """A run that never uses the fixture imports neither torch nor onnxruntime nor numpy."""
    pytester.makepyfile(
        """
import sys
HEAVY = {"torch", "onnxruntime", "onnx", "onnx_ir", "numpy", "scipy"}
def test_light(request):
    assert request.config.pluginmanager.get_plugin("sdpa_onnx").__name__ == "sdpa_onnx.pytest_plugin"
    assert HEAVY & set(sys.modules) == set()
def test_asking_alone_is_light(sdpa):
    assert HEAVY & set(sys.modules) == set()
"""
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider", *options).assert_outcomes(passed=2)


@pytest.mark.slow
def test_pytest_benchmark_compares_our_files(run: Run, pytester: pytest.Pytester) -> None:
    """Its own command reads two files of `--sdpa-json`, and its comparison with a stored run knows our entries."""
    for name in ("a.json", "b.json"):
        run(_PAIRS, "-p", "no:benchmark", f"--sdpa-json={name}").assert_outcomes(passed=1, failed=1)
    table = pytester.run("pytest-benchmark", "compare", "a.json", "b.json", "--columns=median,ops,rounds")
    assert table.ret == 0
    table.stdout.re_match_lines(
        [
            "-+ benchmark 'test_equal': 4 tests -+",
            r"test_equal (baseline|candidate) \([ab]\) .*",
            "-+ benchmark 'test_slow thrice': 4 tests -+",
            r"test_slow thrice baseline \([ab]\) .*",
            r"test_slow thrice candidate \([ab]\) .*",
        ]
    )
    run(_PAIRS, "--benchmark-autosave").assert_outcomes(passed=1, failed=1)
    again = run(_PAIRS, "--benchmark-compare")
    again.assert_outcomes(passed=1, failed=1)
    again.stdout.re_match_lines([r"test_slow thrice candidate \(0001_.*", r"test_slow thrice candidate \(NOW\) .*"])
    assert "machine_info is different" not in str(again.stdout) + str(again.stderr)


@pytest.mark.slow
def test_a_wrong_model_fails_for_real(pytester: pytest.Pytester) -> None:
    """A file, a runtime with a planted fault, and the evidence as pytest shows it; a right one passes."""
    root = Path(__file__).parents[2]
    pytester.makepyfile(
        f"""
import sys
sys.path.insert(0, {str(root)!r})
import pytest
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.workflows.verify import verify_file
from tests.workflows.planted_runtime import Planted, fault

MODEL = build_attention_model(AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8), opset=23, dtype=Dtype.FLOAT32)

def test_right(sdpa):
    sdpa.assert_agrees(MODEL)

def test_wrong(sdpa, monkeypatch):
    monkeypatch.setattr(verify_file, "get_runtime", lambda _: Planted(fault("scale-missing")))
    sdpa.assert_agrees(MODEL, "ort-cpu", sizes={{"q_seq_len": 7}})
"""
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E       AssertionError: the model: The scale is left out: wrong on ort-cpu.",
            "E       - 10 of 12 judgements disagree, the worst: attention, spread * It looks as if the scale is left *",
            "E       Repeat with: sdpa-onnx verify FILE --runtime ort-cpu --size q_seq_len=7 --seed 0, once *",
        ]
    )
