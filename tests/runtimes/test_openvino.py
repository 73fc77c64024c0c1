"""OpenVINO: its own choice of arithmetic, what an attention becomes, silent acceptance, and no telemetry."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from sdpa_onnx.core.attention.spec import Dtype
from sdpa_onnx.errors import RuntimeUnavailableError, SessionError
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import LoadOptions, Purpose, RanReport, Unsupported, get_runtime
from sdpa_onnx.runtimes.openvino_ran import ExecutionNode, count_expanded, precision_of
from sdpa_onnx.runtimes.worker.engines.openvino import OpenVino
from sdpa_onnx.runtimes.worker.openvino_import import import_openvino
from tests.runtimes.models import LIMITS, PROBLEMS, Problem, decomposed, draw, formula, model, model_of

_ANSWER = get_runtime("openvino").available()
needs_openvino = pytest.mark.skipif(
    isinstance(_ANSWER, Unsupported), reason=_ANSWER.reason if isinstance(_ANSWER, Unsupported) else ""
)
PLAIN = PROBLEMS["plain"]


def ran(loaded: OnnxModel, *, purpose: Purpose = Purpose.AGREEMENT, optimise: bool = True) -> RanReport:
    with get_runtime("openvino").load(loaded, LoadOptions(purpose=purpose, optimise=optimise)) as session:
        return session.ran()


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra to install is named, before and at load."""
    monkeypatch.setitem(sys.modules, "openvino", None)
    reason = "openvino is missing: pip install 'sdpa-onnx[openvino]'"
    assert get_runtime("openvino").available() == Unsupported(reason)
    with pytest.raises(RuntimeUnavailableError) as caught:
        get_runtime("openvino").load(model(PLAIN), LoadOptions())
    assert str(caught.value) == f"Runtime 'openvino' is not available: {reason}."


QUIET = """
import os, sys
seen = []
sys.addaudithook(lambda event, args: seen.append(event) if event in ("socket.connect", "os.fork") else None)
from sdpa_onnx.runtimes.base import LoadOptions, Purpose, get_runtime
from tests.runtimes.models import PROBLEMS, draw, model
for purpose in Purpose:
    with get_runtime("openvino").load(model(PROBLEMS["plain"]), LoadOptions(purpose=purpose)) as session:
        session.run(draw(PROBLEMS["plain"]))
        session.ran()
import openvino.tools.ovc as converter
print(seen, os.listdir(os.environ["HOME"]), converter.telemetry_utils.tm.__name__, "openvino_telemetry" in sys.modules)
"""


@needs_openvino
def test_no_telemetry_is_sent(tmp_path: Path) -> None:
    """No connection, no child process, no client id in the home folder, and the package itself stays usable."""
    hidden = {"CI", "TF_BUILD", "JENKINS_URL"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [sys.executable, "-c", QUIET],
        env={**environment, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[] [] openvino.tools.ovc.telemetry_stub False\n"


def test_telemetry_that_the_user_imported_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be imported while OpenVINO is, and is put back afterwards."""
    seen = []

    def watch(name: str) -> object:
        seen.append((name, sys.modules["openvino_telemetry"]))
        return sys

    monkeypatch.setitem(sys.modules, "openvino_telemetry", os)
    monkeypatch.setitem(sys.modules, "openvino", sys)
    monkeypatch.delitem(sys.modules, "openvino")
    monkeypatch.setattr("sdpa_onnx.runtimes.worker.openvino_import.import_module", watch)
    assert import_openvino() is sys
    assert seen == [("openvino", None)]
    assert sys.modules["openvino_telemetry"] is os


@needs_openvino
@pytest.mark.parametrize(
    ("dtype", "precision", "warning"),
    [
        ("float32", "float32", None),
        ("float16", "float16", "OpenVINO ran this float16 model in float32."),
        ("bfloat16", "bfloat16", None),
        ("float64", "float32", "OpenVINO ran this float64 model in float32."),
    ],
)
def test_agreement_is_never_weaker_than_declared(dtype: str, precision: str, warning: str | None) -> None:
    """Asked for exact arithmetic, it never falls to its default, on any CPU."""
    report = ran(decomposed(dtype))
    assert report.precision == precision
    assert report.warnings == (() if warning is None else (warning,))


@needs_openvino
def test_what_is_timed_says_its_true_precision() -> None:
    """Left alone it may compute float32 in bfloat16; then the report says so, and the error shows that it is true."""
    problem = Problem(q_seq_len=64, kv_seq_len=64, head_dim=64, v_head_dim=64)
    feeds = draw(problem)
    loaded = model(problem)
    with get_runtime("openvino").load(loaded, LoadOptions(purpose=Purpose.TIMING)) as session:
        report = session.ran()
        error = np.abs(session.run(feeds)["Y"] - formula(problem, feeds)).max()
    core = import_openvino().Core()
    default = core.get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name()
    if default == "f32":
        assert report.precision == "float32"
        assert error < 1e-6
    else:
        assert default == "bf16"
        assert report.precision == "bfloat16"
        assert "OpenVINO ran this float32 model in bfloat16." in report.warnings
        assert error > 1e-5


@pytest.mark.parametrize(
    ("dtype", "hint", "precision", "computed"),
    [
        (Dtype.FLOAT32, "f32", "float32", None),
        (Dtype.FLOAT32, "bf16", "bfloat16", "bfloat16"),
        (Dtype.FLOAT32, "f16", "float16-accumulation", "float16"),
        (Dtype.FLOAT16, "f32", "float16", "float32"),
        (Dtype.FLOAT16, "f16", "float16-accumulation", None),
        (Dtype.FLOAT16, "bf16", "bfloat16", "bfloat16"),
        (Dtype.BFLOAT16, "f32", "bfloat16", None),
        (Dtype.BFLOAT16, "bf16", "bfloat16", None),
        (Dtype.FLOAT64, "f32", "float32", "float32"),
        (Dtype.FLOAT64, "bf16", "bfloat16", "bfloat16"),
        (Dtype.FLOAT32, "dynamic", "float32", None),
    ],
)
def test_precision_by_hint(dtype: Dtype, hint: str, precision: str, computed: str | None) -> None:
    """What the hint makes of each type, also on CPUs that are not this one."""
    warnings = () if computed is None else (f"OpenVINO ran this {dtype.value} model in {computed}.",)
    assert precision_of(dtype, hint) == (precision, warnings)


@needs_openvino
def test_an_attention_becomes_several_layers() -> None:
    """The report counts the layers of each Attention and nothing around it."""
    shape = ["batch", 2, "len", 8]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "QKV"]
    output = helper.make_tensor_value_info("Y", TensorProto.FLOAT, shape)
    nodes = [
        helper.make_node("Sin", ["Q"], ["P"]),
        helper.make_node("Attention", ["P", "K", "V"], ["A"], name="first"),
        helper.make_node("Sin", ["A"], ["B"], name="sin"),
        helper.make_node("Cos", ["B"], ["C"]),
        helper.make_node("Attention", ["C", "K", "V"], ["Y"]),
    ]
    once = ran(model(PLAIN)).expanded["Attention"]
    report = ran(load_model(model_of(nodes, inputs, [output], opset=23)))
    assert once > 1
    assert report.expanded == {"Attention": 2 * once}
    assert report.warnings == (f"2 Attention nodes were expanded into {2 * once} nodes.",)
    assert report.providers == {"CPU": 2 * once + 3}
    assert sum(report.node_counts.values()) == 2 * once + 3


@needs_openvino
def test_threads_that_it_does_not_take_are_told() -> None:
    """OpenVINO takes no more threads than there are cores, and does not say so itself."""
    with get_runtime("openvino").load(decomposed(), LoadOptions(threads=10_000)) as session:
        used = session.live.ran("", with_graph=False)["threads"]
        told = f"openvino used {used} thread{'s' * (used != 1)}, not 10000 as requested."
        assert session.ran().warnings == (told,)
    assert ran(decomposed()).warnings == ()


@needs_openvino
def test_fused_layers_and_their_absence() -> None:
    """The product, the softmax and the product are one layer, unless optimisation is off."""
    assert ran(decomposed()).fused == {"Subgraph": 1}
    plain = ran(decomposed(), optimise=False)
    assert plain.fused == {}
    assert plain.node_counts["MatMul"] == 2
    assert ran(decomposed()).expanded == plain.expanded == {}


def test_one_layer_is_no_expansion() -> None:
    """A kernel of OpenVINO's own for the whole operator counts as native; its output cast belongs to it."""
    whole = {
        "Q": ExecutionNode(layer="Input", names=("Q",)),
        "Y": ExecutionNode(layer="ScaledDotProductAttention", names=("Y",), sources=("Q",)),
    }
    assert count_expanded(model(PLAIN), whole) == {}
    cast = {**whole, "Y.0": ExecutionNode(layer="Convert", names=("Y.0",), sources=("Y",))}
    assert count_expanded(model(PLAIN), cast) == {"Attention": 2}


@needs_openvino
def test_an_input_that_nothing_reads_may_be_given() -> None:
    """The importer drops it; the array for it is checked and then left out."""
    x, unread, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("X", "U", "Y"))
    loaded = load_model(model_of([helper.make_node("Neg", ["X"], ["Y"])], [unread, x], [y], opset=18))
    array = np.ones((2, 3), np.float32)
    with get_runtime("openvino").load(loaded, LoadOptions()) as session:
        assert np.array_equal(session.run({"U": 5 * array, "X": array})["Y"], -array)
        with pytest.raises(SessionError) as caught:
            session.run({"X": array})
    assert str(caught.value) == "openvino got no array for 'U'; the model takes 'U', 'X'."


@needs_openvino
def test_a_default_that_cannot_be_replaced_is_refused() -> None:
    """OpenVINO makes an input with a default a constant: an array for it must not be lost in silence."""
    x, c, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("X", "C", "Y"))
    constant = helper.make_tensor("C", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    nodes = [helper.make_node("Add", ["X", "C"], ["Y"])]
    loaded = load_model(model_of(nodes, [x, c], [y], opset=18, constants=(constant,)))
    array = np.ones(3, np.float32)
    with get_runtime("openvino").load(loaded, LoadOptions()) as session:
        assert session.run({"X": array})["Y"].tolist() == [2.0, 3.0, 4.0]
        with pytest.raises(SessionError) as caught:
            session.run({"X": array, "C": array})
    assert str(caught.value) == "openvino holds input 'C' at its default and takes no array for it."


@needs_openvino
def test_bound_inputs_are_read_anew() -> None:
    """What changes in a bound array is seen by the next call, and a copied result stays."""
    feeds = draw(PLAIN)
    with get_runtime("openvino").load(model(PLAIN), LoadOptions()) as session:
        bound = session.bind(feeds)
        before = bound.outputs()["Y"]
        feeds["V"][...] *= 2
        bound()
        assert np.abs(bound.outputs()["Y"] - 2 * before).max() < LIMITS["float32"]
        assert np.abs(before - session.run(draw(PLAIN))["Y"]).max() < LIMITS["float32"]


@needs_openvino
def test_an_unknown_operator_is_refused_in_words() -> None:
    """The reason is in the message, without places in OpenVINO's source."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("X", "Y"))
    loaded = load_model(model_of([helper.make_node("Foo", ["X"], ["Y"], domain="com.microsoft")], [x], [y], opset=18))
    with pytest.raises(SessionError) as caught:
        get_runtime("openvino").load(loaded, LoadOptions())
    assert str(caught.value) == (
        "openvino cannot load the model: Model wasn't fully converted. "
        "-- No conversion rule found for operations: com.microsoft.Foo."
    )
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            "Exception from src/a/core.cpp:117:\nException from src/b.cpp:54:\nWrong value x. Y\n\n\n",
            "Wrong value x. Y",
        ),
        (
            "Exception from src/a.cpp:1:\nCheck 'shape.compatible(other)' failed at src/b.cpp:2:\n",
            "not true: shape.compatible(other)",
        ),
        ("Check 'false' failed at src/b.cpp:2:\nThe sizes 3 and 4 differ.\n", "The sizes 3 and 4 differ"),
    ],
)
def test_error_texts_are_cleaned(message: str, text: str) -> None:
    """One line with the reason; a bare condition where there is no other reason."""
    assert OpenVino().explain(message) == text
