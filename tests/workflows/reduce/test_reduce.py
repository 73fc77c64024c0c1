"""Real and planted faults are reduced to one head, few keys and no unneeded option; a right model has no failure."""

from dataclasses import replace
from importlib.metadata import version

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from sdpa_onnx.core.attention.oracle import QkOutputMode
from sdpa_onnx.core.attention.random_cases import draw_case
from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec, Dtype, Layout, MaskKind
from sdpa_onnx.core.records.records import Conformity, Outcome, Verdict
from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.attention_node import build_attention_model, minimum_opset
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import LoadOptions, get_runtime
from sdpa_onnx.workflows.check.case_trial import CaseTrial, Sessions, run_case, trial_model
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.fuzz.model import fuzz_model
from sdpa_onnx.workflows.isolate.isolated_runtime import ProcessDiedError
from sdpa_onnx.workflows.reduce.cut_arrays import cut, cut_groups, heads_apart
from sdpa_onnx.workflows.reduce.expected import expected_outputs
from sdpa_onnx.workflows.reduce.search import NothingFails, ReducedCase, reduce_model
from sdpa_onnx.workflows.reduce.text import nothing_record, nothing_sentence, reduced_record, sentences
from sdpa_onnx.workflows.reduce.trials import KeptFailure, message_shape
from tests.sweep.fakes import Arrays as Feeds
from tests.sweep.fakes import Faulty, Outputs, Refusing
from tests.workflows.oracle_runtime import OracleRuntime
from tests.workflows.planted_runtime import Planted, fault

_SPEC = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=16, v_head_dim=8)
_PAST = replace(_SPEC, is_causal=True, has_past=True, softcap=3.0, mask=MaskKind.BOOL)
_HAS_THE_FAULT = pytest.mark.skipif(version("onnxruntime") != "1.32.0", reason="the fault of onnxruntime 1.32.0")
_SIZES = {"batch_size": 2, "q_seq_len": 7, "kv_seq_len": 13}


def _model(spec: AttentionSpec, dtype: Dtype = Dtype.FLOAT32) -> OnnxModel:
    return load_model(build_attention_model(spec, opset=minimum_opset(spec), dtype=dtype))


def _reduced(found: ReducedCase | NothingFails) -> ReducedCase:
    assert isinstance(found, ReducedCase)
    return found


def _fails_again(reduced: ReducedCase) -> KeptFailure | None:
    """Run the reduced model again on the real runtime."""
    with get_runtime(reduced.runtime).load(reduced.model, LoadOptions()) as session:
        outputs = session.run(reduced.feeds)
    for name, bounded in reduced.expected.items():
        error = np.abs(outputs[name].astype(np.float64) - bounded.oracle)
        if not bool((error <= bounded.bound).all()):
            return KeptFailure(kind=Conformity.WRONG, output=name)
    return None


@_HAS_THE_FAULT
def test_one_query_with_several_new_keys() -> None:
    """The fault of onnxruntime 1.32.0 in a large case with mask and softcap: what it does not need is removed."""
    sizes = {"batch_size": 3, "q_seq_len": 1, "kv_seq_len": 30, "past_seq_len": 20}
    found = _reduced(reduce_model(_model(_PAST), get_runtime("ort-cpu"), CheckOptions(sizes=sizes)))
    assert found.case == "b1_hq1_hkv1_q1_kv2_d1_f32_causal_past1"
    assert (found.kind, found.verdict, found.is_finished) == (Conformity.WRONG, Verdict.WRONG, True)
    assert _fails_again(found) == KeptFailure(kind=Conformity.WRONG, output="Y")
    assert {"kv_seq_len 30 -> 2", "softcap 3.0 -> 0.0", "mask bool -> none"} <= set(found.dropped)
    assert all(set(np.unique(array)) <= {0, 1} for array in found.feeds.values())


@_HAS_THE_FAULT
def test_found_without_sizes_from_the_caller() -> None:
    """The sizes that trigger the fault are among the sizes tried by default."""
    spec = replace(_SPEC, is_causal=True, has_past=True)
    found = _reduced(reduce_model(_model(spec), get_runtime("ort-cpu"), CheckOptions(sizes={})))
    assert found.case == "b1_hq1_hkv1_q1_kv2_d1_f32_causal_past1"


@_HAS_THE_FAULT
def test_scores_that_hide_no_key() -> None:
    """The fourth output has the lowest finite number instead of -inf; the reduction keeps the mode of that output."""
    spec = replace(_PAST, softcap=0.0)
    trial = CaseTrial(case=_small(spec), qk_mode=QkOutputMode.AFTER_MASK)
    sizes = {"batch_size": 2, "q_seq_len": 5, "kv_seq_len": 6, "past_seq_len": 3}
    found = _reduced(reduce_model(trial_model(trial), get_runtime("ort-cpu"), CheckOptions(sizes=sizes)))
    assert found.failure.output == "qk_matmul_output"
    assert found.case.startswith("b1_hq1_hkv1_q1_kv")
    assert found.feeds["Q"].size == 1
    assert list(sentences(found))[1].endswith("attention form, opset 23, with qk_matmul_output_mode 2.")
    assert np.isneginf(found.expected["qk_matmul_output"].oracle).any()


@_HAS_THE_FAULT
def test_refused_mask() -> None:
    """A mask broadcast over the queries is refused: the smallest case has two queries and one key."""
    graph = build_attention_model(replace(_SPEC, mask=MaskKind.BOOL), opset=23, dtype=Dtype.FLOAT16)
    mask = next(value for value in graph.graph.inputs if value.name == "attn_mask")
    mask.shape = ir.Shape(["batch_size", 1, 1, "kv_seq_len"])
    found = _reduced(reduce_model(load_model(graph), get_runtime("ort-cpu"), CheckOptions(sizes={})))
    assert (found.kind, found.case) == (Conformity.REFUSED, "b1_hq1_hkv1_q2_kv1_d1_f32_mask-bool")
    assert found.feeds["attn_mask"].shape == (1, 1, 1, 1)
    assert "inconsistent q_sequence_length" in found.message
    assert found.verdict is None


@_HAS_THE_FAULT
def test_short_mask_keeps_an_opset_that_has_it() -> None:
    """This runtime refuses a mask shorter than the keys, which is a fault only from opset 24 on."""
    case = draw_case(0, 889)
    check = CheckOptions(sizes={}, inputs=case.inputs.onnx_feeds())
    found = _reduced(reduce_model(fuzz_model(case.graph), get_runtime("ort-cpu"), check))
    assert (found.kind, found.model.opset) == (Conformity.REFUSED, 24)
    assert found.feeds["attn_mask"].shape[-1] < found.feeds["K"].shape[-2]
    assert found.case == "b1_hq1_hkv1_q1_kv1_d1_f32_mask-float"


@pytest.mark.parametrize("number", [240, 880])
def test_mask_with_lengths_is_reduced(number: int) -> None:
    """If the fault needs neither the mask nor the lengths, both are removed."""
    case = draw_case(0, number)
    assert case.inputs.attn_mask is not None
    assert case.inputs.nonpad_kv_seqlen is not None
    check = CheckOptions(sizes={}, inputs=case.inputs.onnx_feeds())
    found = _reduced(reduce_model(fuzz_model(case.graph), Planted(fault("scale-missing")), check))
    assert set(found.feeds) == {"Q", "K", "V"}
    assert (found.case, found.is_finished) == ("b1_hq1_hkv1_q1_kv2_d2_f32_dv1", True)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_3d_arrays_without_an_element(shape: tuple[int, int, int]) -> None:
    """With no sample, query or key, heads are still split and merged, and the bound has the shape of the output."""
    batch_size, queries, keys = shape
    spec = replace(_SPEC, layout=Layout.BSH)
    case = AttentionCase(spec=spec, batch_size=batch_size, q_seq_len=queries, kv_seq_len=keys)
    trial = CaseTrial(case=case)
    apart = heads_apart(spec, trial.draw().named())
    assert (apart["query"].shape, apart["value"].shape) == ((batch_size, 4, queries, 16), (batch_size, 2, keys, 8))
    result = run_case(trial, Sessions(OracleRuntime()))
    bounded = expected_outputs(trial, result)["Y"]
    assert bounded.oracle.shape == bounded.bound.shape == result.outputs["Y"].shape == (batch_size, queries, 32)


@pytest.mark.parametrize(
    ("name", "spec", "case"),
    [
        ("scale-missing", replace(_SPEC, mask=MaskKind.BOOL, is_causal=True), "b1_hq1_hkv1_q1_kv2_d2_f32_dv1"),
        ("heads-tiled", replace(_SPEC, layout=Layout.BSH), "b1_hq4_hkv2_q1_kv1_d1_f32"),
        ("batch-reversed", replace(_SPEC, mask=MaskKind.FLOAT), "b2_hq1_hkv1_q1_kv1_d1_f32"),
        ("causal-strict", replace(_SPEC, is_causal=True), "b1_hq1_hkv1_q1_kv1_d1_f32_causal"),
        ("softcap-ignored", replace(_SPEC, softcap=5.0), "b1_hq1_hkv1_q1_kv2_d1_f32_cap5"),
        ("lengths-of-first", replace(_SPEC, mask=MaskKind.LENGTHS), "b2_hq1_hkv1_q1_kv1_d1_f32_mask-lengths"),
        ("layout-not-transposed", replace(_SPEC, layout=Layout.BSH), "b1_hq2_hkv1_q2_kv2_d1_f32_bsh"),
        ("one-element-nan", _SPEC, "b1_hq1_hkv1_q1_kv1_d1_f32"),
    ],
    ids=lambda value: value if isinstance(value, str) and "-" in value else "",
)
def test_planted_fault_keeps_only_what_it_needs(name: str, spec: AttentionSpec, case: str) -> None:
    """A fault of heads keeps several heads, a fault of the batch two samples, a fault of the layout two queries."""
    found = _reduced(reduce_model(_model(spec), Planted(fault(name)), CheckOptions(sizes=_SIZES)))
    assert (found.kind, found.is_finished) == (Conformity.WRONG, True)
    assert found.case == case
    assert _fails_again(found) is None  # the real runtime is right: the fault is planted


def test_not_finite_stays_not_finite() -> None:
    """The reduction of a NaN does not end at another fault of the same runtime."""

    def two_faults(inputs: Feeds, outputs: Outputs) -> Outputs:
        output = 1.01 * outputs["Y"]
        if inputs["K"].shape[2] > 4:
            output[..., -1, -1] = np.nan
        return {**outputs, "Y": output.astype(np.float32)}

    found = _reduced(reduce_model(_model(_SPEC), Faulty(two_faults), CheckOptions(sizes=_SIZES)))
    assert found.trial is not None
    assert found.trial.case.kv_seq_len == 5
    assert "NaN" in found.message


def test_crash_is_reduced() -> None:
    """A runtime crashes above four keys: the smallest case has five."""

    def dies(inputs: Feeds, outputs: Outputs) -> Outputs:
        if inputs["K"].shape[2] > 4:
            raise ProcessDiedError("ort-cpu crashed: its process ended with signal 11.")
        return outputs

    found = _reduced(reduce_model(_model(_SPEC), Faulty(dies), CheckOptions(sizes=_SIZES)))
    assert (found.kind, found.case) == (Conformity.CRASHED, "b1_hq1_hkv1_q1_kv5_d1_f32")
    assert next(iter(sentences(found))) == "fake 1.0 crashes: ort-cpu crashed: its process ended with signal 11."


def test_given_arrays_are_kept() -> None:
    """The user's arrays are sliced and simplified, never replaced by new draws."""

    def off_where_value_is_seven(inputs: Feeds, outputs: Outputs) -> Outputs:
        return {name: array + np.float32(np.any(inputs["V"] == 7.0)) for name, array in outputs.items()}

    rng = np.random.default_rng(3)
    shapes = {"Q": (1, 4, 3, 16), "K": (1, 2, 9, 16), "V": (1, 2, 9, 8)}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    arrays["V"][0, 1, 4, 5] = 7.0
    found = _reduced(
        reduce_model(_model(_SPEC), Faulty(off_where_value_is_seven), CheckOptions(sizes={}, inputs=arrays))
    )
    assert 7.0 in found.feeds["V"]
    assert found.feeds["V"].size <= 4
    assert found.found_in.startswith("given: ")


def test_failing_attention_inside_a_module(module_model: OnnxModel) -> None:
    """The attention is cut out of the module with the inputs that it had there."""
    found = _reduced(reduce_model(module_model, Planted(fault("scale-missing")), CheckOptions(sizes={})))
    assert found.case == "b1_hq1_hkv1_q1_kv2_d2_f32_dv1"
    assert found.model.node_counts() == {"Attention": 1}


def test_wrong_node_that_is_no_attention(module_model: OnnxModel) -> None:
    """The MatMul before the attention is cut out with the values of the reference and its own limit."""
    products = {node.outputs[0].name for node in module_model.ir.graph if node.op_type == "MatMul"}
    first = next(node.outputs[0].name for node in module_model.ir.graph if node.op_type == "MatMul")

    def off(inputs: Feeds, outputs: Outputs) -> Outputs:
        return {
            name: (1.01 * array).astype(np.float32) if name in products else array for name, array in outputs.items()
        }

    found = _reduced(reduce_model(module_model, Faulty(off), CheckOptions(sizes={})))
    assert (found.kind, found.model.node_counts(), list(found.expected)) == (
        Conformity.WRONG,
        {"MatMul": 1},
        [first],
    )
    limit = found.expected[str(first)].bound
    assert np.isfinite(limit).sum() == 1


@pytest.mark.parametrize(
    ("factors", "kind", "output", "verb"),
    [
        ({"Y1": 3e-6}, Conformity.SUSPICIOUS, "Y1", "is suspicious"),
        ({"Y1": 3e-6, "Y2": 3e-6}, Conformity.SUSPICIOUS, "Y1", "is suspicious"),
        ({"Y1": 3e-6, "Y2": 1e-2}, Conformity.WRONG, "Y2", "is wrong"),
        ({"Y1": 1e-2, "Y2": 3e-6}, Conformity.WRONG, "Y1", "is wrong"),
    ],
    ids=["one-suspicious", "two-suspicious", "wrong-after-suspicious", "wrong-before-suspicious"],
)
def test_only_a_proved_error_is_called_wrong(
    factors: dict[str, float], kind: Conformity, output: str, verb: str
) -> None:
    """A wrong attention is reduced before a suspicious one; a suspicious one is called so, and disagrees."""
    nodes = [helper.make_node("Attention", [f"{one}{n}" for one in "QKV"], [f"Y{n}"], f"a{n}") for n in (1, 2)]
    lengths = {"Q": 40, "K": 64, "V": 64, "Y": 40}
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2, length, 16])
        for name, length in ((f"{one}{n}", length) for n in (1, 2) for one, length in lengths.items())
    }
    outputs = [values.pop(name) for name in ("Y1", "Y2")]
    graph = helper.make_graph(nodes, "graph", list(values.values()), outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)

    def off(_: Feeds, right: Outputs) -> Outputs:
        return {name: (array * (1.0 + factors.get(name, 0.0))).astype(array.dtype) for name, array in right.items()}

    found = _reduced(reduce_model(load_model(model), Faulty(off), CheckOptions(sizes={}), seconds=0.0))
    assert (found.kind, found.model.output_names) == (kind, (output,))
    assert next(sentences(found)).startswith(f"fake 1.0 {verb}: ")
    record = reduced_record(found, target="m.onnx")
    assert (record.outcome, record.verdict) == (Outcome.DISAGREES, kind.value)


def test_refused_operator_is_cut_out() -> None:
    """A model with one unsupported operator is reduced to that operator."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Abs", ["a"], ["b"]),
        helper.make_node("Strange", ["b"], ["c"], domain="strange"),
        helper.make_node("Relu", ["c"], ["d"]),
    ]
    known = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch_size", 4]) for name in "xbcd"]
    graph = helper.make_graph(nodes, "graph", known[:1], known[3:], value_info=known[1:3])
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("strange", 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    found = _reduced(reduce_model(load_model(model), get_runtime("ort-cpu"), CheckOptions(sizes={})))
    assert (found.kind, found.model.node_counts(), found.dropped) == (
        Conformity.REFUSED,
        {"Strange": 1},
        ("batch_size 2 -> 1", "nodes 4 -> 1"),
    )
    assert found.feeds["b"].min() >= 0.0  # the output of Relu and Abs


def test_runtime_that_supports_nothing() -> None:
    """A refusal from `Runtime.supports`, before loading, is reduced too."""
    found = _reduced(reduce_model(_model(_SPEC), Refusing(), CheckOptions(sizes={})))
    assert (found.kind, found.case) == (Conformity.REFUSED, "b1_hq1_hkv1_q1_kv1_d1_f32")


@pytest.mark.slow
def test_right_model_has_nothing_to_reduce(module_model: OnnxModel) -> None:
    """For a right model the sentence lists what was tried."""
    found = reduce_model(module_model, get_runtime("ort-cpu"), CheckOptions(sizes={}))
    assert isinstance(found, NothingFails)
    assert nothing_sentence(found, "ort-cpu") == (
        "Nothing fails on ort-cpu: right on the ladder of spreads and the probes at batch_size 2, x_seq_len 13; "
        "batch_size 1, x_seq_len 1; batch_size 3, x_seq_len 2; and 5 more sets of sizes."
    )
    assert nothing_record(found, target="m.onnx", runtime="ort-cpu").outcome == "ok"


def test_time_limit_returns_the_best_so_far() -> None:
    """The clock stops the reduction, and the text and the record report it."""
    now = iter(np.arange(0.0, 1000.0))
    runtime = Planted(fault("scale-missing"))
    found = _reduced(
        reduce_model(_model(_SPEC), runtime, CheckOptions(sizes=_SIZES), seconds=8.0, clock=lambda: float(next(now)))
    )
    whole = _reduced(reduce_model(_model(_SPEC), runtime, CheckOptions(sizes=_SIZES)))
    assert (found.is_finished, whole.is_finished) == (False, True)
    assert 0 < found.trials < 10 < whole.trials
    assert sum(array.size for array in found.feeds.values()) > sum(array.size for array in whole.feeds.values())
    assert "The time limit was reached: a smaller case may exist (--seconds)." in list(sentences(found))[-1]
    warnings = reduced_record(found, target="m.onnx").warnings
    assert warnings == ("The time limit was reached before the reduction finished.",)


def test_unknown_axis() -> None:
    """A size for an axis that the model does not have is refused."""
    with pytest.raises(PlanError) as raised:
        reduce_model(_model(_SPEC), get_runtime("ort-cpu"), CheckOptions(sizes={"keys": 3}))
    assert str(raised.value) == "The model has no axis 'keys'. It has batch_size, q_seq_len, kv_seq_len."


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("size", ["batch_size", "q_seq_len", "kv_seq_len", "past_seq_len", "kv_num_heads"])
def test_cut_case_is_a_part_of_the_whole(size: str, layout: Layout) -> None:
    """A slice of samples, queries or heads has the same output as in the whole case; with fewer keys it stays right."""
    spec = replace(_SPEC, has_past=True, mask=MaskKind.BOOL, layout=layout)
    trial = CaseTrial(case=_small(spec))
    trial = replace(trial, inputs=trial.draw())
    index = np.array([1])
    part = cut(trial, size, index)
    with Sessions(get_runtime("ort-cpu")) as sessions:
        whole, sliced = (run_case(one, sessions) for one in (trial, part))
    assert whole.kind is sliced.kind is Conformity.RIGHT
    if size in ("batch_size", "q_seq_len", "kv_num_heads"):
        expected = _heads_split(whole.outputs["Y"], 4)
        axis = {"batch_size": 0, "kv_num_heads": 1, "q_seq_len": 2}[size]
        kept = np.array([2, 3]) if size == "kv_num_heads" else index
        np.testing.assert_allclose(
            _heads_split(sliced.outputs["Y"], part.case.spec.q_num_heads), expected.take(kept, axis), rtol=1e-5
        )


def test_cut_groups_keeps_the_key_heads() -> None:
    """Slicing the groups keeps the second query head of each key/value head."""
    trial = CaseTrial(case=_small(_SPEC))
    trial = replace(trial, inputs=trial.draw())
    part = cut_groups(trial, np.array([1]))
    with Sessions(get_runtime("ort-cpu")) as sessions:
        whole, sliced = (run_case(one, sessions) for one in (trial, part))
    np.testing.assert_allclose(sliced.outputs["Y"], whole.outputs["Y"][:, [1, 3]], rtol=1e-5)


def test_cut_lengths_count_the_keys_that_are_left() -> None:
    """Of seven keys, five of them valid, the last three contain one valid key."""
    trial = CaseTrial(case=_small(replace(_SPEC, mask=MaskKind.LENGTHS)))
    trial = replace(trial, inputs=replace(trial.draw(), nonpad_kv_seqlen=np.array([5, 2], np.int64)))
    lengths = cut(trial, "kv_seq_len", np.arange(4, 7)).draw().nonpad_kv_seqlen
    assert lengths is not None
    assert lengths.tolist() == [1, 0]


def test_same_failure() -> None:
    """WRONG may replace SUSPICIOUS; another output, kind or error text is another failure."""
    wrong, suspicious = (KeptFailure(kind=kind, output="Y") for kind in (Conformity.WRONG, Conformity.SUSPICIOUS))
    refused = KeptFailure(kind=Conformity.REFUSED, sign=message_shape("bad size 3 at node 'a'."))
    assert wrong.is_same(wrong)
    assert suspicious.is_same(wrong)
    assert not wrong.is_same(suspicious)
    assert not wrong.is_same(replace(wrong, output="present_key"))
    assert not wrong.is_same(None)
    assert not suspicious.is_same(replace(wrong, sign="not finite"))
    assert refused.is_same(KeptFailure(kind=Conformity.REFUSED, sign=message_shape("bad size 17 at node 'b'.")))
    assert not refused.is_same(KeptFailure(kind=Conformity.REFUSED, sign=message_shape("bad rank 3 at node 'a'.")))


@pytest.mark.slow
def test_decomposed_form(decomposed_model: OnnxModel) -> None:
    """The decomposed form is exported again with fewer heads."""
    found = _reduced(
        reduce_model(decomposed_model, Planted(fault("scale-missing")), CheckOptions(sizes={}), seconds=120.0)
    )
    assert found.case == "b1_hq1_hkv1_q1_kv2_d2_f32_dv1"
    assert "Attention" not in found.model.node_counts()


def _small(spec: AttentionSpec) -> AttentionCase:
    past = 3 if spec.has_past else 0
    return AttentionCase(spec=spec, batch_size=2, q_seq_len=5, kv_seq_len=7, past_seq_len=past)


def _heads_split(output: np.ndarray, num_heads: int) -> np.ndarray:  # type: ignore[type-arg]
    if output.ndim == 4:
        return output
    return output.reshape(*output.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)
