"""The bundle runs without us, says by its exit code what is so, has the same bytes every time and keeps secrets."""

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

_SPEC = AttentionSpec(q_num_heads=4, kv_num_heads=2, head_dim=16, v_head_dim=8, is_causal=True)
_HAS_THE_FAULT = pytest.mark.skipif(version("onnxruntime") != "1.32.0", reason="the fault of onnxruntime 1.32.0")


def _model(spec: AttentionSpec, dtype: Dtype = Dtype.FLOAT32) -> OnnxModel:
    return load_model(build_attention_model(spec, opset=minimum_opset(spec), dtype=dtype))


def _planted(name: str = "scale-missing", dtype: Dtype = Dtype.FLOAT32, runtime: str = "ort-cpu") -> ReducedCase:
    """A case that is wrong on a planted runtime, and so right on the real one."""
    sick = Planted(fault(name), name=runtime, real=get_runtime(runtime))
    found = reduce_model(_model(_SPEC, dtype), sick, CheckOptions(sizes={"q_seq_len": 5, "kv_seq_len": 6}))
    assert isinstance(found, ReducedCase)
    return found


@pytest.fixture(scope="module")
def planted() -> ReducedCase:
    return _planted()


def _run_alone(reduced: ReducedCase, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Unpack and run in an interpreter that has the packages, but neither us nor the user's settings."""
    write_bundle(folder / "case.zip", reduced)
    alone = folder / "alone"
    with zipfile.ZipFile(folder / "case.zip") as archive:
        archive.extractall(alone)
    # -S: no .pth file is read, which is how an editable install of ours is found.
    paths = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    environment = {"PYTHONPATH": os.pathsep.join(paths), "PATH": "", "OMP_NUM_THREADS": "1"}
    us = subprocess.run(
        [sys.executable, "-S", "-s", "-c", "import sdpa_onnx"],
        cwd=alone,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if "No module named 'sdpa_onnx'" not in us.stderr:
        pytest.skip("sdpa_onnx is installed beside its packages, so the program cannot be run without it")
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
    """The fault of today's onnxruntime: the difference is printed, exit code 1; outputs that are right say so."""
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
def test_right_runtime_ends_with_zero(runtime: str, tmp_path: Path) -> None:
    """A case that was wrong on a planted runtime is right on the real one: exit code 0."""
    try:
        available = get_runtime(runtime).available()
    except Exception:  # noqa: BLE001 - not registered here
        pytest.skip(f"{runtime} is not here")
    if isinstance(available, Unsupported):
        pytest.skip(available.reason)
    done = _run_alone(_planted(runtime=runtime), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("Y: right, 0 of 1 elements outside the bound")


def test_bfloat16(tmp_path: Path) -> None:
    """A fault in bfloat16 only stays in bfloat16: stored as float32, run in its own type."""

    def off(inputs: Arrays, outputs: Outputs) -> Outputs:
        if inputs["Q"].dtype.name != "bfloat16":
            return outputs
        return {name: (array.astype(np.float32) + np.float32(1)).astype(array.dtype) for name, array in outputs.items()}

    sick = Faulty(off, name="onnx-reference", real=get_runtime("onnx-reference"))
    found = reduce_model(_model(_SPEC, Dtype.BFLOAT16), sick, CheckOptions(sizes={"q_seq_len": 3, "kv_seq_len": 4}))
    assert isinstance(found, ReducedCase)
    assert found.case == "b1_hq1_hkv1_q1_kv1_d1_bf16"
    done = _run_alone(found, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    with np.load(io.BytesIO(bundle_files(found)["inputs.npz"])) as stored:
        assert {stored[name].dtype.name for name in stored.files} == {"float32"}


def test_refusal_is_reproduced(tmp_path: Path) -> None:
    """A runtime that raises: its own words, exit code 1."""
    found = reduce_model(_strange(), get_runtime("ort-cpu"), CheckOptions(sizes={}))
    assert isinstance(found, ReducedCase)
    done = _run_alone(found, tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("ort-cpu fails: Fail: ")
    assert "customer.domain:Strange(-1) is not a registered function/op" in done.stdout


def test_wrong_shape_and_nan_are_outside(planted: ReducedCase, tmp_path: Path) -> None:
    """The program's own comparison can fail: planted NaN, infinity, shape and a difference of twice the bound."""
    program = bundle_files(planted)["reproduce.py"].decode()
    names: dict[str, object] = {"__name__": "reproduce", "__file__": str(tmp_path / "reproduce.py")}
    exec(compile(program, "reproduce.py", "exec"), names)  # noqa: S102 - our own text
    compare = names["compare"]
    assert callable(compare)
    oracle, bound = np.array([1.0, 2.0]), np.array([0.25, 0.25])
    assert compare("Y", np.array([1.25, 2.0]), oracle, bound)
    assert compare("Y", np.array([1.0, np.nan]), np.array([1.0, np.nan]), bound)
    assert compare("Y", np.array([1.0, np.nan]), oracle, np.array([0.25, np.inf]))
    assert compare("Y", np.zeros((0, 2)), np.zeros((0, 2)), np.zeros((0, 2)))
    for wrong in ([1.5, 2.0], [np.nan, 2.0], [1.0, np.inf], [1.0, 2.0, 3.0]):
        assert not compare("Y", np.array(wrong), oracle, bound)


def test_suspicious_case_ends_with_zero_and_says_why(tmp_path: Path) -> None:
    """What is not proved wrong is called suspicious in program and README; inside the bound the exit code is 0."""

    def off(_: Arrays, outputs: Outputs) -> Outputs:
        return {name: (array * np.float64(1 + 1e-6)).astype(array.dtype) for name, array in outputs.items()}

    spec = replace(_SPEC, is_causal=False)
    check = CheckOptions(sizes={"q_seq_len": 40, "kv_seq_len": 64})
    found = reduce_model(_model(spec), Faulty(off), check, seconds=0.0)
    assert isinstance(found, ReducedCase)
    assert found.verdict is Verdict.SUSPICIOUS
    files = {name: bundle_files(found)[name].decode() for name in ("reproduce.py", "README.txt")}
    says = " is suspicious: All 2560 elements are within the proven bound, the worst at "
    assert says in files["reproduce.py"].splitlines()[0]
    assert says in files["README.txt"].splitlines()[0]
    assert files["README.txt"].endswith(
        "This case is suspicious, not proved wrong: every element lies inside its bound, but together they\n"
        "cannot be explained by rounding. So the program prints small differences and exits with 0.\n"
    )
    with np.load(io.BytesIO(bundle_files(found)["expected.npz"])) as stored:
        oracle, bound = stored["Y:oracle"], stored["Y:bound"]
    given = off({}, {"Y": oracle.astype(np.float32)})["Y"]
    assert bool((np.abs(given - oracle) <= bound).all())
    done = _run_alone(found, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Y: right, 0 of 2560 elements outside the bound; at ")


def test_openvino_sends_nothing() -> None:
    """The program switches the telemetry of OpenVINO off before it imports the package, in every place."""
    program = script("openvino", "It is wrong.", threads=1)
    off = 'sys.modules["openvino_telemetry"] = None'
    lines = [line.split("#")[0].strip() for line in program.splitlines()]
    imports = [number for number, line in enumerate(lines) if line.startswith(("import openvino", "from openvino"))]
    assert imports
    assert lines.index(off) < min(imports)


def test_unknown_runtime_says_how_to_plug_in() -> None:
    """A runtime of another package: the program has the place where it is written."""
    text = script("my-engine", "It is wrong.", threads=1)
    assert 'raise SystemExit("Write in run() how my-engine loads and runs a model.")' in text
    compile(text, "reproduce.py", "exec")


def test_text_that_would_break_the_program_is_refused() -> None:
    """Three quotes end a docstring."""
    with pytest.raises(PlanError) as raised:
        script("ort-cpu", 'a """ b', threads=1)
    assert str(raised.value) == ("What is wrong must be plain text, without quotes of three and backslashes.")


def test_same_bytes(planted: ReducedCase, tmp_path: Path) -> None:
    """Written twice, it is the same file; its members are the six."""
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
    """A folder in its place, or no folder at all; nothing is left behind."""
    with pytest.raises(PlanError, match=r"^\S+ is not a regular file\. Give the name of a file\.$"):
        write_bundle(tmp_path, planted)
    with pytest.raises(PlanError, match=r"^Cannot write \S+: No such file or directory\.$"):
        write_bundle(tmp_path / "no" / "a.zip", planted)
    assert list(tmp_path.iterdir()) == []


_SECRETS = ("customer", "secret", "layer_norm_of_acme", "/srv/alice", "alice")


def _strange() -> OnnxModel:
    """A model that is refused, full of what nobody else should read."""
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
    """Every file of a bundle, the arrays' own files inside too."""
    members = dict(bundle_files(reduced))
    for name in ("inputs.npz", "expected.npz"):
        with zipfile.ZipFile(io.BytesIO(members[name])) as archive:
            members |= {f"{name}/{inner}": archive.read(inner) for inner in archive.namelist()}
    return members


def test_anonymous_bundle_keeps_secrets() -> None:
    """Names, texts, paths, producer, weights and inputs are gone; only the operator that is refused stays by name."""
    model = _strange()
    weight = model.ir.graph.initializers["secret_weight"].const_value
    assert weight is not None
    found = reduce_model(model, get_runtime("ort-cpu"), CheckOptions(sizes={}))
    assert isinstance(found, ReducedCase)
    given = found.feeds["secret_a"]
    plain = b"".join(_members(found).values())
    assert b"secret_weight" in plain  # so that the search below could find something
    assert weight.numpy().tobytes() in plain
    made = anonymise(found, get_runtime("ort-cpu"))
    assert made.still_fails
    for name, content in _members(made.reduced).items():
        text = content.replace(b"customer.domain", b"")
        assert not [secret for secret in _SECRETS if secret.encode() in text], name
        for number in (*weight.numpy().flat, *given.flat):
            assert number.tobytes() not in content, name
    assert made.reduced.model.node_counts() == {"Strange": 1}


def test_no_bundle_tells_of_this_machine(planted: ReducedCase) -> None:
    """No folder, host or user of the machine that wrote it, anonymous or not."""
    places = (str(Path.cwd()), str(Path.home()), platform.node(), sys.prefix, getpass.getuser())
    words = [word for word in places if len(word) > 4]  # "root" may stand in any text
    for name, content in _members(planted).items():
        assert not [word for word in words if word.encode() in content], name


@pytest.mark.slow
def test_anonymous_attention_still_fails(module_model: OnnxModel) -> None:
    """Random numbers of the same scale: the planted fault is there again, on names without meaning."""
    runtime = Planted(fault("scale-missing"))
    found = reduce_model(module_model, runtime, CheckOptions(sizes={}))
    assert isinstance(found, ReducedCase)
    made = anonymise(found, runtime)
    assert made.still_fails
    assert sorted(made.reduced.feeds) == ["v0", "v1", "v2"]
    assert made.reduced.kind is Conformity.WRONG
    says = [reduced.message.partition(" It looks as if ")[2] for reduced in (found, made.reduced)]
    assert says[0] == says[1] != ""
    assert (made.reduced.found_in, made.reduced.dropped) == ("", ())


def test_anonymous_case_that_no_longer_fails() -> None:
    """A fault of one number goes with that number, and is not called by the old name."""

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
    """Sizes, axes and single numbers stay; a mask keeps its share, NaN its place."""
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
