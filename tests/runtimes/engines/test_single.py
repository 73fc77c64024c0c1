"""What only one engine does: its refusals before loading, and the sentence in its own error texts."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from sdpa_onnx.runtimes.worker.engines import emx, ort_plugin
from sdpa_onnx.runtimes.worker.engines.emx import Emx
from sdpa_onnx.runtimes.worker.engines.iree import Iree
from sdpa_onnx.runtimes.worker.engines.mnn import Mnn
from sdpa_onnx.runtimes.worker.engines.nxrt import Nxrt
from sdpa_onnx.runtimes.worker.engines.ort_plugin import OrtPlugin
from sdpa_onnx.runtimes.worker.engines.tract import Tract
from sdpa_onnx.runtimes.worker.fixed_sizes import fixed_sizes
from sdpa_onnx.runtimes.worker.model_file import data_files, model_file
from sdpa_onnx.runtimes.worker.pipe import RefusalError
from tests.runtimes.engines.jobs import bits_of, drawn, job_of, opened, plain_model, result_of
from tests.runtimes.models import Problem, proto_of


def node(
    op_type: str = "Attention", *, types: tuple[str, ...] = ("float32",) * 3, **attributes: float
) -> dict[str, Any]:
    given = [True] * len(types)
    return {"domain": "", "op_type": op_type, "types": list(types), "attributes": attributes, "inputs": given}


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({}, None),
        ({"left_window_size": -1, "right_window_size": -1}, None),
        ({"left_window_size": 0}, "ignores the windows of Attention"),
        ({"right_window_size": 2}, "ignores the windows of Attention"),
    ],
)
@pytest.mark.parametrize("engine", [Nxrt, Tract])
def test_windows_are_refused(engine: type[Any], attributes: dict[str, int], reason: str | None) -> None:
    """A window that hides something is refused; -1 hides nothing."""
    assert engine().refuses([node(**attributes)]) == reason
    assert engine().refuses([{**node(**attributes), "domain": "somebody"}]) is None


@pytest.mark.parametrize(
    ("engine", "attributes", "reason"),
    [
        (Nxrt, {"scale": 0.4}, None),
        (Nxrt, {"scale": -0.4}, "ignores the scale of MultiHeadAttention where it is negative"),
        (Nxrt, {"unidirectional": 1}, None),
        (Tract, {"scale": -0.4}, None),
        (Tract, {"unidirectional": 0}, None),
        (Tract, {"unidirectional": 1}, "ignores unidirectional of MultiHeadAttention"),
    ],
)
def test_ignored_attributes_are_refused(engine: type[Any], attributes: dict[str, float], reason: str | None) -> None:
    """An attribute that is ignored without a word is refused where it means something."""
    contrib = {**node("MultiHeadAttention", **attributes), "domain": "com.microsoft"}
    assert engine().refuses([contrib]) == reason
    assert engine().refuses([{**contrib, "domain": ""}]) is None


@pytest.mark.parametrize(
    ("dtype", "reason"), [("float16", None), ("bfloat16", "has no bfloat16"), ("float64", "has no float64")]
)
def test_mnn_refuses_types(dtype: str, reason: str | None) -> None:
    """MNN converts models of these types and computes something else."""
    assert Mnn().refuses([node("MatMul", types=(dtype, dtype))]) == reason


def test_mnn_computes_in_full_precision_where_it_is_judged() -> None:
    """Its own default may round to float16: that is what is timed, and not what is judged."""
    asked = [Mnn().settings(threads=2, purpose=purpose, optimise=True) for purpose in ("agreement", "timing")]
    assert [one["precision"] for one in asked] == ["high", "normal"]
    assert {one["numThread"] for one in asked} == {2}


TEXTS = {
    "tract cause": (
        Tract,
        (
            "running pass codegen\n\nCaused by:\n    0: codegen node #4 SDPA\n    1: Mask must be floating point\n\n"
            "Stack backtrace:\n   0: <anyhow::Error>::msg"
        ),
        "Mask must be floating point",
    ),
    "tract single cause": (
        Tract,
        "Building node a (Attention)\n\nCaused by:\n    Attention: softcap is not supported\n\nStack backtrace:\n 0",
        "Attention: softcap is not supported",
    ),
    "tract no cause": (
        Tract,
        "Clashing resolution. b=2 != 1.\n\nStack backtrace:\n 0: x",
        "Clashing resolution. b=2 != 1",
    ),
    "nxrt node": (
        Nxrt,
        (
            'internal executor error: node 102 ("a", op \'::Concat\', inputs ["x"] [Int64] [[]]) failed: '
            "kernel execution failed: Concat: input 0 is a scalar."
        ),
        "Concat: input 0 is a scalar",
    ),
    "nxrt file": (Nxrt, "failed to load ONNX model from /a/b.onnx: failed to parse", "failed to parse"),
    "iree operator": (
        Iree,
        (
            "Error invoking IREE compiler tool iree-compile\n<stdin>:8:10: error: failed to legalize operation "
            "'torch.operator' that was explicitly marked illegal: %0 = x <{name = \"onnx.Attention\"}>"
        ),
        "cannot lower the operator Attention",
    ),
    "iree compiler": (
        Iree,
        "Error invoking IREE compiler tool iree-compile\nDiagnostics:\n<stdin>:1:23: error: expected type\nmodule",
        "expected type",
    ),
    "iree call": (
        Iree,
        (
            "Error invoking function: c/runtime/x.c:1: INVALID_ARGUMENT; expected f32 but have f64; while invoking "
            "native function hal.buffer_view.assert; while calling import;\n[ 1] bytecode module.__init:292 -"
        ),
        "INVALID_ARGUMENT; expected f32 but have f64",
    ),
    "mnn operator": (
        Mnn,
        "Start to Convert\n[04:12:22] :220: These Op Not Support: ONNX::Attention \nConverted Failed!\n",
        "These Op Not Support: ONNX::Attention",
    ),
    "mnn file": (
        Mnn,
        "[04:12:22] :35: Check failed: success ==> read onnx model failed: /a/b\n",
        "Check failed: success ==> read onnx model failed",
    ),
    "mnn run": (Mnn, "Compute Shape Error for Y\ncode=3 in onForward, 666 \n", "Compute Shape Error for Y"),
    "emx gcc": (
        Emx,
        "model.c: In function 'f':\nmodel.c:3:9: error: unknown type name '__bf16'\n",
        "unknown type name '__bf16'",
    ),
    "emx advice": (Emx, "No size of x. Hint: pin it with --input-dim", "No size of x"),
}


@pytest.mark.parametrize(("engine", "text", "reason"), TEXTS.values(), ids=TEXTS.keys())
def test_the_reason_is_found(engine: type[Any], text: str, reason: str) -> None:
    """Of each runtime's texts, seen in its versions of 2026, the one clause that says what is wrong."""
    assert engine().explain(text) == reason


def test_mnn_refuses_wide_integers() -> None:
    """MNN computes with 32 bits; what does not fit is never wrapped."""
    pytest.importorskip("MNN", reason="MNN is missing")
    loaded = opened(Mnn(), plain_model())
    largest = np.array([2**31 - 1])
    assert loaded._given(largest) is not None
    with pytest.raises(RefusalError, match=r"^takes integers of 32 bits only$"):
        loaded._given(largest + 1)


@pytest.mark.slow
def test_emx_builds_a_limited_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """At sizes that were built it runs on; one more set of sizes is refused."""
    pytest.importorskip("emx_onnx_cgen", reason="emx-onnx-cgen is missing")
    monkeypatch.setattr(emx, "_MOST_BUILDS", 1)
    loaded = opened(Emx(), plain_model())
    first = result_of(loaded, drawn((1, 2, 3)))
    with pytest.raises(RefusalError, match=r"^builds a program for each set of sizes, and 1 for one model at most$"):
        result_of(loaded, drawn((1, 2, 4)))
    assert np.array_equal(result_of(loaded, drawn((1, 2, 3))), first)


@pytest.mark.slow
def test_emx_copies_a_cache() -> None:
    """The sizes at which gcc 12.2 at -O3 copies a third of the cache wrongly."""
    pytest.importorskip("emx_onnx_cgen", reason="emx-onnx-cgen is missing")
    lengths = {"Q": 5, "K": 7, "V": 7, "past_key": 3, "past_value": 3, "Y": 5, "present_key": 10, "present_value": 10}
    values = {name: helper.make_tensor_value_info(name, 1, [1, 1, size, 8]) for name, size in lengths.items()}
    names = list(values)
    attend = helper.make_node("Attention", [*names[:3], "", *names[3:5]], names[5:])
    graph = helper.make_graph([attend], "g", [values[name] for name in names[:5]], [values[name] for name in names[5:]])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((1, 1, lengths[name], 8)).astype(np.float32) for name in names[:5]}
    found = opened(Emx(), proto).run(bits_of(arrays))
    assert np.array_equal(found["present_key"], np.concatenate([arrays["past_key"], arrays["K"]], axis=2))
    assert np.array_equal(found["present_value"], np.concatenate([arrays["past_value"], arrays["V"]], axis=2))


@pytest.mark.parametrize("length", [1, 120, 127, 128, 200])
def test_locations_of_data_are_found(length: int, tmp_path: Path) -> None:
    """Names of every length, in folders too; one that leads out of the folder is left out."""
    model = plain_model()
    names = ["a" * length, "sub/b.bin", "../c.bin", "/d.bin"]
    for name in names:
        tensor = onnx.TensorProto(name=name, data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=name)
        tensor.external_data.add(key="offset", value="0")
        model.graph.initializer.append(tensor)
    assert data_files(model.SerializeToString()) == sorted(names[:2])


def test_data_lies_beside_the_file(tmp_path: Path) -> None:
    """A file whose data is there is read where it is; else data in a folder is a link, and all is removed."""
    model = plain_model()
    tensor = onnx.TensorProto(name="far", data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="sub/b.bin")
    model.graph.initializer.append(tensor)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.bin").write_bytes(b"1234")
    (tmp_path / "other.bin").write_bytes(b"5678")
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with model_file(job_of(model, model=str(tmp_path / "model.onnx"), folder=str(tmp_path))) as path:
        assert path == str(tmp_path / "model.onnx")
    with model_file(job_of(model, folder=str(tmp_path))) as path:
        assert (Path(path).parent / "sub" / "b.bin").read_bytes() == b"1234"
        assert not (Path(path).parent / "sub" / "b.bin").is_symlink()
        assert not (Path(path).parent / "other.bin").exists()
    assert not Path(path).parent.exists()


def test_sizes_follow_from_symbols_and_operators() -> None:
    """An axis of an output has the size of the input's axis of that name; the model itself is left alone."""
    model = plain_model()
    fixed = fixed_sizes(model, {"Q": (3, 2, 5, 8), "K": (3, 2, 7, 8), "V": (3, 2, 7, 8)})
    shapes = {
        value.name: [size.dim_value for size in value.type.tensor_type.shape.dim] for value in fixed.graph.value_info
    }
    assert [size.dim_value for size in fixed.graph.output[0].type.tensor_type.shape.dim] == [3, 2, 5, 8]
    assert shapes["scores"] == [3, 2, 5, 7]
    assert model == plain_model()


def test_what_follows_from_sizes_is_constant() -> None:
    """A range up to a length is known, with all that is computed of it; what reads an input or draws is left alone."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["length"]),
        helper.make_node("Range", ["zero", "length", "one"], ["range"]),
        helper.make_node("LessOrEqual", ["range", "one"], ["visible"]),
        helper.make_node("Expand", ["half", "shape"], ["halves"]),
        helper.make_node("RandomUniformLike", ["halves"], ["noise"]),
        helper.make_node("Where", ["visible", "x", "noise"], ["y"]),
    ]
    constants = [helper.make_tensor(name, 7, [], [value]) for name, value in (("zero", 0), ("one", 1))]
    constants.append(helper.make_tensor("half", 1, [], [0.5]))
    inputs, outputs = ([helper.make_tensor_value_info(name, 1, ["b", "n"])] for name in ("x", "y"))
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    fixed = fixed_sizes(model, {"x": (2, 3)})
    assert [each.op_type for each in fixed.graph.node] == ["Constant"] * 5 + ["RandomUniformLike", "Where"]
    found = {each.output[0]: numpy_helper.to_array(each.attribute[0].t) for each in fixed.graph.node[:5]}
    assert found["range"].tolist() == [0, 1, 2]
    assert found["visible"].tolist() == [True, True, False]
    assert [size.dim_value for size in fixed.graph.output[0].type.tensor_type.shape.dim] == [2, 3]


class _Distributions:
    """Installed packages, as `importlib.metadata` lists them."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def distributions(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(metadata={"Name": name}) for name in self._names]

    def version(self, name: str) -> str:
        if name not in [own.lower().replace("_", "-") for own in self._names]:
            raise PackageNotFoundError(name)
        return "1.2.3"


@pytest.mark.parametrize(
    ("names", "chosen", "found"),
    [
        (("onnxruntime", "Nxrt_EP_CPU"), None, "nxrt-ep-cpu"),
        (("onnxruntime-ep-b", "onnxruntime_ep_a", "nxrt-ep-cpu"), None, "nxrt-ep-cpu"),
        (("onnxruntime-ep-b", "onnxruntime_ep_a"), None, "onnxruntime-ep-a"),
        (("own-plugin", "nxrt-ep-cpu"), "own-plugin", "own-plugin"),
        (("onnxruntime",), None, None),
        (("nxrt-ep-cpu",), "own-plugin", None),
    ],
)
def test_a_plugin_is_found(
    names: tuple[str, ...], chosen: str | None, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first by name that follows a convention, or the one that is named; none is a missing package."""
    monkeypatch.setattr(ort_plugin, "metadata", _Distributions(*names))
    monkeypatch.delenv("SDPA_ONNX_ORT_PLUGIN", raising=False)
    if chosen is not None:
        monkeypatch.setenv("SDPA_ONNX_ORT_PLUGIN", chosen)
    if found is None:
        with pytest.raises(ImportError):
            OrtPlugin().version()
    else:
        assert OrtPlugin().version().startswith(f"{found} 1.2.3+onnxruntime.")


def test_a_plugin_that_runs_no_node_is_refused() -> None:
    """ONNX Runtime gives such a model to its CPU provider without a word: nxrt-ep-cpu takes no boolean mask."""
    pytest.importorskip("nxrt_ep_cpu", reason="nxrt-ep-cpu is missing")
    with pytest.raises(RefusalError, match=r"^runs no node of the model on cpu_ep; nodes by provider: CPUExecution"):
        opened(OrtPlugin(), proto_of(Problem(masked=True)))


def test_windows_are_refused_for_the_plugin_that_ignores_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another plugin is tried."""
    monkeypatch.delenv("SDPA_ONNX_ORT_PLUGIN", raising=False)
    for name, reason in (("nxrt-ep-cpu", "ignores the windows of Attention"), ("onnxruntime-ep-b", None)):
        monkeypatch.setattr(ort_plugin, "metadata", _Distributions(name))
        assert OrtPlugin().refuses([node(left_window_size=1)]) == reason
        assert OrtPlugin().refuses([node()]) is None
