"""Workarounds are used only if the runtime needs them, as few as possible; a refusal has the evidence."""

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
from sdpa_onnx.workflows.choose_form.workarounds import RefusedForm, WorkableForm, probe_form
from sdpa_onnx.workflows.isolate.isolated_runtime import GuardedRuntime, guarded_runtime
from tests.workflows.node_runtime import NodeRuntime

_EXPAND, _FINITE = Workaround.EXPAND_MASK, Workaround.FINITE_MASK
_CAUSAL, _SCALE, _BATCH = Workaround.CAUSAL_AS_MASK, Workaround.SCALE_ON_QUERY, Workaround.EQUAL_BATCH


@pytest.fixture(scope="module")
def ort_cpu() -> Iterator[GuardedRuntime]:
    """One process for all probes."""
    with guarded_runtime("ort-cpu") as runtime:
        yield runtime


def _others_slow(names: Iterable[str], *quick: str) -> list[object]:
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def _problem(**changes: object) -> FormProblem:
    fields = ("mask_shapes", "has_single_keys", "has_equal_lengths", "scores_mode", "dtype")
    of_problem = {name: changes.pop(name) for name in fields if name in changes}
    of_spec = {"q_num_heads": 4, "kv_num_heads": 2, "head_dim": 8, **changes}
    return FormProblem(spec=AttentionSpec(**of_spec), **of_problem)  # type: ignore[arg-type]


# Faults that `conformance` finds in ort-cpu, each with its opset and the fewest workarounds there.
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
def test_faults_of_ort_cpu_are_worked_around(name: str, ort_cpu: GuardedRuntime) -> None:
    """The result has the fewest workarounds with which every probe is right, and the failure without them."""
    problem, opset, expected = AVOIDED[name]
    found = probe_form(ort_cpu, problem, Form.ATTENTION, opset=opset)
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
def test_what_ort_cpu_gets_right_has_no_workaround(name: str, ort_cpu: GuardedRuntime) -> None:
    """There is no workaround if every probe is right without; a refusal of empty arrays is a warning."""
    found = probe_form(ort_cpu, PLAIN[name], Form.ATTENTION, opset=23)
    assert isinstance(found, WorkableForm)
    assert found.options == LowerOptions()
    assert (found.record.verdict, found.record.evidence) == (Conformity.RIGHT, "")
    assert all(" does not run for no " in warning for warning in found.record.warnings)
    assert len(found.record.warnings) == 2


@pytest.mark.slow
def test_masked_scores_are_refused_on_ort_cpu(ort_cpu: GuardedRuntime) -> None:
    """No workaround helps the fourth output after a mask with rows of the lowest number."""
    problem = _problem(mask=MaskKind.FLOAT, scores_mode=QkOutputMode.AFTER_MASK)
    found = probe_form(ort_cpu, problem, Form.ATTENTION, opset=23)
    assert isinstance(found, RefusedForm)
    assert found.record.outcome is Outcome.DISAGREES
    assert found.reason.startswith("On ort-cpu form 'attention' is wrong for probe lowest-mask, ")


def test_a_type_without_a_kernel_is_refused(ort_cpu: GuardedRuntime) -> None:
    """The reason contains the runtime's error."""
    found = probe_form(ort_cpu, _problem(dtype=Dtype.BFLOAT16), Form.ATTENTION, opset=23)
    assert isinstance(found, RefusedForm)
    assert found.reason == (
        "On ort-cpu form 'attention' does not run for several queries and keys (b2_hq4_hkv2_q5_kv7_d8_bf16): ort-cpu "
        "does not take the model: ort-cpu has no bfloat16 kernel for Attention."
    )
    assert found.record.outcome is Outcome.UNSUPPORTED


@pytest.mark.slow
@pytest.mark.parametrize("form", [Form.DECOMPOSED, Form.ORT_MHA])
def test_other_forms_avoid_the_faults_of_the_kernel(form: Form, ort_cpu: GuardedRuntime) -> None:
    """A causal cache with unequal lengths and rows of the lowest number, in forms without the faulty kernel."""
    problem = _problem(is_causal=True, has_past=True, mask=MaskKind.FLOAT)
    found = probe_form(ort_cpu, problem, form, opset=18)
    assert isinstance(found, WorkableForm)
    assert found.options == LowerOptions()


@pytest.mark.slow
def test_a_crash_on_empty_arrays_is_a_warning(ort_cpu: GuardedRuntime) -> None:
    """GroupQueryAttention crashes on them, so it returns no wrong number."""
    found = probe_form(ort_cpu, _problem(is_causal=True, has_equal_lengths=True), Form.ORT_GQA, opset=18)
    assert isinstance(found, WorkableForm)
    assert any("crashed" in warning for warning in found.record.warnings)


def test_group_query_attention_refuses_lengths_that_differ(ort_cpu: GuardedRuntime) -> None:
    """No probe runs for an attention that the form cannot express."""
    found = probe_form(ort_cpu, _problem(is_causal=True), Form.ORT_GQA, opset=18)
    assert isinstance(found, RefusedForm)
    assert (found.record.probes, found.record.outcome) == (None, Outcome.UNSUPPORTED)
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
    """Attentions that ort-cpu gets wrong need no workaround on a runtime that computes with the oracle."""
    found = probe_form(NodeRuntime(), RIGHT[name], Form.ATTENTION, opset=24)
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
    """Only the results of the probes count, not the name or version of the runtime."""
    runtime, problem, expected = WRONG[name]
    found = probe_form(runtime, problem, Form.ATTENTION, opset=24)
    assert isinstance(found, WorkableForm)
    assert found.options.workarounds == expected


def test_a_fault_without_a_workaround_is_refused_with_the_worst_evidence() -> None:
    """A wrong order of heads stays wrong with every workaround."""
    runtime = NodeRuntime(reading="heads-tiled")
    found = probe_form(runtime, _problem(is_causal=True), Form.ATTENTION, opset=23)
    assert isinstance(found, RefusedForm)
    assert found.reason.startswith("On onnx-reference form 'attention' is wrong for ")
    assert found.record.verdict is Conformity.WRONG


@pytest.mark.slow
def test_results_of_an_unregistered_runtime_are_not_cached() -> None:
    """Another runtime of the same name and version is probed again."""
    first = probe_form(NodeRuntime(reading="heads-tiled"), _problem(), Form.ATTENTION, opset=23)
    second = probe_form(NodeRuntime(), _problem(), Form.ATTENTION, opset=23)
    assert (type(first), type(second)) == (RefusedForm, WorkableForm)


def test_results_of_a_registered_runtime_are_cached(ort_cpu: GuardedRuntime) -> None:
    """The same problem again is not probed again."""
    first = probe_form(ort_cpu, _problem(is_causal=True), Form.ATTENTION, opset=23)
    assert (
        probe_form(ort_cpu, _problem(is_causal=True, q_num_heads=8, kv_num_heads=4), Form.ATTENTION, opset=23) is first
    )
