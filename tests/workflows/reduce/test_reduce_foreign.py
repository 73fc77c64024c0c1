"""Models whose attentions cannot be read are judged node by node and reduced; what is not judged is reported."""

import io
from collections.abc import Callable
from importlib.metadata import version

import numpy as np
import onnx
import onnx.parser
import pytest

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype
from sdpa_onnx.core.records.records import Conformity
from sdpa_onnx.errors import ModelError, PlanError
from sdpa_onnx.graph.attention_node import build_attention_model
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.runtimes.base import get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.reduce.anonymous_graph import generic_model
from sdpa_onnx.workflows.reduce.axes import shrink_axes
from sdpa_onnx.workflows.reduce.bundle import bundle_files
from sdpa_onnx.workflows.reduce.memory import input_bytes, require_memory
from sdpa_onnx.workflows.reduce.search import NothingFails, ReducedCase, reduce_model
from sdpa_onnx.workflows.reduce.text import ONE_LIMIT, nothing_sentence, sentences
from tests.sweep.fakes import Arrays as Feeds
from tests.sweep.fakes import Faulty, Outputs
from tests.workflows.foreign_models import (
    SECRET,
    WEIGHTS,
    behind_product,
    in_function,
    in_if,
    several,
    without_attention,
)

_HAS_THE_FAULT = pytest.mark.skipif(version("onnxruntime") != "1.32.0", reason="the fault of onnxruntime 1.32.0")
_RIGHT_SIZES = {f"{SECRET}_batch": 1, "qs": 3, "ks": 4, "ps": 2}
_FEW = "SECRET_batch 1, qs 3, ks 4, ps 2"


def _reduced(model: onnx.ModelProto, check: CheckOptions | None = None) -> ReducedCase:
    found = reduce_model(load_model(model), get_runtime("ort-cpu"), check or CheckOptions(sizes={}))
    assert isinstance(found, ReducedCase)
    return found


def _nothing(model: onnx.ModelProto) -> NothingFails:
    found = reduce_model(load_model(model), get_runtime("ort-cpu"), CheckOptions(sizes=_RIGHT_SIZES))
    assert isinstance(found, NothingFails)
    return found


@_HAS_THE_FAULT
@pytest.mark.parametrize("make", [behind_product, in_function, several])
def test_unread_attention_is_found_and_reduced(make: Callable[[], onnx.ModelProto]) -> None:
    """One query with several new keys is among the inputs tried, and every element has a bound."""
    found = _reduced(make())
    assert (found.case, found.is_finished) == ("b1_hq1_hkv1_q1_kv2_d1_f32_causal_past1", True)
    assert np.isfinite(found.expected["Y"].bound).all()
    assert list(sentences(found))[-1].endswith(" s. No smaller candidate fails in the same way.")


@_HAS_THE_FAULT
def test_if_with_attention_gets_shorter_axes() -> None:
    """The axes shrink, the heads stay; text and README report that only one element has a limit."""
    found = _reduced(in_if())
    assert found.model.node_counts()["If"] == 1
    assert {name: found.feeds[name].shape for name in ("Q", "K", "PK")} == {
        "Q": (1, 2, 1, 8),
        "K": (1, 2, 2, 8),
        "PK": (1, 2, 1, 8),
    }
    assert set(found.dropped) == {"ks 64 -> 2", "ps 5 -> 1"}
    lines = list(sentences(found))
    assert lines[-2] == ONE_LIMIT
    assert lines[-1].endswith(
        "No shorter axis fails in the same way. Sizes that the graph fixes, such as heads and widths, stay."
    )
    assert lines[0].startswith("onnxruntime 1.32.0 is suspicious: ")
    readme = bundle_files(found)["README.txt"].decode()
    assert "\nThe case: 1 If, opset 23.\n" in readme
    assert f"\n{ONE_LIMIT}\n" in readme
    assert readme.endswith(
        "\nThis case is suspicious, not proved wrong: the limit of this output is a rule, not a proof.\n"
    )
    stored = np.load(io.BytesIO(bundle_files(found)["expected.npz"]))
    assert np.isfinite(stored[f"{found.failure.output}:bound"]).sum() == 1


def test_sentence_claims_only_what_ran() -> None:
    """No ladder and no probe ran, so the sentence names neither."""
    assert nothing_sentence(_nothing(in_if()), "ort-cpu") == (
        f"Nothing fails on ort-cpu: no attention in the model could be read; every node by itself is right at {_FEW}. "
        "Not judged: the nodes inside 'If/Y' (If): only its outputs were compared."
    )


@pytest.mark.parametrize("make", [behind_product, several])
def test_attentions_that_verify_reads(make: Callable[[], onnx.ModelProto]) -> None:
    """Shapes that the file does not state are inferred, as for `verify`: the attentions are judged in their place."""
    right = f"Nothing fails on ort-cpu: right on the ladder of spreads and the probes at {_FEW}."
    assert nothing_sentence(_nothing(make()), "ort-cpu") == right


def test_attention_by_hand() -> None:
    """Its key is in another axis order in the graph, so that it cannot be cut out: the sentence names no probes."""
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    graph (float[B,2,L,4] q, float[B,L,2,4] k) => (float[B,2,L,4] y)
    {
      flat = Transpose <perm = [0, 2, 3, 1]> (k)
      v = Transpose <perm = [0, 2, 1, 3]> (k)
      s = MatMul (q, flat)
      p = Softmax <axis = -1> (s)
      y = MatMul (p, v)
    }"""
    model = load_model(onnx.parser.parse_model(text))
    found = reduce_model(model, get_runtime("ort-cpu"), CheckOptions(sizes={"B": 1, "L": 3}))
    assert isinstance(found, NothingFails)
    assert nothing_sentence(found, "ort-cpu") == (
        "Nothing fails on ort-cpu: right on the ladder of spreads at B 1, L 3."
    )


@pytest.mark.parametrize(
    ("operator", "inputs", "message"),
    [
        (
            "MultiHeadAttention",
            ["Q", "Q", "Q"],
            r"^The model has 1 attention\(s\) \(.+\), but .+\. No single node of the model could be judged either\.$",
        ),
        ("QuickGelu", ["Q"], "^The model has no attention in it"),
    ],
)
def test_nothing_can_be_judged(operator: str, inputs: list[str], message: str) -> None:
    """A model without a readable attention and without a node that has a reference is an error."""
    settings = {"num_heads": 2} if operator == "MultiHeadAttention" else {}
    node = onnx.helper.make_node(operator, inputs, ["Y"], domain="com.microsoft", **settings)
    shape = ["batch", "qs", "width"]  # the width of the heads is unknown
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in "QY"]
    imports = [onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid("com.microsoft", 1)]
    graph = onnx.helper.make_graph([node], "graph", values[:1], values[1:])
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
    with pytest.raises(ModelError, match=message):
        reduce_model(load_model(model), get_runtime("ort-cpu"), CheckOptions(sizes={"width": 8}))


def test_time_covers_the_search() -> None:
    """At the deadline the search ends after the first inputs, and the sentence reports it."""
    graph = build_attention_model(
        AttentionSpec(q_num_heads=1, kv_num_heads=1, head_dim=4), opset=23, dtype=Dtype.FLOAT32
    )
    now = iter(np.arange(0.0, 1e6))
    found = reduce_model(
        load_model(graph), get_runtime("ort-cpu"), CheckOptions(sizes={}), seconds=3.0, clock=lambda: float(next(now))
    )
    assert isinstance(found, NothingFails)
    assert (len(found.tried), found.is_finished) == (1, False)
    assert nothing_sentence(found, "ort-cpu") == (
        "Nothing fails on ort-cpu within the time limit (--seconds), which was too short to try everything: "
        "right on the inputs that were tried at batch_size 2, q_seq_len 13, kv_seq_len 97."
    )


def test_memory() -> None:
    """Four copies of the inputs must fit into memory."""
    model = load_model(without_attention())
    sizes = {f"{SECRET}_batch": 1, "qs": 100}
    assert input_bytes(model, sizes) == 100 * 2 * 8 * 4
    require_memory(model, [sizes], memory_bytes=4 * 6400)
    with pytest.raises(PlanError) as raised:
        require_memory(model, [{**sizes, "qs": 2**30}], memory_bytes=2**30)
    assert str(raised.value) == (
        "The inputs with SECRET_batch 1, qs 1073741824 need about 256.0 GiB; "
        "this machine has 1.0 GiB. Use smaller sizes."
    )


def test_axes_of_given_arrays_are_cut() -> None:
    """The user's arrays are sliced, never replaced by new draws, down to the smallest that fail."""
    model = load_model(without_attention())
    array = np.arange(3 * 2 * 7 * 8, dtype=np.float32).reshape(3, 2, 7, 8)

    def needs_three(feeds: Feeds) -> bool:
        return feeds["Q"].shape[2] >= 3

    shrunk = shrink_axes(model, {"Q": array}, needs_three, seed=None)
    assert shrunk.dropped == (f"{SECRET}_batch 3 -> 1", "qs 7 -> 3")
    np.testing.assert_array_equal(shrunk.feeds["Q"], array[:1, :, :3])


def test_wrong_node_gets_shorter_axes() -> None:
    """A wrong Relu is reduced to one sample and one query."""

    def off(inputs: Feeds, outputs: Outputs) -> Outputs:
        return {name: array + np.float32(1.0) for name, array in outputs.items()}

    found = reduce_model(load_model(without_attention()), Faulty(off), CheckOptions(sizes={}))
    assert isinstance(found, ReducedCase)
    assert (found.kind, found.feeds["Q"].shape) == (Conformity.WRONG, (1, 2, 1, 8))


def test_generic_function_keeps_no_secret() -> None:
    """Names, texts and default tensors of functions are gone, and the model is still valid."""
    model = load_model(in_function())
    plain, _ = generic_model(model, np.random.default_rng(0))
    data = plain.to_bytes()
    for planted in (SECRET.encode(), WEIGHTS[0, :4].tobytes(), WEIGHTS[1, :2].tobytes()):
        assert planted in model.to_bytes()
        assert planted not in data
    onnx.checker.check_model(onnx.load_from_string(data))
    assert len(plain.ir.functions) == 1


def test_generic_attributes_keep_no_secret() -> None:
    """Lists of tensors and subgraphs are anonymised too; attributes of operators stay."""
    model = in_if()
    for attribute in model.graph.node[0].attribute:
        weights = onnx.numpy_helper.from_array(WEIGHTS, f"{SECRET}_weights")
        constant = onnx.helper.make_node("Constant", [], [f"{SECRET}_c"], value=weights, name=f"{SECRET}_n")
        attribute.g.node.insert(0, constant)
        attribute.g.doc_string = SECRET
    listed = [onnx.numpy_helper.from_array(WEIGHTS, f"{SECRET}_{number}") for number in range(2)]
    model.graph.node.insert(0, onnx.helper.make_node("Strange", ["Q"], [f"{SECRET}_d"], domain="odd", both=listed))
    model.opset_import.append(onnx.helper.make_opsetid("odd", 1))
    plain, _ = generic_model(load_model(model), np.random.default_rng(0))
    data = plain.to_bytes()
    assert SECRET.encode() not in data
    assert WEIGHTS[0, :4].tobytes() not in data
    kept = onnx.load_from_string(data).graph.node[-1].attribute[0].g.node[-1]
    assert [(one.name, one.i) for one in kept.attribute] == [("is_causal", 1)]
