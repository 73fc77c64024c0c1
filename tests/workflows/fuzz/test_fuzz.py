"""Fuzzing: right runtimes pass, planted faults are found and grouped, a dying runtime is survived, runs go on."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.random_cases import CASES_PER_GRAPH, RandomCase, draw_case, draw_graph
from sdpa_onnx.core.attention.spec import Dtype, Layout
from sdpa_onnx.core.faults.diagnosis import Explanation
from sdpa_onnx.core.faults.readings import READINGS
from sdpa_onnx.core.records.records import Conformity, Outcome
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import LoadOptions, RanReport, Runtime, Session
from sdpa_onnx.workflows.check.case_trial import Sessions
from sdpa_onnx.workflows.fuzz.case import CaseOutcome, FuzzFinding, run_random
from sdpa_onnx.workflows.fuzz.groups import FuzzGroups, title_of
from sdpa_onnx.workflows.fuzz.model import fuzz_model
from sdpa_onnx.workflows.fuzz.records import evidence_of, group_record, repeat_command
from sdpa_onnx.workflows.fuzz.run import CaseResult, FuzzRun, reduce_group
from sdpa_onnx.workflows.isolate.isolated_runtime import GuardedRuntime, guarded_runtime
from sdpa_onnx.workflows.reduce.search import ReducedCase
from sdpa_onnx.workflows.reduce.trials import KeptFailure
from tests.sweep.fakes import Refusing
from tests.workflows.dying_child import HANGING_QUERIES, KILLING_QUERIES, START, start_dying
from tests.workflows.oracle_runtime import Arrays, OracleRuntime, OracleSession
from tests.workflows.planted_runtime import Planted, fault

Array = NDArray[np.generic]

_PROVEN = (CaseResult.RIGHT, CaseResult.ROUNDING_LEVEL)


def _run(runtime: Runtime, cases: int, start: int = 0, seed: int = 5) -> FuzzRun:
    run = FuzzRun(runtime=runtime, seed=seed, start=start, cases=cases)
    run.go()
    return run


@dataclass
class Changed(OracleSession):
    """Another output than the right one."""

    change: Callable[[Arrays], Arrays]

    def run(self, inputs: Arrays) -> Arrays:
        return self.change(super().run(inputs))


@dataclass
class ChangedRuntime(OracleRuntime):
    """The oracle with changed outputs."""

    change: Callable[[Arrays], Arrays] = lambda outputs: outputs

    def load(self, model: OnnxModel, options: LoadOptions) -> Session:
        return Changed(model, self.blocks, self.change)


@pytest.mark.parametrize("cases", [96, pytest.param(2000, marks=pytest.mark.slow)])
def test_right_runtime_has_no_findings(cases: int) -> None:
    """The oracle, rounded to the element type, is right on every feature and every output."""
    run = _run(OracleRuntime(), cases)
    assert run.groups.ordered() == ()
    assert (run.done, set(run.counts) <= set(_PROVEN)) == (cases, True)


def test_empty_cases_of_every_layout_are_right() -> None:
    """A size of 0 in either layout is judged like any other."""
    empty = [number for number in range(2000) if draw_case(5, number).is_empty]
    assert {draw_graph(5, number).spec.layout for number in empty} == set(Layout)
    for number in empty:
        run = _run(OracleRuntime(), 1, start=number)
        assert (run.own_faults, run.groups.ordered()) == ([], ()), number


def test_float64_has_the_scale_that_the_model_states() -> None:
    """An attribute is a float32; a right float64 runtime must not be called wrong for it."""
    numbers = range(0, 2400, CASES_PER_GRAPH)
    graphs = {number: draw_graph(5, number) for number in numbers}
    narrow = [
        number for number, graph in graphs.items() if graph.dtype is Dtype.FLOAT64 and graph.spec.scale_value % 1.0 != 0
    ]
    scaled = [number for number in narrow if isinstance(graphs[number].spec.scale, float)]
    assert scaled
    for number in scaled:
        assert _run(OracleRuntime(), 2, start=number).groups.ordered() == (), number


_SLOW = (
    "window-left-one-less",
    "heads-tiled",
    "masked-row-mean",
    "causal-strict",
    "half-keys-missing",
    "past-after-new",
)


@pytest.mark.parametrize(
    "name",
    ["causal-bottom-right", "softcap-after-mask", *(pytest.param(one, marks=pytest.mark.slow) for one in _SLOW)],
)
def test_reading_is_found_and_named(name: str) -> None:
    """A runtime that reads the operator otherwise is wrong, and most of what it gets wrong is a group of that name."""
    reading = next(one for one in READINGS if one.name == name)
    numbers = [number for number in range(0, 800, 3) if reading.applies(draw_graph(5, number).spec)][:9]
    groups = FuzzGroups()
    with Sessions(OracleRuntime(blocks=reading.blocks)) as sessions:
        for number in numbers:
            for finding in run_random(draw_case(5, number), sessions).findings:
                groups.add(finding)
    first = max(groups.ordered(), key=lambda group: group.count)
    assert first.first.explanation is not None
    assert first.first.explanation.reading == name
    assert first.kind is Conformity.WRONG


@pytest.mark.parametrize(
    ("name", "output"),
    [("scale-missing", "Y"), ("one-element-nan", "Y"), ("present-key-last-missing", "present_key")],
)
def test_planted_fault_is_found_within_few_cases(name: str, output: str) -> None:
    """Outputs of a real runtime with one fault: the wrong output is named."""
    with_past = next(number for number in range(0, 800, 8) if draw_graph(5, number).spec.has_past)
    run = _run(Planted(fault(name)), 8, start=with_past)
    found = [group for group in run.groups.ordered() if group.kind is Conformity.WRONG]
    assert output in {group.first.output for group in found}


def test_each_wrong_output_is_a_finding() -> None:
    """Y and the scores of one case may both be wrong: two findings, one wrong case."""
    number = next(n for n in range(0, 4000, 8) if draw_graph(5, n).qk_mode is QkOutputMode.SCORES)
    doubled = ChangedRuntime(change=lambda outputs: {name: array + 1 for name, array in outputs.items()})
    with Sessions(doubled) as sessions:
        outcome = run_random(draw_case(5, number), sessions)
    assert {finding.output for finding in outcome.findings} >= {"Y", "qk_matmul_output"}
    run = _run(doubled, 1, start=number)
    assert run.counts == {CaseResult.WRONG: 1}


@pytest.mark.parametrize(
    ("numbers", "kinds"),
    [
        ((40,), [(Conformity.SUSPICIOUS, 1)]),
        ((40, 104), [(Conformity.SUSPICIOUS, 2)]),
        ((40, 16), [(Conformity.WRONG, 1), (Conformity.SUSPICIOUS, 1)]),
    ],
    ids=["one", "two", "with-a-wrong-one"],
)
def test_suspicious_outputs_are_no_wrong_ones(numbers: tuple[int, ...], kinds: list[tuple[Conformity, int]]) -> None:
    """An error inside the bound has a group and a count of its own, behind the proved ones; it still disagrees."""

    def off(outputs: Arrays) -> Arrays:
        return {**outputs, "Y": (outputs["Y"] * (1.0 + 1e-6)).astype(outputs["Y"].dtype)}

    runs = [_run(ChangedRuntime(change=off), 1, start=number) for number in numbers]
    groups = FuzzGroups()
    for run in runs:
        for group in run.groups.ordered():
            groups.add(group.first)
    found = groups.ordered()
    assert [(group.kind, group.count) for group in found] == kinds
    assert sum(run.counts[CaseResult.SUSPICIOUS] for run in runs) == dict(kinds)[Conformity.SUSPICIOUS]
    assert found[-1].title.startswith("Y suspicious (native)")
    record = group_record(found[-1], runtime="ort-cpu", seed=5)
    assert (record.outcome, record.verdict) == (Outcome.DISAGREES, "suspicious")


def test_a_suspicious_group_never_represents_a_wrong_one() -> None:
    """Groups with one smallest case are one; the wrong finding stays first and smallest, though it is larger."""
    groups = FuzzGroups()
    groups.add(_finding(1, kind=Conformity.SUSPICIOUS, output="Y", elements=2))
    groups.add(_finding(2, kind=Conformity.WRONG, output="Y"))
    model = fuzz_model(draw_graph(5, 0))
    for group in groups.ordered():
        group.reduced = _reduced_to(model, "x")
    groups.merge()
    (group,) = groups.ordered()
    assert (group.kind, group.count, group.first.number, group.smallest.number) == (Conformity.WRONG, 2, 2, 2)


@pytest.mark.parametrize(
    ("change", "reading"),
    [
        (lambda scores: np.maximum(scores, np.finfo(scores.dtype).min), "hidden-score-lowest"),
        (lambda scores: np.full_like(scores, np.nan), "all-not-finite"),
        (lambda scores: np.where(np.isneginf(scores), 0, scores).astype(scores.dtype), None),
    ],
    ids=["lowest", "nan", "zero"],
)
def test_wrong_scores_are_named(change: Callable[[Array], Array], reading: str | None) -> None:
    """How a hidden key is written, where that is all; nothing is said of what is not understood."""
    number = next(n for n in range(0, 8000, 8) if _hides_in_scores(n))
    name = "qk_matmul_output"
    runtime = ChangedRuntime(change=lambda outputs: {**outputs, name: change(outputs[name])})
    with Sessions(runtime) as sessions:
        (finding,) = run_random(draw_case(5, number), sessions).findings
    explained = finding.explanation
    assert (finding.output, None if explained is None else explained.reading) == (name, reading)


def _hides_in_scores(number: int) -> bool:
    graph, case = draw_graph(5, number), draw_case(5, number)
    return graph.qk_mode is QkOutputMode.AFTER_MASK and graph.spec.is_causal and not case.is_empty and case.elements > 2


def test_softmax_precision_allows_what_it_asks_for() -> None:
    """A softmax in bfloat16 is right where the model asks for it, and wrong where it does not."""
    number = next(n for n in range(0, 40_000, 8) if _asks_bfloat16(n) and not 0 < draw_case(5, n).elements < 900)
    case = draw_case(5, number)

    def rough(outputs: Arrays) -> Arrays:
        return {name: array * np.float32(1.001) if name == "Y" else array for name, array in outputs.items()}

    plain = replace(case, graph=replace(case.graph, softmax_precision=None))
    with Sessions(ChangedRuntime(change=rough)) as sessions:
        kinds = [[finding.kind for finding in run_random(one, sessions).findings] for one in (case, plain)]
    assert kinds == [[], [Conformity.WRONG]]


def _asks_bfloat16(number: int) -> bool:
    graph = draw_graph(5, number)
    return graph.softmax_precision is Dtype.BFLOAT16 and graph.dtype is Dtype.FLOAT32 and graph.qk_mode is None


def test_models_are_valid() -> None:
    """ONNX's own checker takes every kind of model that is built, with the outputs that were asked for."""
    for number in range(0, 60 * CASES_PER_GRAPH, CASES_PER_GRAPH):
        graph = draw_graph(5, number)
        model = fuzz_model(graph)
        onnx.checker.check_model(ir.to_proto(model.ir))
        assert model.is_bare_attention
        assert ("qk_matmul_output" in model.output_names) == (graph.qk_mode is not None)
        assert ("present_key" in model.output_names) == graph.spec.has_past


def test_refusal_is_no_error() -> None:
    """A runtime that takes nothing: every case is refused, in one group, and no record fails a run."""
    run = _run(Refusing(), 9)
    (group,) = run.groups.ordered()
    assert (run.counts, group.count) == ({CaseResult.REFUSED: 9}, 9)
    assert group.title == "refused: ort-cpu does not take the model: fake has no such kernel."
    assert group_record(group, runtime="ort-cpu", seed=5).outcome is Outcome.UNSUPPORTED


def _numbers_with(queries: int, count: int) -> list[int]:
    found = (number for number in range(10_000) if draw_case(5, number).case.q_seq_len == queries)
    return [next(found) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("start", [_numbers_with(KILLING_QUERIES, 1)[0], _numbers_with(HANGING_QUERIES, 1)[0]])
def test_dying_runtime_is_survived(monkeypatch: pytest.MonkeyPatch, start: int) -> None:
    """A crash and a hang are findings of that case; the next number runs in a new process."""
    monkeypatch.setattr(START, start_dying)
    hangs = draw_case(5, start).case.q_seq_len == HANGING_QUERIES
    with guarded_runtime("ort-cpu") as runtime:
        _load_in_child(runtime, start)
        runtime.patience_seconds = 0.5 if hangs else 60.0
        run = FuzzRun(runtime=runtime, seed=5, start=start, cases=1)
        run.go()
        (group,) = run.groups.ordered()
        counted = CaseResult.NO_ANSWER if hangs else CaseResult.CRASHED
        assert (run.counts, group.kind) == ({counted: 1}, Conformity.CRASHED)
        says = "gave no answer in 0.5 s" if hangs else "was killed (SIGKILL) from outside, perhaps for memory"
        assert group.first.message == f"ort-cpu {says}."
        outcome = group_record(group, runtime="ort-cpu", seed=5).outcome
        assert outcome is (Outcome.TIMED_OUT if hangs else Outcome.FAILED)
        runtime.patience_seconds = 60.0
        behind = _next_that_runs(start)
        assert _run(runtime, 1, start=behind).counts.keys() <= set(_PROVEN)


def _load_in_child(runtime: GuardedRuntime, number: int) -> None:
    """Starting the process takes longer than the patience of these tests."""
    with runtime.load(fuzz_model(draw_graph(5, number)), LoadOptions()):
        pass


def _next_that_runs(number: int) -> int:
    deadly = (KILLING_QUERIES, HANGING_QUERIES)
    return next(n for n in range(number + 1, number + 100) if draw_case(5, n).case.q_seq_len not in deadly)


def test_a_run_goes_on_from_any_number() -> None:
    """Two halves find what one run finds."""
    runtime = OracleRuntime(blocks=next(one for one in READINGS if one.name == "causal-bottom-right").blocks)
    whole = _run(runtime, 24)
    first = _run(runtime, 11)
    second = _run(runtime, 13, start=first.next_number)
    assert first.counts + second.counts == whole.counts
    counted = [{group.title: group.count for group in run.groups.ordered()} for run in (whole, first, second)]
    assert counted[0] == {
        title: counted[1].get(title, 0) + counted[2].get(title, 0) for title in {**counted[1], **counted[2]}
    }
    assert counted[0]


def test_stopped_runs_keep_what_they_found() -> None:
    """Ctrl-C after the fifth case: five counted, and the sixth is next."""
    run = FuzzRun(runtime=OracleRuntime(), seed=5, start=10, cases=50)

    def stop(number: int) -> None:
        if number == 14:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.go(stop)
    assert (run.done, run.next_number, run.is_finished) == (5, 15, False)


def test_seconds_end_a_run() -> None:
    """The clock is asked before each case."""
    ticks = iter(range(100))
    run = FuzzRun(runtime=OracleRuntime(), seed=5, cases=50, seconds=3.0, clock=lambda: float(next(ticks)))
    run.go()
    assert (run.done, run.elapsed_seconds) == (2, 4.0)


def test_our_own_fault_does_not_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that no runtime raised names the case; the cases behind it run."""

    def broken(case: RandomCase, sessions: Sessions) -> CaseOutcome:
        if case.number == 3:
            raise ValueError("shapes differ")
        return run_random(case, sessions)

    monkeypatch.setattr("sdpa_onnx.workflows.fuzz.run.run_random", broken)
    run = _run(OracleRuntime(), 3, start=2)
    case = draw_case(5, 3)
    assert (run.counts[CaseResult.NOT_JUDGED], run.done) == (1, 3)
    (told,) = run.own_faults
    where = f"Case 3 of seed 5 ({case.case.case_id}, {case.graph.words})"
    assert told == f"{where} made sdpa-onnx itself fail: ValueError: shapes differ. Please report it."


def _finding(number: int, **changes: object) -> FuzzFinding:
    plain = FuzzFinding(
        number=number,
        case_id="b1",
        words="opset 23",
        source="spread 1",
        elements=10,
        kind=Conformity.REFUSED,
        message=f"cannot load: axis {number} of 'x'.",
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_grouping() -> None:
    """Numbers do not part a group; kind, output, path and explanation do. The smallest member stands for it."""
    groups = FuzzGroups()
    ran = RanReport(providers={}, node_counts={}, precision="float32", expanded={"Attention": 20})
    explained = Explanation(says="the scale is off by 1.9 %", dated="", reading="scale-off")
    groups.add(_finding(1, features=frozenset({"causal", "past"})))
    groups.add(_finding(2, elements=4, features=frozenset({"causal"})))
    groups.add(_finding(3, message="no such kernel."))
    groups.add(_finding(4, kind=Conformity.CRASHED))
    groups.add(_finding(5, kind=Conformity.WRONG, output="Y", explanation=explained))
    groups.add(_finding(6, kind=Conformity.WRONG, output="Y", explanation=explained, ran=ran))
    groups.add(_finding(7, kind=Conformity.WRONG, output="present_key"))
    found = [(group.count, group.first.number, group.smallest.number, group.title) for group in groups.ordered()]
    assert found == [
        (1, 4, 4, "crashed: cannot load: axis # of '_'."),
        (1, 5, 5, "Y wrong: it looks as if the scale is off by # %."),
        (1, 6, 6, "Y wrong (expanded): it looks as if the scale is off by # %."),
        (1, 7, 7, "present_key wrong: shape."),
        (2, 1, 2, "refused: cannot load: axis # of '_'."),
        (1, 3, 3, "refused: no such kernel."),
    ]
    assert groups.ordered()[4].common == {"causal"}
    assert title_of(_finding(1)) == "refused: cannot load: axis # of '_'."


def _reduced_to(model: OnnxModel, case: str) -> ReducedCase:
    return ReducedCase(
        model=model,
        feeds={},
        failure=KeptFailure(kind=Conformity.WRONG),
        message="",
        case=case,
        found_in="",
        trials=0,
        seconds=0.0,
        is_finished=True,
        runtime="",
        runtime_version="",
    )


def test_same_smallest_case_is_the_same_group() -> None:
    """Two looks of one cause become one group, the more frequent look first; others stay apart."""
    groups = FuzzGroups()
    looks = [Explanation(says=says, dated="", reading=says) for says in ("a", "b", "c")]
    for number, look in ((1, looks[0]), (2, looks[1]), (3, looks[1]), (4, looks[2])):
        features = frozenset({"causal", f"opset {number}"})
        groups.add(_finding(number, kind=Conformity.WRONG, output="Y", explanation=look, features=features))
    model = fuzz_model(draw_graph(5, 0))
    for group, case in zip(groups.ordered(), ("x", "x", "y"), strict=True):
        group.reduced = _reduced_to(model, case)
    groups.merge()
    found = [(group.count, group.first.number, group.title, sorted(group.common)) for group in groups.ordered()]
    assert found == [
        (3, 1, "Y wrong: it looks as if b.", ["causal"]),
        (1, 4, "Y wrong: it looks as if c.", ["causal", "opset 4"]),
    ]


def test_smallest_case_and_record() -> None:
    """A planted fault is reduced from the group's smallest member; the record says how to repeat it."""
    runtime = Planted(fault("scale-missing"))
    first = next(number for number in range(0, 800, 8) if draw_graph(5, number).spec.has_past)
    run = _run(runtime, 4, start=first)
    group = next(one for one in run.groups.ordered() if one.kind is Conformity.WRONG)
    reduce_group(group, runtime, seed=5, seconds=5.0)
    assert group.reduced is not None
    small = group.reduced.trial
    assert small is not None
    assert small.case.q_seq_len * small.case.spec.q_num_heads * small.case.batch_size <= 2
    record = group_record(group, runtime="ort-cpu", seed=5)
    assert (record.target, record.outcome, record.seed) == ("fuzz", Outcome.DISAGREES, 5)
    assert (record.reason, record.diagnosis) == (group.title, evidence_of(group.smallest))
    assert repeat_command("ort-cpu", 5, group.smallest.number) in record.warnings[0]
    assert record.warnings[-1] == f"Smallest case: {group.reduced.case}, opset {group.reduced.model.opset}."


def test_what_cannot_be_reduced_says_so() -> None:
    """Scores, and a failure that does not come again."""
    run = _run(ChangedRuntime(change=lambda outputs: {name: array + 1 for name, array in outputs.items()}), 8)
    group = run.groups.ordered()[0]
    reduce_group(group, OracleRuntime(), seed=5, seconds=1.0)
    assert group.note == "Run once more by itself, it did not fail."
    group.smallest = replace(group.smallest, output="qk_matmul_output")
    reduce_group(group, OracleRuntime(), seed=5)
    assert group.note == "Scores are not made smaller: this is the smallest case that was met."
