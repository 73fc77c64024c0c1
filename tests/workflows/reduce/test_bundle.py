"""The bundle runs without sdpa_onnx, reports by its exit code, is byte-identical each time and leaks no secret."""

import getpass
import io
import json
import os
import platform
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sdpa_onnx.core.attention.spec import AttentionSpec, Dtype, MaskKind
from sdpa_onnx.core.records.records import Conformity, Verdict
from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.attention_node import build_attention_model, minimum_opset
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import Unsupported, get_runtime
from sdpa_onnx.workflows.check.check_options import CheckOptions
from sdpa_onnx.workflows.reduce.anonymous import anonymise
from sdpa_onnx.workflows.reduce.anonymous_graph import generic_model, random_like
from sdpa_onnx.workflows.reduce.bundle import bundle_files, write_bundle
from sdpa_onnx.workflows.reduce.bundle_script import script
from sdpa_onnx.workflows.reduce.search import ReducedCase, reduce_model
from tests.sweep.fakes import Arrays, Faulty, Outputs
from tests.workflows.planted_runtime import Planted, fault
from tests.workflows.stateful_runtime import Stateful, first_key_count

_SPEC = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=16, v_head_dim=8, is_causal=True)
_PLAIN = AttentionSpec(q_num_heads=2, kv_num_heads=1, head_dim=8)
_HAS_THE_FAULT = pytest.mark.skipif(version("onnxruntime") != "1.32.0", reason="the fault of onnxruntime 1.32.0")


def _model(spec: AttentionSpec, dtype: Dtype = Dtype.FLOAT32) -> OnnxModel:
    return load_model(build_attention_model(spec, opset=minimum_opset(spec), dtype=dtype))


def _planted(name: str = "scale-missing", dtype: Dtype = Dtype.FLOAT32, runtime: str = "ort-cpu") -> ReducedCase:
    """A case that is wrong on a runtime with a planted fault and right on the real runtime."""
    faulty = Planted(fault(name), name=runtime, real=get_runtime(runtime))
    found = reduce_model(_model(_SPEC, dtype), faulty, CheckOptions(sizes={"q_seq_len": 5, "kv_seq_len": 6}))
    assert isinstance(found, ReducedCase)
    return found


@pytest.fixture(scope="module")
def planted() -> ReducedCase:
    return _planted()


def _run_alone(reduced: ReducedCase, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Unpack and run in an interpreter that has the packages, but neither sdpa_onnx nor the user's settings."""
    write_bundle(folder / "case.zip", reduced)
    alone = folder / "alone"
    with zipfile.ZipFile(folder / "case.zip") as archive:
        archive.extractall(alone)
    # -S: ignore .pth files, through which an editable install of sdpa_onnx is found.
    paths = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    environment = {"PYTHONPATH": os.pathsep.join(paths), "PATH": "", "OMP_NUM_THREADS": "1"}
    own_import = subprocess.run(
        [sys.executable, "-S", "-s", "-c", "import sdpa_onnx"],
        cwd=alone,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if "No module named 'sdpa_onnx'" not in own_import.stderr:
        pytest.skip("sdpa_onnx is installed next to its dependencies, so the script cannot run without it")
    return subprocess.run(
        [sys.executable, "-S", "-s", str(alone / "reproduce.py")],
        cwd=alone,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@_HAS_THE_FAULT
def test_wrong_runtime_is_reproduced(tmp_path: Path) -> None:
    """The fault of onnxruntime 1.32.0: the script prints the difference and exits with 1; other outputs are right."""
    spec = replace(_SPEC, has_past=True)
    found = reduce_model(_model(spec), get_runtime("ort-cpu"), CheckOptions(sizes={}))
    assert isinstance(found, ReducedCase)
    done = _run_alone(found, tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[0] == (
        "Y: WRONG, 1 of 1 elements outside the bound; at (0, 0, 0, 0) got 0.333333343, expected 0.5, "
        "difference 0.167, bound 5.07e-07"
    )
    assert [line.split(",")[0] for line in lines[1:]] == ["present_key: right", "present_value: right"]


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["ort-cpu", "onnx-reference", "openvino"])
def test_right_runtime_exits_with_zero(runtime: str, tmp_path: Path) -> None:
    """A case that was wrong on a planted runtime is right on the real one: exit code 0."""
    try:
        available = get_runtime(runtime).available()
    except Exception:  # noqa: BLE001 - not registered
        pytest.skip(f"{runtime} is not installed")
    if isinstance(available, Unsupported):
        pytest.skip(available.reason)
    done = _run_alone(_planted(runtime=runtime), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("Y: right, 0 of 1 elements outside the bound")


def test_bfloat16(tmp_path: Path) -> None:
    """A fault that exists only in bfloat16 stays in bfloat16: inputs are stored as float32 and run as bfloat16."""

    def off(inputs: Arrays, outputs: Outputs) -> Outputs:
        if inputs["Q"].dtype.name != "bfloat16":
            return outputs
        return {name: (array.astype(np.float32) + np.float32(1)).astype(array.dtype) for name, array in outputs.items()}

    faulty = Faulty(off, name="onnx-reference", real=get_runtime("onnx-reference"))
    found = reduce_model(_model(_SPEC, Dtype.BFLOAT16), faulty, CheckOptions(sizes={"q_seq_len": 3, "kv_seq_len": 4}))
    assert isinstance(found, ReducedCase)
    assert found.case == "b1_hq1_hkv1_q1_kv1_d1_bf16"
    done = _run_alone(found, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    with np.load(io.BytesIO(bundle_files(found)["inputs.npz"])) as stored:
        assert {stored[name].dtype.name for name in stored.files} == {"float32"}


def test_refusal_is_reproduced(tmp_path: Path) -> None:
    """If the runtime raises, the script prints its error and exits with 1."""
    found = reduce_model(_strange(), get_runtime("ort-cpu"), CheckOptions(sizes={}))
    assert isinstance(found, ReducedCase)
    done = _run_alone(found, tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("ort-cpu fails: Fail: ")
    assert "customer.domain:Strange(-1) is not a registered function/op" in done.stdout


def test_wrong_shape_and_nan_are_outside(planted: ReducedCase, tmp_path: Path) -> None:
    """The script's comparison fails on a planted NaN, infinity, wrong shape and an error of twice the bound."""
    program = bundle_files(planted)["reproduce.py"].decode()
    names: dict[str, object] = {"__name__": "reproduce", "__file__": str(tmp_path / "reproduce.py")}
    exec(compile(program, "reproduce.py", "exec"), names)  # noqa: S102 - text generated by sdpa_onnx
    compare = names["compare"]
    assert callable(compare)
    oracle, bound = np.array([1.0, 2.0]), np.array([0.25, 0.25])
    assert compare("Y", np.array([1.25, 2.0]), oracle, bound)
    assert compare("Y", np.array([1.0, np.nan]), np.array([1.0, np.nan]), bound)
    assert compare("Y", np.array([1.0, np.nan]), oracle, np.array([0.25, np.inf]))
    assert compare("Y", np.zeros((0, 2)), np.zeros((0, 2)), np.zeros((0, 2)))
    for wrong in ([1.5, 2.0], [np.nan, 2.0], [1.0, np.inf], [1.0, 2.0, 3.0]):
        assert not compare("Y", np.array(wrong), oracle, bound)


def test_suspicious_case_exits_with_zero_and_explains_it(tmp_path: Path) -> None:
    """A failure that is not proved is called suspicious in script and README; inside the bound the exit code is 0."""

    def off(_: Arrays, outputs: Outputs) -> Outputs:
        return {name: (array * np.float64(1 + 1e-6)).astype(array.dtype) for name, array in outputs.items()}

    spec = replace(_SPEC, is_causal=False)
    check = CheckOptions(sizes={"q_seq_len": 40, "kv_seq_len": 64})
    found = reduce_model(_model(spec), Faulty(off), check, seconds=0.0)
    assert isinstance(found, ReducedCase)
    assert found.verdict is Verdict.SUSPICIOUS
    files = {name: bundle_files(found)[name].decode() for name in ("reproduce.py", "README.txt")}
    headline = " is suspicious: All 2560 elements are within the proven bound, the worst at "
    assert headline in files["reproduce.py"].splitlines()[0]
    assert headline in files["README.txt"].splitlines()[0]
    assert files["README.txt"].endswith(
        "This case is suspicious, not proved wrong: every element is inside its bound, but rounding does not\n"
        "explain the errors together. So the script prints small differences and exits with 0.\n"
    )
    with np.load(io.BytesIO(bundle_files(found)["expected.npz"])) as stored:
        oracle, bound = stored["Y:oracle"], stored["Y:bound"]
    faulty_output = off({}, {"Y": oracle.astype(np.float32)})["Y"]
    assert bool((np.abs(faulty_output - oracle) <= bound).all())
    done = _run_alone(found, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Y: right, 0 of 2560 elements outside the bound; at ")


def test_openvino_sends_nothing() -> None:
    """The script disables OpenVINO's telemetry before every import of the package."""
    program = script("openvino", "It is wrong.", threads=1)
    off = 'sys.modules["openvino_telemetry"] = None'
    lines = [line.split("#")[0].strip() for line in program.splitlines()]
    imports = [number for number, line in enumerate(lines) if line.startswith(("import openvino", "from openvino"))]
    assert imports
    assert lines.index(off) < min(imports)


def test_unknown_runtime_gets_a_placeholder() -> None:
    """For a runtime of another package the script has a placeholder for the code that runs it."""
    text = script("my-engine", "It is wrong.", threads=1)
    assert 'raise SystemExit("Write the code in load() that loads and runs a model in my-engine.")' in text
    compile(text, "reproduce.py", "exec")


def test_text_that_would_break_the_script_is_refused() -> None:
    """Triple quotes would end the docstring of the script."""
    with pytest.raises(PlanError) as raised:
        script("ort-cpu", 'a """ b', threads=1)
    assert str(raised.value) == "The description of the failure must not contain triple quotes or backslashes."


def test_same_bytes(planted: ReducedCase, tmp_path: Path) -> None:
    """Two bundles of one case are byte-identical and have the six members."""
    first, second = (write_bundle(tmp_path / name, planted).read_bytes() for name in ("a.zip", "b.zip"))
    assert first == second
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        assert archive.namelist() == [
            "README.txt",
            "expected.npz",
            "inputs.npz",
            "model.onnx",
            "reproduce.py",
            "versions.json",
        ]
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        versions = json.loads(archive.read("versions.json"))
    assert versions["packages"]["onnx"] == version("onnx")
    assert set(versions) == {"runtime", "runtime_version", "packages", "python", "system", "machine"}


def test_cannot_be_written(planted: ReducedCase, tmp_path: Path) -> None:
    """A path that is a folder and a path in a missing folder are refused; no temporary file remains."""
    with pytest.raises(PlanError, match=r"^\S+ is not a regular file\. Give the name of a file\.$"):
        write_bundle(tmp_path, planted)
    with pytest.raises(PlanError, match=r"^Cannot write \S+: No such file or directory\.$"):
        write_bundle(tmp_path / "no" / "a.zip", planted)
    assert list(tmp_path.iterdir()) == []


_SECRETS = ("customer", "secret", "layer_norm_of_acme", "/srv/alice", "alice")


def _strange() -> OnnxModel:
    """A refused model full of confidential names, paths and weights."""
    weight = np.random.default_rng(7).standard_normal((4, 4)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["customer_x", "secret_weight"], ["secret_a"], name="layer_norm_of_acme"),
        helper.make_node("Strange", ["secret_a", "secret_weight"], ["secret_b"], domain="customer.domain", name="n"),
    ]
    nodes[1].doc_string = "/srv/alice/model.py"
    inputs = [helper.make_tensor_value_info("customer_x", TensorProto.FLOAT, ["customer_batch", 4])]
    outputs = [helper.make_tensor_value_info("secret_b", TensorProto.FLOAT, ["customer_batch", 4])]
    info = [helper.make_tensor_value_info("secret_a", TensorProto.FLOAT, ["customer_batch", 4])]
    graph = helper.make_graph(
        nodes, "secret_graph", inputs, outputs, [numpy_helper.from_array(weight, "secret_weight")], value_info=info
    )
    graph.doc_string = "by alice"
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("customer.domain", 1), helper.make_opsetid("secret", 1)]
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=imports, ir_version=10, producer_name="alice", doc_string="secret"
    )
    model.metadata_props.add(key="path", value="/srv/alice/secret")
    return load_model(model)


def _members(reduced: ReducedCase) -> dict[str, bytes]:
    """Every file of a bundle, with the members of its .npz files."""
    members = dict(bundle_files(reduced))
    for name in ("inputs.npz", "expected.npz"):
        with zipfile.ZipFile(io.BytesIO(members[name])) as archive:
            members |= {f"{name}/{inner}": archive.read(inner) for inner in archive.namelist()}
    return members


def test_anonymous_bundle_leaks_no_secret() -> None:
    """Names, texts, paths, producer, weights and inputs are gone; only the name of the refused operator stays."""
    model = _strange()
    weight = model.ir.graph.initializers["secret_weight"].const_value
    assert weight is not None
    found = reduce_model(model, get_runtime("ort-cpu"), CheckOptions(sizes={}))
    assert isinstance(found, ReducedCase)
    feed = found.feeds["secret_a"]
    plain = b"".join(_members(found).values())
    assert b"secret_weight" in plain  # proves that the search below can find it
    assert weight.numpy().tobytes() in plain
    made = anonymise(found, get_runtime("ort-cpu"))
    assert made.still_fails
    for name, content in _members(made.reduced).items():
        text = content.replace(b"customer.domain", b"")
        assert not [secret for secret in _SECRETS if secret.encode() in text], name
        for number in (*weight.numpy().flat, *feed.flat):
            assert number.tobytes() not in content, name
    assert made.reduced.model.node_counts() == {"Strange": 1}


def test_no_bundle_identifies_this_machine(planted: ReducedCase) -> None:
    """A bundle contains no folder, host name or user name of the machine that wrote it."""
    identifiers = (str(Path.cwd()), str(Path.home()), platform.node(), sys.prefix, getpass.getuser())
    long_enough = [text for text in identifiers if len(text) > 4]  # "root" may occur in any text
    for name, content in _members(planted).items():
        assert not [text for text in long_enough if text.encode() in content], name


@pytest.mark.slow
def test_anonymous_attention_still_fails(module_model: OnnxModel) -> None:
    """With random numbers of the same scale and generic names the planted fault occurs again."""
    runtime = Planted(fault("scale-missing"))
    found = reduce_model(module_model, runtime, CheckOptions(sizes={}))
    assert isinstance(found, ReducedCase)
    made = anonymise(found, runtime)
    assert made.still_fails
    assert sorted(made.reduced.feeds) == ["v0", "v1", "v2"]
    assert made.reduced.kind is Conformity.WRONG
    explanations = [reduced.message.partition(" It looks as if ")[2] for reduced in (found, made.reduced)]
    assert explanations[0] == explanations[1] != ""
    assert (made.reduced.found_in, made.reduced.dropped) == ("", ())


def test_anonymous_case_that_no_longer_fails() -> None:
    """A fault that needs one particular number disappears with it, and the old message is not kept."""

    def off_at_seven(inputs: Arrays, outputs: Outputs) -> Outputs:
        return {name: array + np.float32(np.any(inputs["V"] == 7.0)) for name, array in outputs.items()}

    arrays = {name: np.full((1, heads, 2, width), 7.0, np.float32) for name, heads, width in _SHAPES}
    found = reduce_model(_model(_SPEC), Faulty(off_at_seven), CheckOptions(sizes={}, inputs=arrays))
    assert isinstance(found, ReducedCase)

    def off_at_seven_by_any_name(inputs: Arrays, outputs: Outputs) -> Outputs:
        seven = any(np.any(array == 7.0) for array in inputs.values())
        return {name: array + np.float32(seven) for name, array in outputs.items()}

    made = anonymise(found, Faulty(off_at_seven_by_any_name))
    assert not made.still_fails
    assert made.reduced.message.startswith("All ")


_SHAPES = (("Q", 4, 16), ("K", 2, 16), ("V", 2, 8))


def test_anonymous_graph_keeps_structure() -> None:
    """Sizes, axes and single numbers stay; a mask keeps its share of True, NaN and infinity their positions."""
    spec = replace(_SPEC, mask=MaskKind.BOOL, scale=0.3)
    rng = np.random.default_rng(0)
    model, names = generic_model(_model(spec), rng)
    assert names["Q"] == "v0"
    assert model.sites[0].spec == spec
    assert model.is_bare_attention
    array = np.array([1.0, np.nan, 3.0, -np.inf], np.float32)
    drawn = random_like(array, rng)
    assert np.isnan(drawn).tolist() == [False, True, False, False]
    assert np.isneginf(drawn[3])
    assert drawn[0] != 1.0
    mask = random_like(np.arange(1000) < 900, rng)
    assert 0.85 < mask.mean() < 0.95
    assert random_like(np.array([3, 3], np.int64), rng).tolist() == [3, 3]


def test_a_sequence_is_in_the_bundle(tmp_path: Path) -> None:
    """A failure after another run: inputs of both, and a script that runs the last one fresh and after the other."""
    found = reduce_model(_model(_PLAIN), Stateful(first_key_count), CheckOptions(sizes={}))
    assert isinstance(found, ReducedCase)
    assert {"before_1.npz", "inputs.npz"} <= set(bundle_files(found))
    done = _run_alone(found, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")  # the fault is planted: the real runtime is right
    first, fresh, second, after = done.stdout.splitlines()
    assert first == "In a fresh session:"
    assert second == "In a session after a run on Q (1, 1, 1, 1), K (1, 1, 1, 1), V (1, 1, 1, 1):"
    assert fresh == after
    assert fresh.startswith("Y: right, 0 of 1 elements outside the bound")
    members = _members(found)
    assert b"before_1.npz   inputs of the runs of the same session before it" in members["README.txt"]


@pytest.mark.slow
def test_openvino_after_one_key_is_reproduced(tmp_path: Path) -> None:
    """OpenVINO 2026.4.1: the bundle alone shows a run that is right in a fresh session and wrong after one key."""
    runtime = get_runtime("openvino")
    if isinstance(runtime.available(), Unsupported) or "2026.4.1" not in runtime.version():
        pytest.skip("the fault of OpenVINO 2026.4.1")
    found = reduce_model(_model(_PLAIN), runtime, CheckOptions(sizes={}), seconds=300.0)
    assert isinstance(found, ReducedCase)
    assert found.message.startswith("Wrong after a run at batch_size 1, q_seq_len 1, kv_seq_len 1; right in a fresh ")
    done = _run_alone(found, tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert [line.split(",")[0] for line in done.stdout.splitlines()[1::2]] == ["Y: right", "Y: WRONG"]
