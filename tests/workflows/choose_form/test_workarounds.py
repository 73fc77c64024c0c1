"""Workarounds: taken where the runtime at hand needs them, the fewest that suffice, and a refusal with its evidence."""

from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from sdpa_onnx.core.attention.forms import Form, LowerOptions, Workaround
from sdpa_onnx.core.attention.inputs import AttentionInputs
from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, Layout, MaskKind
from sdpa_onnx.core.records.verdicts import Conformity, Outcome
from sdpa_onnx.runtimes.base import Runtime
from sdpa_onnx.workflows.choose_form.form_trial import FormProblem
from sdpa_onnx.workflows.choose_form.workarounds import RefusedForm, WorkableForm, workable
from sdpa_onnx.workflows.isolate.isolated_runtime import GuardedRuntime, guarded_runtime
from tests.workflows.node_runtime import NodeRuntime

_EXPAND, _FINITE = Workaround.EXPAND_MASK, Workaround.FINITE_MASK
_CAUSAL, _SCALE, _BATCH = Workaround.CAUSAL_AS_MASK, Workaround.SCALE_ON_QUERY, Workaround.EQUAL_BATCH


@pytest.fixture(scope="module")
def ort_cpu() -> Iterator[GuardedRuntime]:
    """One process for all questions."""
    with guarded_runtime("ort-cpu") as runtime:
        yield runtime


def _others_slow(names: Iterable[str], *quick: str) -> list[object]:
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def _problem(**changes: object) -> FormProblem:
    own = ("mask_shapes", "has_single_keys", "has_equal_lengths", "scores_mode", "dtype")
    given = {name: changes.pop(name) for name in own if name in changes}
    figures = {"q_num_heads": 4, "kv_num_heads": 2, "head_dim": 8, **changes}
    return FormProblem(spec=AttentionSpec(**figures), **given)  # type: ignore[arg-type]


# What `conformance` finds of ort-cpu, each with the fewest workarounds at the opset where it is found.
AVOIDED: dict[str, tuple[FormProblem, int, set[Workaround]]] = {
    "one query and several new keys": (_problem(is_causal=True, has_past=True), 23, {_CAUSAL}),
    "a row of the lowest number": (_problem(mask=MaskKind.FLOAT), 23, {_FINITE}),
    "a mask with one query": (_problem(mask=MaskKind.BOOL, mask_shapes=("B11T",)), 23, {_EXPAND}),
    "both": (_problem(mask=MaskKind.FLOAT, mask_shapes=("1H1T",)), 24, {_EXPAND, _FINITE}),
    "a short mask": (_problem(mask=MaskKind.BOOL, mask_shapes=("B1SP",)), 24, {_EXPAND}),
    "keys of one sample": (_problem(has_single_keys=True), 23, {_BATCH}),
    "a scale of 0": (_problem(scale=0.0), 24, {_SCALE}),
    "lengths below their opset": (_problem(mask=MaskKind.LENGTHS), 23, {_EXPAND}),
}


@pytest.mark.parametrize("name", _others_slow(AVOIDED, "one query and several new keys", "both"))
def test_what_ort_cpu_gets_wrong_is_written_otherwise(name: str, ort_cpu: GuardedRuntime) -> None:
    """The fewest workarounds with which every probe is right, and what goes wrong without them."""
    problem, opset, expected = AVOIDED[name]
    found = workable(ort_cpu, problem, Form.ATTENTION, opset=opset)
    assert isinstance(found, WorkableForm)
    assert found.options.workarounds == expected
    assert found.record.workarounds == tuple(sorted(expected))
    assert found.record.evidence.startswith(f"Without {' and '.join(sorted(expected))} it ")


PLAIN = {
    "plain": _problem(),
    "causal": _problem(is_causal=True),
    "a boolean mask": _problem(mask=MaskKind.BOOL),
    "as many queries as new keys": _problem(is_causal=True, has_past=True, has_equal_lengths=True),
    "a negative scale": _problem(scale=-0.5),
    "3-D": _problem(layout=Layout.BSH, v_head_dim=5),
}


@pytest.mark.parametrize("name", _others_slow(PLAIN, "causal"))
def test_what_ort_cpu_gets_right_is_left_alone(name: str, ort_cpu: GuardedRuntime) -> None:
    """No workaround where every probe is right without; what is refused of empty arrays is a word of doubt."""
    found = workable(ort_cpu, PLAIN[name], Form.ATTENTION, opset=23)
    assert isinstance(found, WorkableForm)
    assert found.options == LowerOptions()
    assert (found.record.verdict, found.record.evidence) == (Conformity.RIGHT, "")
    assert all(" does not run for no " in warning for warning in found.record.warnings)
    assert len(found.record.warnings) == 2


@pytest.mark.slow
def test_masked_scores_are_refused_on_ort_cpu(ort_cpu: GuardedRuntime) -> None:
    """The fourth output after the mask has no way around what the lowest number does to a row."""
    problem = _problem(mask=MaskKind.FLOAT, scores_mode=QkOutputMode.AFTER_MASK)
    found = workable(ort_cpu, problem, Form.ATTENTION, opset=23)
    assert isinstance(found, RefusedForm)
    assert found.record.outcome is Outcome.DISAGREES
    assert found.reason.startswith("On ort-cpu form 'attention' is wrong for probe lowest-mask, ")


def test_a_type_without_a_kernel_is_refused(ort_cpu: GuardedRuntime) -> None:
    """The runtime's own words are the reason."""
    found = workable(ort_cpu, _problem(dtype=Dtype.BFLOAT16), Form.ATTENTION, opset=23)
    assert isinstance(found, RefusedForm)
    assert found.reason == (
        "On ort-cpu form 'attention' does not run for several queries and keys (b2_hq4_hkv2_q5_kv7_d8_bf16): ort-cpu "
        "does not take the model: onnxruntime's CPU provider has no bfloat16 kernel for Attention."
    )
    assert found.record.outcome is Outcome.UNSUPPORTED


@pytest.mark.slow
@pytest.mark.parametrize("form", [Form.DECOMPOSED, Form.ORT_MHA])
def test_other_forms_avoid_it_by_themselves(form: Form, ort_cpu: GuardedRuntime) -> None:
    """Causal over a cache with other lengths, and a lowest row, in forms that the kernel's fault does not reach."""
    problem = _problem(is_causal=True, has_past=True, mask=MaskKind.FLOAT)
    found = workable(ort_cpu, problem, form, opset=18)
    assert isinstance(found, WorkableForm)
    assert found.options == LowerOptions()


@pytest.mark.slow
def test_a_crash_on_empty_arrays_is_told(ort_cpu: GuardedRuntime) -> None:
    """GroupQueryAttention ends the process there; nobody gets a wrong number."""
    found = workable(ort_cpu, _problem(is_causal=True, has_equal_lengths=True), Form.ORT_GQA, opset=18)
    assert isinstance(found, WorkableForm)
    assert any("crashed" in warning for warning in found.record.warnings)


def test_group_query_attention_refuses_lengths_that_differ(ort_cpu: GuardedRuntime) -> None:
    """Nothing is run for what the form cannot say."""
    found = workable(ort_cpu, _problem(is_causal=True), Form.ORT_GQA, opset=18)
    assert isinstance(found, RefusedForm)
    assert (found.record.probes, found.record.outcome) == (0, Outcome.UNSUPPORTED)
    assert found.reason == (
        "GroupQueryAttention needs as many new keys as queries: the graph has q_seq_len queries and kv_seq_len keys."
    )


def _refuses_broadcast(_: AttentionSpec, given: AttentionInputs) -> str:
    mask = given.attn_mask
    return "no broadcast" if mask is not None and mask.shape[-2] != given.query.shape[-2] else ""


def _refuses_lowest(_: AttentionSpec, given: AttentionInputs) -> str:
    mask = given.attn_mask
    return "too low" if mask is not None and (mask == np.finfo(np.float32).min).any() else ""


def _small(**changes: object) -> FormProblem:
    return _problem(q_num_heads=2, kv_num_heads=1, head_dim=4, **changes)


RIGHT = {
    "one query and several new keys": _small(is_causal=True, has_past=True),
    "a row of the lowest number": _small(mask=MaskKind.FLOAT, mask_shapes=("B11T",)),
    "a scale of 0": _small(scale=0.0),
}


@pytest.mark.parametrize("name", _others_slow(RIGHT, "one query and several new keys"))
def test_a_runtime_that_is_right_needs_none(name: str) -> None:
    """The same attentions that ort-cpu gets wrong, on a runtime that computes by the oracle."""
    found = workable(NodeRuntime(), RIGHT[name], Form.ATTENTION, opset=24)
    assert isinstance(found, WorkableForm)
    assert found.options == LowerOptions()
    assert found.record.warnings == ()


WRONG: dict[str, tuple[Runtime, FormProblem, set[Workaround]]] = {
    "causal-upper-left": (NodeRuntime(reading="causal-upper-left"), _small(is_causal=True, has_past=True), {_CAUSAL}),
    "no lowest": (NodeRuntime(refuses=_refuses_lowest), _small(mask=MaskKind.FLOAT), {_FINITE}),
    "refused": (
        NodeRuntime(refuses=_refuses_broadcast),
        _small(mask=MaskKind.BOOL, mask_shapes=("B11T",)),
        {_EXPAND},
    ),
}


@pytest.mark.parametrize("name", _others_slow(WRONG, "causal-upper-left", "refused"))
def test_a_planted_fault_is_worked_around(name: str) -> None:
    """What a runtime is called, or which version it has, is not asked: only what it does."""
    runtime, problem, expected = WRONG[name]
    found = workable(runtime, problem, Form.ATTENTION, opset=24)
    assert isinstance(found, WorkableForm)
    assert found.options.workarounds == expected


def test_a_fault_without_a_way_around_is_refused_with_its_worst_evidence() -> None:
    """Heads in another order are wrong however the node is written."""
    runtime = NodeRuntime(reading="heads-tiled")
    found = workable(runtime, _problem(is_causal=True), Form.ATTENTION, opset=23)
    assert isinstance(found, RefusedForm)
    assert found.reason.startswith("On onnx-reference form 'attention' is wrong for ")
    assert found.record.verdict is Conformity.WRONG


@pytest.mark.slow
def test_nothing_is_kept_of_a_runtime_that_is_not_registered() -> None:
    """Another one of the same name and version is asked anew."""
    first = workable(NodeRuntime(reading="heads-tiled"), _problem(), Form.ATTENTION, opset=23)
    second = workable(NodeRuntime(), _problem(), Form.ATTENTION, opset=23)
    assert (type(first), type(second)) == (RefusedForm, WorkableForm)


def test_a_registered_runtime_is_asked_once(ort_cpu: GuardedRuntime) -> None:
    """The same question again is answered from memory."""
    first = workable(ort_cpu, _problem(is_causal=True), Form.ATTENTION, opset=23)
    assert workable(ort_cpu, _problem(is_causal=True, q_num_heads=8, kv_num_heads=4), Form.ATTENTION, opset=23) is first
