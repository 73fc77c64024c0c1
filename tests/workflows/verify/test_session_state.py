"""A run that is right alone and wrong after other runs is found by default, with the runs that it needs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, MaskKind
from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Record, Verdict
from sdpa_onnx.graph.attention_node import build_attention_model, minimum_opset
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import Runtime, Unsupported, get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.lifted_model import with_lifted_sites
from sdpa_onnx.workflows.verify import verify_file as verify_file_module
from sdpa_onnx.workflows.verify.session_state import check_state
from sdpa_onnx.workflows.verify.verify_file import verify_file
from tests.graph.models import model_of
from tests.workflows import stateful_runtime as faults
from tests.workflows.oracle_runtime import OracleRuntime
from tests.workflows.stateful_runtime import Fault, Stateful

_SPEC = AttentionSpec(q_num_heads=2, kv_num_heads=1, head_dim=8)
_SPECS = {
    "plain": _SPEC,
    "mask": replace(_SPEC, mask=MaskKind.FLOAT),
    "causal": replace(_SPEC, is_causal=True),
    "past": replace(_SPEC, has_past=True),
    "lengths": replace(_SPEC, mask=MaskKind.LENGTHS),
}
_SIZES = {"batch_size": 2, "q_seq_len": 13, "kv_seq_len": 97, "past_seq_len": 5}


def _bare(spec: AttentionSpec = _SPEC) -> OnnxModel:
    return load_model(build_attention_model(spec, opset=minimum_opset(spec), dtype=Dtype.FLOAT32))


def _larger() -> OnnxModel:
    """A projection before an attention: the outputs are compared with a fresh session."""
    size: list[int | str | None] = ["batch_size", 2, "q_seq_len", 8]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["projected"], name="project"),
        helper.make_node("Attention", ["projected", "projected", "x"], ["y"], name="attend"),
    ]
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    made = onnx.shape_inference.infer_shapes(model_of(nodes, {"x": size}, {"y": size}, {"w": weight}))
    return with_lifted_sites(load_model(made)).model


def _verified(model: OnnxModel, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Sequence[Record]:
    monkeypatch.setattr(verify_file_module, "get_runtime", lambda _: runtime)
    return list(verify_file(model, [runtime.name], CheckOptions(sizes={}), target="t"))


def _of_state(records: Sequence[Record]) -> Iterator[AgreementRecord]:
    return (record for record in records if isinstance(record, AgreementRecord) and record.sequence)


@pytest.mark.parametrize(
    ("fault", "spec", "runs"),
    [
        (faults.first_key_count, "plain", 2),
        (faults.buffer_of_shape, "plain", 2),
        (faults.previous_mask, "mask", 2),
        (faults.output_tail, "causal", 2),
        (faults.scale_of_first_rank, "plain", 2),
        (faults.after_large, "plain", 2),
        (faults.previous_past, "past", 2),
        (faults.shared_output, "plain", 2),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_planted_fault_of_state_is_found(fault: Fault, spec: str, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Default `verify` reports it as such, with the two runs that show it."""
    found = list(_of_state(_verified(_bare(_SPECS[spec]), Stateful(fault), monkeypatch)))
    assert found, "not found"
    assert (found[0].outcome, found[0].verdict, len(found[0].sequence)) == (Outcome.DISAGREES, Verdict.WRONG, runs)
    says = "changed when the session ran again" if fault is faults.shared_output else "; right in a fresh session. "
    assert says in found[0].reason


@pytest.mark.parametrize("fault", [faults.buffer_of_shape, faults.shared_output, faults.output_tail])
def test_a_fault_of_state_in_a_larger_model_is_found(fault: Fault) -> None:
    """Its outputs are compared with those of a fresh session, and float64 says which are right."""
    check = CheckOptions(sizes={"batch_size": 2, "q_seq_len": 13})
    found = list(check_state(_larger(), Stateful(fault), check, target="t"))
    assert [record.outcome for record in found] == [Outcome.DISAGREES]
    assert found[0].site == "y"


def test_what_an_empty_run_leaves_is_found() -> None:
    """Lengths of 0 are among the planned sizes of an attention; this runtime takes them."""
    runtime = Stateful(faults.after_empty, name="oracle", real=OracleRuntime())
    (record,) = check_state(_bare(), runtime, CheckOptions(sizes=_SIZES), target="t")
    assert record.reason.startswith("Wrong after a run at batch_size 2, q_seq_len 0, kv_seq_len 0")


def test_the_sequence_is_the_shortest() -> None:
    """The record names the one earlier run that is needed, and the sizes of both."""
    (record,) = check_state(_bare(), Stateful(faults.first_key_count), CheckOptions(sizes=_SIZES), target="t")
    one = {"batch_size": 1, "q_seq_len": 1, "kv_seq_len": 1, "past_seq_len": 1}
    assert record.sequence == (one, {"batch_size": 2, "q_seq_len": 7, "kv_seq_len": 34, "past_seq_len": 3})
    assert record.reason.startswith(
        "Wrong after a run at batch_size 1, q_seq_len 1, kv_seq_len 1, past_seq_len 1; right in a fresh session. "
    )


@pytest.mark.parametrize("runtime", ["ort-cpu", "onnx-reference"])
@pytest.mark.parametrize("spec", _SPECS.values(), ids=_SPECS)
def test_a_right_runtime_has_no_fault_of_state(spec: AttentionSpec, runtime: str) -> None:
    """The planned sizes, lengths of 0 among them, raise no alarm."""
    assert not list(check_state(_bare(spec), get_runtime(runtime), CheckOptions(sizes=_SIZES), target="t"))


def test_a_right_larger_model_has_no_fault_of_state() -> None:
    """A second session of the same graph returns the same outputs."""
    check = CheckOptions(sizes={"batch_size": 2, "q_seq_len": 13})
    assert not list(check_state(_larger(), get_runtime("ort-cpu"), check, target="t"))


def test_a_fault_that_is_there_alone_is_not_one_of_state() -> None:
    """A wrong result in a fresh session is reported by the other checks."""

    def always(run: faults.Run, inputs: faults.Arrays, memory: dict[str, object]) -> faults.Outputs:
        return {name: array + np.float32(1) for name, array in run(inputs).items()}

    assert not list(check_state(_bare(), Stateful(always), CheckOptions(sizes=_SIZES), target="t"))


def test_given_sizes_stay() -> None:
    """An axis that the caller fixes keeps its size in every run."""
    seen: list[int] = []

    def noted(run: faults.Run, inputs: faults.Arrays, memory: dict[str, object]) -> faults.Outputs:
        seen.append(inputs["K"].shape[2])
        return run(inputs)

    list(check_state(_bare(), Stateful(noted), CheckOptions(sizes=_SIZES), target="t", fixed=["kv_seq_len"]))
    assert set(seen) == {97}


def test_openvino_after_one_key() -> None:
    """OpenVINO 2026.4.1: after a first run with one key, a run with more keys is wrong."""
    runtime = get_runtime("openvino")
    if isinstance(runtime.available(), Unsupported) or "2026.4.1" not in runtime.version():
        pytest.skip("the fault of OpenVINO 2026.4.1")
    (record,) = check_state(_bare(), runtime, CheckOptions(sizes=_SIZES), target="t")
    assert record.reason.startswith("Wrong after a run at batch_size 1, q_seq_len 1, kv_seq_len 1")
    assert len(record.sequence) == 2
