"""Ways of writing: a fixed form, a form as a runtime needs it, the fastest; each says why it leaves one as it is."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from sdpa_onnx.core.attention.forms import Form, LowerOptions
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.spec import AttentionSpec, MaskKind
from sdpa_onnx.core.records.verdicts import Conformity, Outcome
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.choose_form import choose as auto
from sdpa_onnx.workflows.choose_form.choose import RaceBudget
from sdpa_onnx.workflows.choose_form.form_strategy import FixedForm, FormStrategy
from sdpa_onnx.workflows.choose_form.form_trial import FormProblem, bare_attention, problem_of, set_opset
from sdpa_onnx.workflows.choose_form.race import FormRace, RaceTime
from sdpa_onnx.workflows.choose_form.runtime_strategies import FastestForm, RuntimeForm
from sdpa_onnx.workflows.choose_form.workarounds import workable
from sdpa_onnx.workflows.isolate.isolated_runtime import GuardedRuntime, guarded_runtime

_CACHED = FormProblem(spec=AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8, is_causal=True, has_past=True))
_SCORES = FormProblem(
    spec=AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, mask=MaskKind.FLOAT),
    scores_mode=QkOutputMode.AFTER_MASK,
)


@pytest.fixture(scope="module")
def ort_cpu() -> Iterator[GuardedRuntime]:
    """One process for all questions."""
    with guarded_runtime("ort-cpu") as runtime:
        yield runtime


def _written(problem: FormProblem, writing: FormStrategy, *, own: int) -> OnnxModel:
    """As `convert_model` goes: the opset first, then refusals, then the nodes."""
    model, attention = bare_attention(problem)
    set_opset(model, own)
    opset = writing.needed_opset(attention, own=own)
    set_opset(model, opset)
    assert writing.refusal(attention, opset=opset) is None
    return OnnxModel(ir=model, sites=(writing.write(model, attention).site,))


def test_a_fixed_form_asks_no_runtime() -> None:
    """What export wrote before: causality as an attribute."""
    model = _written(_CACHED, FixedForm(form=Form.ATTENTION), own=18)
    assert model.opset == 23
    assert model.node_counts() == {"Attention": 1}
    assert model.ir.graph.node(0).attributes["is_causal"].as_int() == 1


def test_a_form_for_a_runtime_avoids_what_it_gets_wrong(ort_cpu: GuardedRuntime) -> None:
    """A mask instead of the attribute, noted in the metadata and told in a record."""
    writing = RuntimeForm(runtime=ort_cpu, form=Form.ATTENTION)
    model = _written(_CACHED, writing, own=23)
    node = next(node for node in model.ir.graph if node.op_type == "Attention")
    assert "is_causal" not in node.attributes
    assert node.inputs[3] is not None
    assert (writing.word, json.loads(writing.notes["sdpa_onnx.workarounds"])) == (
        "attention",
        {"attention": ["causal-as-mask"]},
    )
    (record,) = writing.records
    assert (record.site, record.workarounds) == ("attention", ("causal-as-mask",))
    assert record.evidence.startswith("Without causal-as-mask it is wrong for one query and several new keys ")


@pytest.mark.slow
def test_a_form_for_a_runtime_refuses_with_the_evidence(ort_cpu: GuardedRuntime) -> None:
    """Nothing is written that the runtime gets wrong, and nothing noted."""
    writing = RuntimeForm(runtime=ort_cpu, form=Form.ATTENTION)
    _, attention = bare_attention(_SCORES)
    reason = writing.refusal(attention, opset=23)
    assert reason is not None
    assert reason.startswith("On ort-cpu form 'attention' is wrong for probe lowest-mask, ")
    assert writing.notes == {}


def test_what_a_form_cannot_say_is_refused_before_anything_runs() -> None:
    """The form's own sentence."""

    def never(*_: object, **__: object) -> Any:
        raise AssertionError

    _, attention = bare_attention(_SCORES)
    writing = RuntimeForm(runtime=get_runtime("ort-cpu"), form=Form.ORT_MHA, asks=never)
    assert writing.refusal(attention, opset=23) == (
        "MultiHeadAttention has no scores output like that of the standard operator."
    )


def test_the_fastest_is_chosen_once_for_attentions_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one of the same kind is not raced again, and its table names the first."""
    raced = []

    def race(models: Mapping[str, OnnxModel], _: object, sizes: Mapping[str, int], **__: object) -> FormRace:
        raced.append(sizes)
        order = ("decomposed", "decomposed/scores", "attention")
        ratios = {name: 1.0 + order.index(name) for name in models}
        laps = {name: RaceTime(seconds=1.0, ratio=ratio, ratio_low=ratio) for name, ratio in ratios.items()}
        return FormRace(sizes=sizes, laps=laps)

    monkeypatch.setattr(auto, "race", race)
    monkeypatch.setattr(auto, "_ARMS", auto._ARMS[:3])
    writing = FastestForm(
        runtime=get_runtime("ort-cpu"), budget=RaceBudget(sizes=({"batch_size": 1, "q_seq_len": 4, "kv_seq_len": 4},))
    )
    problem = FormProblem(spec=AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, is_causal=True))
    for name in ("first", "second"):
        model, attention = bare_attention(problem, name=name)
        set_opset(model, 18)
        assert writing.needed_opset(attention, own=18) == 18
        assert writing.refusal(attention, opset=18) is None
        writing.write(model, attention)
    assert len(raced) == 1
    assert writing.word == "decomposed"
    tables = json.loads(writing.notes["sdpa_onnx.auto"])
    assert (tables["first"]["chosen"], tables["second"]) == ("decomposed", {"as": "first"})


@pytest.mark.slow
def test_a_choice_is_asked_again_where_another_attention_raises_the_opset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A form that is right at the file's opset need not be so at another."""
    monkeypatch.setattr(auto, "_ARMS", auto._ARMS[1:2])
    runtime = get_runtime("onnx-reference")
    writing = FastestForm(runtime=runtime)
    model, attention = bare_attention(FormProblem(spec=AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=4)))
    assert writing.needed_opset(attention, own=18) == 18
    set_opset(model, 23)
    assert writing.refusal(attention, opset=23) is None
    assert writing.write(model, attention).site.output == "Y"


def test_what_a_graph_can_feed_is_read_off_it() -> None:
    """Mask axes, lengths and shared keys, as the graph declares them."""
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
    """The scale goes where it was asked to go."""
    model, attention = bare_attention(FormProblem(spec=AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8)))
    set_opset(model, 18)
    FixedForm(form=Form.DECOMPOSED, options=LowerOptions()).write(model, attention)
    assert [node.op_type for node in model.graph if node.op_type in ("Mul", "Softmax")] == ["Mul", "Softmax"]


def test_a_time_that_is_too_short_is_no_fault_of_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reported as such, and not as a form that crashes; the record has the outcome."""
    monkeypatch.setattr("sdpa_onnx.workflows.choose_form.workarounds._KNOWN", {})
    _, attention = bare_attention(FormProblem(spec=AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8)))
    with guarded_runtime("ort-cpu", patience_seconds=0.0) as runtime:
        writing = RuntimeForm(runtime=runtime, form=Form.ORT_MHA, asks=partial(workable, patience_seconds=None))
        assert writing.refusal(attention, opset=18) == "ort-cpu gave no answer in 0 s: nothing is known of this form."
    (record,) = writing.records
    assert (record.outcome, record.verdict) == (Outcome.TIMED_OUT, Conformity.CRASHED)
