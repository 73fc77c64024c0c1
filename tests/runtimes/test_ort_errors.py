"""The texts that ONNX Runtime 1.32 really gives, and what we make of them."""

import pytest
from onnx import TensorProto, helper

from sdpa_onnx.errors import SessionError
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.runtimes.base import LoadOptions, get_runtime
from sdpa_onnx.runtimes.worker.ort_errors import clean_message, failing_node
from tests.runtimes.models import Problem, decomposed, draw, model, model_of

KERNEL = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Attention node. Name:'attend' "
    "Status Message: /onnxruntime_src/onnxruntime/core/providers/cpu/llm/attention_helper.h:69 "
    "onnxruntime::common::Status onnxruntime::attention_helper::ComputeOutputShapeForAttention("
    "const onnxruntime::Tensor*, bool, AttentionParameters&, std::function<void(int)>) "
    "K->Shape()[2] == V->Shape()[2] was false. inconsistent kv_sequence_length\n"
)
FUSED = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running FusedMatMul node. "
    "Name:'mm1/MatmulTransposeFusion//MatMulScaleFusion/' Status Message: matmul_helper.h:164 Compute "
    "MatMul dimension mismatch"
)
INVALID = (
    '[ONNXRuntimeError] : 10 : INVALID_GRAPH : This is an invalid model. In Node, ("attend", Attention, "", -1) : '
    '("Q": tensor(float),"K": tensor(float),) -> ("Y": tensor(float),) , '
    "Error Unrecognized attribute: left_window_size for operator Attention"
)
FROM_FILE = "[ONNXRuntimeError] : {} : Load model from /tmp/a b/model1.onnx failed:"
INVALID_NODE = (
    'This is an invalid model. In Node, ("n", Foo, "", -1) : ("x": tensor(float),) -> ("y": tensor(float),) , Error '
    "No Op registered for Foo with domain_version of 18"
)
IR_VERSION = (
    "/onnxruntime_src/onnxruntime/core/graph/model.cc:256 onnxruntime::Model::Model(onnx::ModelProto&&, const "
    "onnxruntime::ModelOptions&) Unsupported model IR version: 99, max supported IR version: 14\n"
)
NO_KERNEL = "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for {}"
TEXTS = {
    "kernel": (KERNEL, "attend", "K->Shape()[2] == V->Shape()[2] was false. inconsistent kv_sequence_length"),
    "fused": (FUSED, "mm1", "MatMul dimension mismatch"),
    "no-kernel": (
        NO_KERNEL.format("MatMul(13) node with name 'mm1'"),
        "mm1",
        "Could not find an implementation for MatMul(13) node",
    ),
    "invalid": (INVALID, "attend", "Unrecognized attribute: left_window_size for operator Attention"),
    "no-kernel-unnamed": (
        NO_KERNEL.format("Expand(13) node with name ''"),
        None,
        "Could not find an implementation for Expand(13) node",
    ),
    "no-model": (
        FROM_FILE.format("7 : INVALID_PROTOBUF") + "Protobuf parsing failed.",
        None,
        "Protobuf parsing failed",
    ),
    "no-file": (
        FROM_FILE.format("3 : NO_SUCHFILE") + "Load model /tmp/a b/model1.onnx failed. File doesn't exist",
        None,
        "File doesn't exist",
    ),
    "no-operator": (
        FROM_FILE.format("10 : INVALID_GRAPH") + INVALID_NODE,
        "n",
        "No Op registered for Foo with domain_version of 18",
    ),
    "ir-version": (
        FROM_FILE.format("1 : FAIL") + IR_VERSION,
        None,
        "Unsupported model IR version: 99, max supported IR version: 14",
    ),
    "binding": ("Error in execution: At least one output.", None, "At least one output"),
    "slashes": ("while running Add node. Name:'/layer/Add' Status", "/layer/Add", None),
    "foreign": ("something else", None, "something else"),
}


@pytest.mark.parametrize(("text", "node", "sentence"), TEXTS.values(), ids=TEXTS.keys())
def test_texts_are_read(text: str, node: str | None, sentence: str | None) -> None:
    """The node's name and the sentence come out; codes, paths and signatures do not."""
    assert failing_node(text) == node
    if sentence is not None:
        assert clean_message(text) == sentence


def test_a_failing_kernel_is_one_sentence() -> None:
    """The whole text of a failure inside a run names runtime, node and reason."""
    feeds = draw(Problem())
    feeds["V"] = feeds["V"][:, :, :3]
    with get_runtime("ort-cpu").load(model(Problem()), LoadOptions()) as session, pytest.raises(SessionError) as caught:
        session.run(feeds)
    assert str(caught.value) == (
        "ort-cpu failed at node 'attend': K->Shape()[2] == V->Shape()[2] was false. inconsistent kv_sequence_length."
    )


def test_a_failing_fused_node_has_the_name_of_the_model() -> None:
    """A fusion renames nodes; the user knows only the names in the file."""
    feeds = draw(Problem())
    feeds["V"] = feeds["V"][:, :, :3]
    with get_runtime("ort-cpu").load(decomposed(), LoadOptions()) as session, pytest.raises(SessionError) as caught:
        session.run(feeds)
    assert str(caught.value) == "ort-cpu failed at node 'mix': MatMul dimension mismatch."


def test_a_refused_model_is_one_sentence() -> None:
    """The whole text of a refusal at load; the cause is kept."""
    x = helper.make_tensor_value_info("X", TensorProto.BFLOAT16, ["n"])
    y = helper.make_tensor_value_info("Y", TensorProto.BFLOAT16, ["n"])
    loaded = load_model(model_of([helper.make_node("Sin", ["X"], ["Y"], name="sine")], [x], [y], opset=18))
    with pytest.raises(SessionError) as caught:
        get_runtime("ort-cpu").load(loaded, LoadOptions())
    assert str(caught.value) == (
        "ort-cpu cannot load the model at node 'sine': Type Error: Type 'tensor(bfloat16)' of input parameter (X) "
        "of operator (Sin) in node (sine) is invalid."
    )
    assert caught.value.__cause__ is not None


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime's own log stays silent: what fails is raised."""
    feeds = draw(Problem())
    feeds["V"] = feeds["V"][:, :, :3]
    with get_runtime("ort-cpu").load(model(Problem(opset=25)), LoadOptions()) as session:
        with pytest.raises(SessionError):
            session.run(feeds)
        session.ran()
    assert capfd.readouterr() == ("", "")
