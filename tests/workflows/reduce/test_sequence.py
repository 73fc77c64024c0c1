"""A failure that needs other runs of its session is reduced to the fewest and smallest runs."""

import numpy as np
import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, MaskKind
from sdpa_onnx.core.records.records import Conformity
from sdpa_onnx.graph.attention_node import build_attention_model, minimum_opset
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import Runtime, get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.check.session_sequence import run_after, smallest_sequence
from sdpa_onnx.workflows.reduce.reduced_case import NothingFails, ReducedCase
from sdpa_onnx.workflows.reduce.search import reduce_model
from sdpa_onnx.workflows.reduce.text import reduced_record, sentences
from tests.workflows import stateful_runtime as faults
from tests.workflows.quantised_models import MODELS
from tests.workflows.stateful_runtime import Stateful

_SPEC = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=16, v_head_dim=8, softcap=3.0)


def _model(spec: AttentionSpec = _SPEC) -> OnnxModel:
    return load_model(build_attention_model(spec, opset=minimum_opset(spec), dtype=Dtype.FLOAT32))


def _reduced(model: OnnxModel, runtime: Runtime) -> ReducedCase:
    found = reduce_model(model, runtime, CheckOptions(sizes={}), seconds=300.0)
    assert isinstance(found, ReducedCase)
    return found


def test_one_key_first() -> None:
    """The smallest runs, without the options that it does not need; the fault shows after the first run only."""
    runtime = Stateful(faults.first_key_count)
    found = _reduced(_model(), runtime)
    assert (found.kind, found.case) == (Conformity.WRONG, "b1_hq1_hkv1_q1_kv2_d1_f32")
    assert len(found.before) == 1
    assert found.message.startswith("Wrong after a run at batch_size 1, q_seq_len 1, kv_seq_len 1; right in a fresh ")
    oracle, bound = found.expected["Y"].oracle, found.expected["Y"].bound
    alone = run_after(found.model, runtime, (), found.feeds).outputs["Y"]
    used = run_after(found.model, runtime, found.before, found.feeds).outputs["Y"]
    assert (np.abs(alone - oracle) <= bound).all()
    assert (np.abs(used - oracle) > bound).any()
    assert reduced_record(found, target="t").sequence[-1]["kv_seq_len"] == 2
    assert next(iter(sentences(found))).startswith("stateful 1.0 is wrong: Wrong after a run at ")


@pytest.mark.parametrize(
    ("fault", "mask"), [(faults.output_tail, MaskKind.NONE), (faults.previous_mask, MaskKind.FLOAT)]
)
def test_other_faults_of_state(fault: faults.Fault, mask: MaskKind) -> None:
    """A fault that the ladder meets is reduced as a sequence too."""
    spec = AttentionSpec(q_num_heads=2, kv_num_heads=2, head_dim=8, mask=mask)
    found = _reduced(_model(spec), Stateful(fault))
    assert (found.kind, len(found.before)) == (Conformity.WRONG, 1)
    assert "right in a fresh session" in found.message


def test_a_larger_model() -> None:
    """Its outputs are compared with a fresh session; all axes of one size become shorter together."""
    found = _reduced(MODELS["normalised"](), Stateful(faults.output_tail))
    assert (found.kind, len(found.before), found.trial) == (Conformity.SUSPICIOUS, 1, None)  # no bound is known
    assert next(iter(sentences(found))).startswith("stateful 1.0 is suspicious: Suspicious after a run at ")
    (bounded,) = found.expected.values()
    used = run_after(found.model, Stateful(faults.output_tail), found.before, found.feeds).outputs["y"]
    assert (np.abs(used - bounded.oracle) > bounded.bound).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["the output", "all, and the output"])
def test_rewritten_values_accuse_nothing(name: str) -> None:
    """Where the taps change what runs, an attention that is right without optimisation is not reduced."""
    found = reduce_model(MODELS[name](), get_runtime("ort-cpu"), CheckOptions(sizes={}), seconds=60.0)
    assert isinstance(found, NothingFails)


@pytest.mark.slow
def test_a_right_runtime_has_no_sequence() -> None:
    """Nothing fails, with the planned sequence of sizes among what was tried."""
    assert isinstance(reduce_model(_model(), get_runtime("ort-cpu"), CheckOptions(sizes={})), NothingFails)


def test_smallest_sequence_of_runs() -> None:
    """One run if one is enough, the latest of them; else as few as needed; None if it does not fail."""
    assert smallest_sequence([3, 5, 7], lambda runs: 3 in runs or 5 in runs) == (5,)
    needed = {2, 9, 11}
    assert smallest_sequence(list(range(12)), lambda runs: needed <= set(runs)) == (2, 9, 11)
    assert smallest_sequence([1, 2], lambda _: False) is None
