"""One case on one runtime: right ones are right, wrong, refused and dying ones are values of their own."""

from dataclasses import replace
from importlib.metadata import version

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.outputs import OutputRole
from sdpa_onnx.core.attention.probes import probes_for
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, Layout, MaskKind
from sdpa_onnx.core.faults.planted_faults import Fault
from sdpa_onnx.core.judge.cache_agreement import judge_copy, present_of
from sdpa_onnx.core.records.records import Conformity
from sdpa_onnx.errors import CaseError, ExportError
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.check.case_trial import CaseTrial, Sessions, judge_attention, run_case, trial_model
from sdpa_onnx.workflows.isolate.isolated_runtime import guarded_runtime
from tests.sweep.fakes import Refusing
from tests.workflows.dying_child import KILLING_QUERIES, START, kill, start_dying
from tests.workflows.oracle_runtime import OracleRuntime
from tests.workflows.planted_runtime import Planted, fault

_PLAIN = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=8, v_head_dim=6)
_SPECS = {
    "plain": _PLAIN,
    "causal-bool": replace(_PLAIN, is_causal=True, mask=MaskKind.BOOL),
    "float-3d": replace(_PLAIN, mask=MaskKind.FLOAT, layout=Layout.BSH),
    "past": replace(_PLAIN, has_past=True, is_causal=True, softcap=2.0),
    "lengths": replace(_PLAIN, mask=MaskKind.LENGTHS),
}
_HAS_THE_FAULT = pytest.mark.skipif(version("onnxruntime") != "1.32.0", reason="the fault of onnxruntime 1.32.0")


def _case(spec: AttentionSpec, q_seq_len: int = 5, kv_seq_len: int = 7, dtype: Dtype = Dtype.FLOAT32) -> AttentionCase:
    past = 3 if spec.has_past else 0
    return AttentionCase(
        spec=spec, batch_size=2, q_seq_len=q_seq_len, kv_seq_len=kv_seq_len, past_seq_len=past, dtype=dtype
    )


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.FLOAT16])
@pytest.mark.parametrize("name", _SPECS)
def test_right_runtime_is_right(name: str, dtype: Dtype) -> None:
    """Every feature on the ladder and on every probe that applies, in one session; one probe is of a disputed point."""
    probes = [probe.name for probe in probes_for(_SPECS[name]) if probe.name != "lowest-mask"]
    trial = CaseTrial(case=_case(_SPECS[name], dtype=dtype))
    with Sessions(get_runtime("ort-cpu")) as sessions:
        for source in (0.3, 1.0, 4.0, *probes):
            result = run_case(replace(trial, source=source), sessions)
            assert result.kind is Conformity.RIGHT, (source, result.message)
            assert result.precision == dtype.value


@pytest.mark.slow
def test_decomposed_form_runs() -> None:
    """The exporter's formula is the other form of the same case."""
    with Sessions(get_runtime("ort-cpu")) as sessions:
        result = run_case(CaseTrial(case=_case(_PLAIN), form="decomposed", opset=18), sessions)
    assert result.kind is Conformity.RIGHT


@pytest.mark.parametrize(
    ("name", "output"), [("scale-missing", "Y"), ("one-element-nan", "Y"), ("present-key-last-missing", "present_key")]
)
def test_planted_fault_is_wrong(name: str, output: str) -> None:
    """The output that is wrong is named."""
    with Sessions(Planted(fault(name))) as sessions:
        result = run_case(CaseTrial(case=_case(_SPECS["past"])), sessions)
    assert (result.kind, result.output) == (Conformity.WRONG, output)


@pytest.mark.parametrize(
    ("factor", "has_bad_cache", "kind", "output"),
    [
        (0.0, False, Conformity.RIGHT, ""),
        (1e-6, False, Conformity.SUSPICIOUS, "Y"),
        (1e-6, True, Conformity.WRONG, "present_key"),
        (1e-3, True, Conformity.WRONG, "Y"),
        (1e-3, False, Conformity.WRONG, "Y"),
    ],
)
def test_a_wrong_output_outranks_a_suspicious_one(
    factor: float, has_bad_cache: bool, kind: Conformity, output: str
) -> None:
    """The first output with the worst verdict is reported, wherever it is."""
    trial = CaseTrial(case=_case(_SPECS["past"]))
    inputs = trial.draw()
    with Sessions(get_runtime("ort-cpu")) as sessions:
        right = run_case(trial, sessions)
    outputs = {role: array.copy() for role, array in right.outputs.items()}
    outputs[OutputRole.OUTPUT] = (outputs[OutputRole.OUTPUT] * (1.0 + factor)).astype(np.float32)
    if has_bad_cache:
        outputs[OutputRole.PRESENT_KEY][..., -1] += 1.0
    result = judge_attention(trial.case.spec, inputs, outputs, precision=right.precision)
    assert (result.kind, result.output) == (kind, output)


@pytest.mark.parametrize("mode", [QkOutputMode.SCORES, QkOutputMode.AFTER_SOFTCAP, QkOutputMode.WEIGHTS])
@pytest.mark.parametrize("name", ["plain", "past"])
def test_fourth_output_is_judged(name: str, mode: QkOutputMode) -> None:
    """The scores of a right runtime are right, with and without a cache before them; planted ones are not."""
    trial = CaseTrial(case=_case(_SPECS[name]), qk_mode=mode)
    with Sessions(get_runtime("ort-cpu")) as sessions:
        result = run_case(trial, sessions)
    assert result.kind is Conformity.RIGHT, result.message
    assert result.outputs["qk_matmul_output"].shape == (2, 4, 5, 10 if name == "past" else 7)
    with Sessions(Planted(_zero_scores())) as sessions:
        result = run_case(trial, sessions)
    assert (result.kind, result.output) == (Conformity.WRONG, "qk_matmul_output")


def _zero_scores() -> Fault:
    return Fault(
        name="zero-scores",
        says="the scores are zero",
        applies=lambda _: True,
        plant=lambda _spec, _inputs, right, _rng: {**right, OutputRole.QK: np.zeros_like(right[OutputRole.QK])},
    )


@_HAS_THE_FAULT
def test_one_query_with_several_new_keys() -> None:
    """The runtime of today gets this wrong, and the same with one new key right."""
    spec = replace(_PLAIN, has_past=True, is_causal=True)
    with Sessions(get_runtime("ort-cpu")) as sessions:
        kinds = [run_case(CaseTrial(case=_case(spec, 1, keys)), sessions).kind for keys in (1, 4)]
    assert kinds == [Conformity.RIGHT, Conformity.WRONG]


@pytest.mark.parametrize("shape", [(5, 7), (1, 5, 7), (2, 4, 5, 7), (1, 1, 5, 7)])
def test_masks_of_other_shapes_run(shape: tuple[int, ...]) -> None:
    """A mask that broadcasts is built into the graph as it is."""
    trial = CaseTrial(case=_case(replace(_PLAIN, mask=MaskKind.BOOL)))
    mask = np.random.default_rng(0).random(shape) < 0.7
    with Sessions(get_runtime("ort-cpu")) as sessions:
        assert run_case(replace(trial, inputs=replace(trial.draw(), attn_mask=mask)), sessions).kind is Conformity.RIGHT


@_HAS_THE_FAULT
def test_refused_while_it_runs() -> None:
    """A mask for all queries at once: the error is the message, no exception."""
    trial = CaseTrial(case=_case(replace(_PLAIN, mask=MaskKind.BOOL)))
    mask = np.ones((2, 1, 1, 7), bool)
    with Sessions(get_runtime("ort-cpu")) as sessions:
        result = run_case(replace(trial, inputs=replace(trial.draw(), attn_mask=mask)), sessions)
    assert result.kind is Conformity.REFUSED
    assert "inconsistent q_sequence_length" in result.message


def test_refused_before_it_runs() -> None:
    """A runtime that does not take the graph says why."""
    with Sessions(Refusing()) as sessions:
        result = run_case(CaseTrial(case=_case(_PLAIN)), sessions)
    assert (result.kind, result.message) == (
        Conformity.REFUSED,
        "ort-cpu does not take the model: fake has no such kernel.",
    )


def test_crash_is_a_value_and_the_next_trial_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that kills its process twice is a finding; a new one loads the model again."""
    monkeypatch.setattr(START, start_dying)
    trial = CaseTrial(case=_case(_PLAIN))
    with guarded_runtime("ort-cpu") as runtime, Sessions(runtime) as sessions:
        assert run_case(trial, sessions).kind is Conformity.RIGHT
        died = run_case(CaseTrial(case=_case(_PLAIN, q_seq_len=KILLING_QUERIES)), sessions)
        assert (died.kind, died.message) == (
            Conformity.CRASHED,
            "ort-cpu was killed (SIGKILL) from outside, perhaps for memory.",
        )
        assert run_case(trial, sessions).kind is Conformity.RIGHT


@pytest.mark.slow
def test_process_that_is_killed_once_is_no_finding() -> None:
    """Somebody else may have ended it: the case is asked again in a new one."""
    trial = CaseTrial(case=_case(_PLAIN))
    with guarded_runtime("ort-cpu") as runtime, Sessions(runtime) as sessions:
        assert run_case(trial, sessions).kind is Conformity.RIGHT
        assert runtime._worker is not None
        kill(runtime._worker)
        assert run_case(trial, sessions).kind is Conformity.RIGHT


def test_no_answer_in_time_is_a_crash() -> None:
    """A runtime that hangs is ended."""
    with guarded_runtime("ort-cpu") as runtime, Sessions(runtime) as sessions:
        runtime.patience_seconds = 0.0
        result = run_case(CaseTrial(case=_case(_PLAIN)), sessions)
    assert (result.kind, result.message) == (Conformity.CRASHED, "ort-cpu gave no answer in 0 s.")


def test_sessions_are_shared_and_let_go() -> None:
    """Cases of other sizes use the same session; the oldest of too many is closed."""
    loads: list[object] = []
    runtime = Planted(fault("scale-missing"))
    real = runtime.load
    runtime.load = lambda model, options: loads.append(model) or real(model, options)  # type: ignore[method-assign, func-returns-value]
    with Sessions(runtime, keep=1) as sessions:
        for spec, queries in ((_PLAIN, 3), (_PLAIN, 4), (_SPECS["lengths"], 3), (_PLAIN, 3)):
            run_case(CaseTrial(case=_case(spec, queries)), sessions)
    assert len(loads) == 3


def test_given_graph_runs_instead() -> None:
    """A bare attention with names of its own is run as it stands."""
    graph = trial_model(CaseTrial(case=_case(_SPECS["past"])))
    copy = graph.ir.clone()
    for value in (*copy.graph.inputs, *copy.graph.outputs):
        value.name = f"my_{value.name}"
    own = load_model(copy)
    trial = CaseTrial(case=_case(_SPECS["past"]))
    with Sessions(Planted(fault("present-value-last-missing"))) as sessions:
        result = run_case(replace(trial, graph=own, inputs=trial.draw()), sessions)
    assert (result.kind, result.output) == (Conformity.WRONG, "present_value")


def test_unknown_probe() -> None:
    """A misspelt probe is told with the known ones."""
    with pytest.raises(CaseError, match=r"^There is no probe 'poisson'\. Known: .*poison"):
        CaseTrial(case=_case(_PLAIN), source="poisson").draw()


def test_opset_that_cannot_say_it() -> None:
    """The caller chose an opset without the feature."""
    with pytest.raises(ExportError), Sessions(get_runtime("ort-cpu")) as sessions:
        run_case(CaseTrial(case=_case(_SPECS["lengths"]), opset=23), sessions)


def test_present_must_be_equal_to_the_last_bit() -> None:
    """One unit in the last place of a copy is wrong; NaN that was copied is right."""
    trial = CaseTrial(case=_case(_SPECS["past"]))
    inputs = trial.draw()
    assert inputs.past_key is not None
    inputs.past_key[0, 0, 0, 0] = np.nan
    right = np.concatenate([inputs.past_key, inputs.key], axis=2)
    off = right.copy()
    off[-1, -1, -1, -1] = np.nextafter(off[-1, -1, -1, -1], np.float32(9))
    for present, says in (
        (right, "is the past followed by the new entries."),
        (off, f"is not the past followed by the new entries: 1 of {right.size} elements differ."),
        (right[:, :, :-1], "is float32 (2, 2, 9, 8), expected float32 (2, 2, 10, 8)."),
        (right.astype(np.float64), "is float64 (2, 2, 10, 8), expected float32 (2, 2, 10, 8)."),
    ):
        judged = judge_copy(
            OutputRole.PRESENT_KEY, present, present_of(trial.case.spec, inputs)[OutputRole.PRESENT_KEY]
        )
        assert judged.diagnosis == f"present_key {says}"


@pytest.mark.parametrize("dtype", [np.bool_, np.float32])
@pytest.mark.parametrize("shape", [(2, 1, 5, 7), (1, 4, 5, 7), (5, 7), (2, 1, 1, 4), (0,)])
def test_mask_beside_lengths(shape: tuple[int, ...], dtype: type[np.generic]) -> None:
    """A spec names the lengths alone; a given mask beside them is in the model, in its own shape and type."""
    trial = CaseTrial(case=_case(_SPECS["lengths"]))
    mask = np.arange(int(np.prod(shape))).reshape(shape) % 3 > 0
    given = mask if dtype is np.bool_ else np.where(mask, 0.5, -np.inf).astype(np.float32)
    trial = replace(trial, inputs=replace(trial.draw(), attn_mask=given))
    with Sessions(OracleRuntime()) as sessions:
        assert run_case(trial, sessions).kind is Conformity.RIGHT
        other = replace(trial, inputs=replace(trial.draw(), attn_mask=None))
        assert run_case(other, sessions).kind is Conformity.RIGHT
    model = trial_model(trial, trial.draw())
    onnx.checker.check_model(ir.to_proto(model.ir))
    assert model.input_names == ("Q", "K", "V", "nonpad_kv_seqlen", "attn_mask")
    with Sessions(Planted(fault("scale-missing"), real=OracleRuntime())) as sessions:
        assert run_case(trial, sessions).kind is (Conformity.WRONG if shape != (0,) else Conformity.RIGHT)


@pytest.mark.parametrize(("keys", "opset"), [(10, 23), (9, 24), (0, 24), (1, 24)])
def test_short_mask_needs_opset_24(keys: int, opset: int) -> None:
    """The operator of opset 23 has no mask that is shorter than the keys."""
    trial = CaseTrial(case=_case(replace(_SPECS["past"], mask=MaskKind.BOOL)))
    mask = np.ones((2, 1, 5, keys), bool)
    assert replace(trial, inputs=replace(trial.draw(), attn_mask=mask)).used_opset == opset
