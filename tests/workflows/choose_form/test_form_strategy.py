"""Strategies: a fixed form, a form with workarounds for a runtime, the fastest form; a refusal has its reason."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.spec import AttentionSpec, MaskKind
from sdpa_onnx.core.records.verdicts import Conformity, Outcome
from sdpa_onnx.graph.lower.graph_edits import GraphEdits
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.choose_form import choose as auto
from sdpa_onnx.workflows.choose_form.choose import RaceBudget
from sdpa_onnx.workflows.choose_form.form_strategy import FixedForm, FormStrategy
from sdpa_onnx.workflows.choose_form.form_trial import FormProblem, bare_attention, problem_of, set_opset
from sdpa_onnx.workflows.choose_form.race_time import FormRace, RaceTime
from sdpa_onnx.workflows.choose_form.runtime_strategies import FastestForm, RuntimeForm
from sdpa_onnx.workflows.choose_form.workarounds import probe_form
from sdpa_onnx.workflows.isolate.isolated_runtime import GuardedRuntime, guarded_runtime

_CACHED = FormProblem(spec=AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8, is_causal=True, has_past=True))
_SCORES = FormProblem(
    spec=AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, mask=MaskKind.FLOAT),
    scores_mode=QkOutputMode.AFTER_MASK,
)


@pytest.fixture(scope="module")
def ort_cpu() -> Iterator[GuardedRuntime]:
    """One process for all probes."""
    with guarded_runtime("ort-cpu") as runtime:
        yield runtime


def _written(problem: FormProblem, strategy: FormStrategy, *, own: int) -> OnnxModel:
    """Write an attention in the order of `convert_model`: opset, refusal, nodes."""
    model, attention = bare_attention(problem)
    set_opset(model, own)
    opset = strategy.needed_opset(attention, own=own)
    set_opset(model, opset)
    assert strategy.refusal(attention, opset=opset) is None
    return OnnxModel(ir=model, sites=(strategy.write(model, attention, GraphEdits(model)).site,))


def test_a_fixed_form_runs_no_runtime() -> None:
    """The form is written without workarounds: causality is an attribute."""
    model = _written(_CACHED, FixedForm(form=Form.ATTENTION), own=18)
    assert model.opset == 23
    assert model.node_counts() == {"Attention": 1}
    assert model.ir.graph.node(0).attributes["is_causal"].as_int() == 1


def test_a_form_for_a_runtime_has_the_workarounds(ort_cpu: GuardedRuntime) -> None:
    """The causal attribute becomes a mask; metadata and record name the workaround."""
    strategy = RuntimeForm(runtime=ort_cpu, form=Form.ATTENTION)
    model = _written(_CACHED, strategy, own=23)
    node = next(node for node in model.ir.graph if node.op_type == "Attention")
    assert "is_causal" not in node.attributes
    assert node.inputs[3] is not None
    assert (strategy.word, json.loads(strategy.notes["sdpa_onnx.workarounds"])) == (
        "attention",
        {"attention": ["causal-as-mask"]},
    )
    (record,) = strategy.records
    assert (record.site, record.workarounds) == ("attention", ("causal-as-mask",))
    assert record.evidence.startswith("Without causal-as-mask it is wrong for one query and several new keys ")


@pytest.mark.slow
def test_a_form_for_a_runtime_refuses_with_the_evidence(ort_cpu: GuardedRuntime) -> None:
    """A form that stays wrong on the runtime is refused, without metadata."""
    strategy = RuntimeForm(runtime=ort_cpu, form=Form.ATTENTION)
    _, attention = bare_attention(_SCORES)
    reason = strategy.refusal(attention, opset=23)
    assert reason is not None
    assert reason.startswith("On ort-cpu form 'attention' is wrong for probe lowest-mask, ")
    assert strategy.notes == {}


def test_what_a_form_cannot_express_is_refused_before_any_probe() -> None:
    """The reason is that of the form."""

    def never(*_: object, **__: object) -> Any:
        raise AssertionError

    _, attention = bare_attention(_SCORES)
    strategy = RuntimeForm(runtime=get_runtime("ort-cpu"), form=Form.ORT_MHA, probe=never)
    assert strategy.refusal(attention, opset=23) == (
        "MultiHeadAttention has no scores output like that of the standard operator."
    )


def test_the_fastest_is_chosen_once_for_equal_attentions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second attention with the same problem is not timed again, and its table refers to the first."""
    raced = []

    def race(models: Mapping[str, OnnxModel], _: object, sizes: Mapping[str, int], **__: object) -> FormRace:
        raced.append(sizes)
        order = ("decomposed", "decomposed/scores", "attention")
        ratios = {name: 1.0 + order.index(name) for name in models}
        times = {name: RaceTime(seconds=1.0, ratio=ratio, ratio_low=ratio) for name, ratio in ratios.items()}
        return FormRace(sizes=sizes, times=times)

    monkeypatch.setattr("sdpa_onnx.workflows.choose_form.race.race", race)
    monkeypatch.setattr(auto, "_ARMS", auto._ARMS[:3])
    strategy = FastestForm(
        runtime=get_runtime("ort-cpu"), budget=RaceBudget(sizes=({"batch_size": 1, "q_seq_len": 4, "kv_seq_len": 4},))
    )
    problem = FormProblem(spec=AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, is_causal=True))
    for name in ("first", "second"):
        model, attention = bare_attention(problem, name=name)
        set_opset(model, 18)
        assert strategy.needed_opset(attention, own=18) == 18
        assert strategy.refusal(attention, opset=18) is None
        strategy.write(model, attention, GraphEdits(model))
    assert len(raced) == 1
    assert strategy.word == "decomposed"
    tables = json.loads(strategy.notes["sdpa_onnx.auto"])
    assert (tables["first"]["chosen"], tables["second"]) == ("decomposed", {"as": "first"})


@pytest.mark.slow
def test_a_choice_is_probed_again_if_another_attention_raises_the_opset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A form that is right at the opset of the file may be wrong at another."""
    monkeypatch.setattr(auto, "_ARMS", auto._ARMS[1:2])
    runtime = get_runtime("onnx-reference")
    strategy = FastestForm(runtime=runtime)
    model, attention = bare_attention(FormProblem(spec=AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4)))
    assert strategy.needed_opset(attention, own=18) == 18
    set_opset(model, 23)
    assert strategy.refusal(attention, opset=23) is None
    assert strategy.write(model, attention, GraphEdits(model)).site.output == "Y"


def test_the_problem_is_read_from_the_graph() -> None:
    """Mask axes, equal lengths and broadcast keys are read from the declared shapes."""
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, mask=MaskKind.BOOL)
    for problem in (
        FormProblem(spec=spec, mask_shapes=("B11T",)),
        FormProblem(spec=spec, mask_shapes=("1HST",), has_equal_lengths=True),
        FormProblem(spec=spec, mask_shapes=("ST",), has_single_keys=True),
        _SCORES,
        _CACHED,
    ):
        _, attention = bare_attention(problem, mask_shape=problem.mask_shapes[0])
        read = problem_of(attention)
        assert set(read.mask_shapes) >= set(problem.mask_shapes)
        assert read.has_equal_lengths == problem.has_equal_lengths
        assert (read.spec, read.has_single_keys, read.scores_mode) == (
            problem.spec,
            problem.has_single_keys,
            problem.scores_mode,
        )


def test_options_of_a_fixed_form_are_kept() -> None:
    """The scale is applied where the options place it."""
    model, attention = bare_attention(FormProblem(spec=AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8)))
    set_opset(model, 18)
    FixedForm(form=Form.DECOMPOSED, options=LowerOptions()).write(model, attention, GraphEdits(model))
    assert [node.op_type for node in model.graph if node.op_type in ("Mul", "Softmax")] == ["Mul", "Softmax"]


def test_a_timeout_is_no_fault_of_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal and the record report the timeout, not a crash of the form."""
    monkeypatch.setattr("sdpa_onnx.workflows.choose_form.workarounds._CACHE", {})
    _, attention = bare_attention(FormProblem(spec=AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8)))
    with guarded_runtime("ort-cpu", patience_seconds=0.0) as runtime:
        strategy = RuntimeForm(runtime=runtime, form=Form.ORT_MHA, probe=partial(probe_form, patience_seconds=None))
        assert strategy.refusal(attention, opset=18) == "ort-cpu gave no answer in 0 s: this form could not be probed."
    (record,) = strategy.records
    assert (record.outcome, record.verdict) == (Outcome.TIMED_OUT, Conformity.CRASHED)
