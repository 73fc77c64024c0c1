"""Choosing a form: wrong forms are dropped, the others are timed, and the table has the reasons."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from sdpa_onnx.core.attention.forms import Form, LowerOptions, Workaround
from sdpa_onnx.core.attention.inputs import draw_inputs
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, MaskKind
from sdpa_onnx.core.records.verdicts import Outcome
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.measure.pool import WorkerPool
from sdpa_onnx.runtimes.base import LoadOptions, get_runtime
from sdpa_onnx.workflows.check.case_trial import judge_attention
from sdpa_onnx.workflows.choose_form.choice import FormChoice
from sdpa_onnx.workflows.choose_form.choose import RaceBudget, choose_form, default_sizes
from sdpa_onnx.workflows.choose_form.form_trial import FormProblem, bare_attention, form_model, set_opset
from sdpa_onnx.workflows.choose_form.race import race
from sdpa_onnx.workflows.choose_form.race_time import FormRace, RaceTime
from tests.measure.fake_workers import MILLISECOND, FakeArm, FakeMachine
from tests.workflows.node_runtime import NodeRuntime

_SPEC = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, is_causal=True)
_PROBLEM = FormProblem(spec=_SPEC)
_TWO = (Form.ATTENTION, Form.DECOMPOSED)
_SHORT = {"batch_size": 1, "q_seq_len": 16, "kv_seq_len": 16}
_LONG = {"batch_size": 1, "q_seq_len": 64, "kv_seq_len": 64}


def _planted(seconds: Mapping[str, tuple[float, float]], *, both: tuple[float, float] = (1.0, 1.0)) -> Any:
    """Races with given times: seconds of each arm at the short and at the long size."""

    def race_(models: Mapping[str, OnnxModel], _: object, sizes: Mapping[str, int], **__: object) -> FormRace:
        column = 0 if sizes == _SHORT else 1
        ratios = {name: seconds.get(name, both)[column] for name in models}
        fastest = min(ratios.values())
        return FormRace(
            sizes=sizes,
            times={
                name: RaceTime(seconds=one, ratio=one / fastest, ratio_low=one / fastest)
                for name, one in ratios.items()
            },
        )

    return race_


def _chosen(
    monkeypatch: pytest.MonkeyPatch, *, both: tuple[float, float] = (1.0, 1.0), **ratios: tuple[float, float]
) -> FormChoice:
    seconds = {name.replace("_", "/"): pair for name, pair in ratios.items()}
    monkeypatch.setattr("sdpa_onnx.workflows.choose_form.race.race", _planted(seconds, both=both))
    budget = RaceBudget(sizes=(_SHORT, _LONG))
    return choose_form(_PROBLEM, get_runtime("ort-cpu"), opset=18, budget=budget, forms=_TWO, site="decoder")


def test_the_fastest_form_is_kept_with_its_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row for each form and size; the opset is what the chosen form needs."""
    choice = _chosen(monkeypatch, attention=(1.5, 2.0), decomposed=(1.0, 1.0), decomposed_scores=(1.1, 1.2))
    assert (choice.label, choice.opset) == ("decomposed", 18)
    rows = [(row.arm, row.opset, row.sizes.q_seq_len, row.chosen, row.reason) for row in choice.records]
    assert rows == [
        ("attention", 23, 16, False, "1.50 x the fastest."),
        ("decomposed", 18, 16, True, ""),
        ("decomposed/scores", 18, 16, False, "1.10 x the fastest."),
        ("attention", 23, 64, False, "2.00 x the fastest."),
        ("decomposed", 18, 64, True, ""),
        ("decomposed/scores", 18, 64, False, "1.20 x the fastest."),
    ]
    assert {row.site for row in choice.records} == {"decoder"}
    table = json.loads(msgspec.json.encode(choice.table))
    assert (table["chosen"], len(table["tried"])) == ("decomposed", 6)
    assert table["version"].startswith("onnxruntime ")


def test_a_form_that_the_graph_cannot_hold_is_neither_probed_nor_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row has the reason; the other forms are timed."""
    monkeypatch.setattr(
        "sdpa_onnx.workflows.choose_form.race.race",
        _planted({"decomposed": (1.0, 1.0), "decomposed/scores": (2.0, 2.0)}),
    )
    choice = choose_form(
        _PROBLEM,
        get_runtime("ort-cpu"),
        opset=18,
        budget=RaceBudget(sizes=(_SHORT,)),
        forms=_TWO,
        cannot_hold=lambda needed: f"this is a graph of 18, not {needed}.",
    )
    assert choice.label == "decomposed"
    rows = [(row.arm, row.opset, row.outcome, row.probes) for row in choice.records if row.arm == "attention"]
    assert rows == [("attention", 23, Outcome.UNSUPPORTED, None)]
    assert choice.records[0].reason == "The form needs opset 23, and this is a graph of 18, not 23."


@pytest.mark.slow
def test_one_file_has_two_forms_if_the_fastest_depends_on_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are written at one opset, and the file is right on both sides of the length."""
    choice = _chosen(monkeypatch, attention=(1.0, 2.0), decomposed=(1.5, 1.0), decomposed_scores=(3.0, 3.0))
    assert (choice.label, choice.opset) == ("attention up to 32 queries, decomposed beyond", 23)
    assert [row.arm for row in choice.records if row.chosen] == ["attention", "decomposed"]
    model, attention = bare_attention(_PROBLEM)
    set_opset(model, choice.opset)
    written = OnnxModel(ir=model, sites=(choice.lower(model, attention).site,))
    assert written.node_counts()["If"] == 1
    with get_runtime("ort-cpu").load(written, LoadOptions()) as session:
        for length in (32, 33):
            inputs = draw_inputs(AttentionCase(spec=_SPEC, q_seq_len=length))
            result = judge_attention(_SPEC, inputs, session.run(inputs.onnx_feeds()), precision="float32")
            assert not result.output, result.message


def test_two_forms_are_not_kept_if_the_branch_costs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The `If` is timed against each form alone."""
    choice = _chosen(
        monkeypatch, both=(1.1, 1.1), attention=(1.0, 2.0), decomposed=(1.5, 1.0), decomposed_scores=(3.0, 3.0)
    )
    assert (choice.label, choice.long) == ("decomposed", None)


@pytest.mark.parametrize(("seconds", "is_kept"), [(24e-6, True), (26e-6, False)])
def test_the_nodes_of_the_branch_itself_are_tolerated(
    seconds: float,
    is_kept: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Just below and just above five microseconds more than the faster form, if longer sequences gain as much."""
    arms = {"attention": (20e-6, 2e-3), "decomposed": (60e-6, 1e-3), "decomposed_scores": (60e-6, 3e-3)}
    choice = _chosen(monkeypatch, both=(seconds, 1e-3), **arms)
    assert (choice.long is not None) == is_kept


def test_a_wrong_form_is_dropped_however_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evidence is the reason of its row."""
    seconds = {"attention": (1.0, 1.0), "decomposed": (2.0, 2.0), "decomposed/scores": (2.0, 2.0)}
    monkeypatch.setattr("sdpa_onnx.workflows.choose_form.race.race", _planted(seconds))
    runtime = NodeRuntime(reading="heads-tiled", measures_time=True)
    grouped = FormProblem(spec=AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8))
    choice = choose_form(grouped, runtime, opset=23, budget=RaceBudget(sizes=(_SHORT,)), forms=_TWO)
    assert choice.label == "decomposed"
    dropped = choice.records[0]
    assert (dropped.arm, dropped.outcome, dropped.chosen) == ("attention", Outcome.DISAGREES, False)
    assert dropped.reason.startswith("On onnx-reference form 'attention' is wrong for ")


@pytest.mark.slow
def test_a_form_with_workarounds_may_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chosen candidate has the workarounds."""
    monkeypatch.setattr("sdpa_onnx.workflows.choose_form.race.race", _planted({"attention": (1.0, 1.0)}))
    problem = FormProblem(spec=AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, mask=MaskKind.FLOAT))
    budget = RaceBudget(sizes=(_SHORT,))
    choice = choose_form(problem, get_runtime("ort-cpu"), opset=23, budget=budget, forms=(Form.ATTENTION,))
    assert choice.candidate is not None
    assert choice.candidate.options.workarounds == {Workaround.FINITE_MASK}


def test_no_form_may_be_right() -> None:
    """The reason contains those of all forms, and nothing is written."""
    problem = FormProblem(spec=AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8))
    runtime = NodeRuntime(refuses=lambda *_: "not today")
    choice = choose_form(problem, runtime, opset=23, forms=(Form.ATTENTION,))
    assert (choice.candidate, choice.opset, choice.label) == (None, 0, "no form")
    assert choice.reason == (
        "On onnx-reference form 'attention' does not run for several queries and keys "
        "(b2_hq4_hkv2_q5_kv7_d8_f32): not today"
    )
    model, attention = bare_attention(problem)
    with pytest.raises(ValueError, match="not today"):
        choice.lower(model, attention)


def test_a_runtime_that_is_not_timed_gets_the_simplest_right_form() -> None:
    """ONNX's reference evaluator is slow by design."""
    choice = choose_form(_PROBLEM, NodeRuntime(), opset=23, forms=_TWO)
    assert choice.label == "attention"
    assert choice.records[1].reason == "onnx-reference is not timed: the simplest form that is right there is chosen."


def test_a_race_measures_every_arm_that_runs() -> None:
    """Real runs at a short length; an arm that fails has an error, and the others are measured."""
    models = {form.value: form_model(_PROBLEM, form, opset=23, options=LowerOptions()) for form in _TWO}
    broken = FormProblem(spec=AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, is_causal=True, scale=0.0))
    models["broken"] = form_model(broken, Form.ATTENTION, opset=23, options=LowerOptions())
    with WorkerPool(fresh=False) as pool:
        found = race(models, get_runtime("ort-cpu"), _SHORT, threads=1, budget_seconds=0.05, pool=pool)
    assert [one.arm for one in found.raced] == ["attention", "decomposed"]
    assert min(one.ratio for one in found.raced) == 1.0
    assert "scale must be greater than 0" in found.times["broken"].failure
    assert all(found.times[form].seconds > 0 for form in _TWO)


@pytest.mark.parametrize("process", [0, 1], ids=["first-calls", "timing"])
def test_an_arm_that_crashes_does_not_stop_the_others(process: int) -> None:
    """In its first calls or when it is timed: the crash is its failure, and the other arms are timed."""
    arm = form_model(_PROBLEM, Form.ATTENTION, opset=23, options=LowerOptions())
    models = {"good": arm, "bad": replace(arm), "fine": replace(arm)}
    machine = FakeMachine(arms={"model1": FakeArm(fails={process: "visit"})})
    with machine.pool(fresh=False) as pool:
        found = race(models, get_runtime("ort-cpu"), _SHORT, threads=1, budget_seconds=0.05, pool=pool)
    assert [one.arm for one in found.raced] == ["good", "fine"]
    assert found.times["bad"].failure == "model1 crashed at visit."


def test_several_threads_on_a_busy_machine_are_compared_by_first_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A form is still chosen, because the result is a file and not a claim about speed."""
    monkeypatch.setattr("sdpa_onnx.workflows.timing.comparison.idle_cores", lambda: 0.5)
    arm = form_model(_PROBLEM, Form.ATTENTION, opset=23, options=LowerOptions())
    machine = FakeMachine(arms={"model1": FakeArm(wall_ns=lambda _: 1.25 * MILLISECOND)})
    with machine.pool(fresh=False) as pool:
        times = race(
            {"one": arm, "two": replace(arm)}, get_runtime("ort-cpu"), _SHORT, threads=2, budget_seconds=0.05, pool=pool
        ).times
    assert [(time.ratio, time.is_rough, time.failure) for time in times.values()] == [
        (1.0, True, ""),
        (1.25, True, ""),
    ]


def test_default_sizes_depend_on_the_cache() -> None:
    """Without a cache three lengths, with a cache one token and a prompt."""
    assert [one["q_seq_len"] for one in default_sizes(_SPEC)] == [128, 512, 2048]
    cached = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, has_past=True)
    assert [(one["q_seq_len"], one["past_seq_len"]) for one in default_sizes(cached)] == [(1, 1024), (512, 0)]
