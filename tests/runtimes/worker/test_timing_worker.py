"""Workers that work: what they load, time and tell, with real processes."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper

from sdpa_onnx.errors import PlanError
from sdpa_onnx.graph.model import load_model
from sdpa_onnx.measure.arm_settings import arm_settings, place_of
from sdpa_onnx.measure.what_ran import worker_report
from sdpa_onnx.runtimes.arm_job import ArmJob, KernelTimes
from sdpa_onnx.runtimes.array_files import read_arrays, write_arrays
from sdpa_onnx.runtimes.base import LoadOptions, Purpose, get_runtime
from sdpa_onnx.runtimes.engine_runtime import graph_names
from sdpa_onnx.runtimes.timing_worker import TimingWorker
from sdpa_onnx.runtimes.workers import WorkerFailedError
from tests.runtimes.worker.environments import NUMPY, ONNXRUNTIME, ORT, environment

PATIENCE = 60.0


def job(made: Path, runtime: str = "ort-cpu") -> ArmJob:
    return ArmJob(
        runtime=runtime,
        engine=place_of(runtime),
        model=made / "model.onnx",
        inputs=made / "inputs",
        names=graph_names(load_model(made / "model.onnx")),
        settings=arm_settings(runtime, threads=1),
    )


@pytest.fixture(scope="module")
def worker() -> Iterator[TimingWorker]:
    """One process for all that leaves it alive."""
    with TimingWorker(ORT, python=None, threads=1, patience_seconds=PATIENCE) as worker:
        worker.wait_ready()
        yield worker


def test_load_and_visit(worker: TimingWorker, folder: Path) -> None:
    """Every call of a visit has both its times; what loading took and what memory it holds is told."""
    loaded = worker.load(replace(job(folder), new_length_inputs=folder / "longer", copies=3))
    visits = [worker.visit(7), worker.visit(2)]
    assert [len(visit.wall_ns) for visit in visits] == [7, 2]
    assert all((visit.wall_ns > 0).all() and (visit.cpu_ns > 0).all() for visit in visits)
    assert all(visit.switches >= 0 and visit.faults >= 0 and visit.clock_mhz == -1.0 for visit in visits)
    assert min(loaded.create_seconds, loaded.first_seconds, loaded.new_length_seconds) > 0
    assert loaded.version == get_runtime("ort-cpu").version()
    assert (loaded.device, loaded.warnings) == ("cpu", ())
    assert loaded.loaded_bytes > 2**20
    assert loaded.peak_bytes >= -1


@pytest.mark.parametrize(
    "runtime",
    [
        "ort-cpu",
        pytest.param("openvino", marks=pytest.mark.slow),
        pytest.param("onnx-reference", marks=pytest.mark.slow),
    ],
)
def test_outputs_and_report_are_the_runtimes_own(folder: Path, runtime: str, tmp_path: Path) -> None:
    """A worker computes what our session computes, in as many copies as asked for, and says the same of what ran."""
    model = load_model(folder / "model.onnx")
    with TimingWorker(place_of(runtime), python=None, threads=1, patience_seconds=PATIENCE) as worker:
        loaded = worker.load(replace(job(folder, runtime), copies=2))
        worker.visit(4)
        worker.outputs(tmp_path / "outputs")
        report = worker_report(worker, model, runtime, threads=1)
        times = worker.kernel_times(3)
    inputs = read_arrays(folder / "inputs")
    options = LoadOptions(threads=1, purpose=Purpose.TIMING)
    with get_runtime(runtime).load(model, options) as session:
        np.testing.assert_array_equal(read_arrays(tmp_path / "outputs")["z"], session.run(inputs)["z"])
        assert report == session.ran()
    assert loaded.version == get_runtime(runtime).version()
    assert loaded.new_length_seconds == -1.0
    if runtime == "ort-cpu":
        assert 0 < times.kernel_seconds < times.call_seconds
    else:
        assert times == KernelTimes(kernel_seconds=-1.0, call_seconds=-1.0)


def test_settings_are_those_of_the_session(folder: Path) -> None:
    """Nothing spins beside the arm that is timed; what the user gives stands above what the runtime takes."""
    load_model(folder / "model.onnx")
    told = arm_settings("ort-cpu", threads=1, options={"graph_optimization_level": "ORT_DISABLE_ALL"})
    assert told == {
        "provider": "CPUExecutionProvider",
        "device": "cpu",
        "intra_op_num_threads": 1,
        "inter_op_num_threads": 1,
        "log_severity_level": 4,
        "graph_optimization_level": "ORT_DISABLE_ALL",
        "session.record_ep_graph_assignment_info": "1",
        "session.intra_op.allow_spinning": "0",
    }
    assert arm_settings("ort-cpu", threads=2)["session.intra_op.allow_spinning"] == "0"
    spinning = {"session.intra_op.allow_spinning": "1"}
    assert arm_settings("ort-cpu", threads=2, options=spinning) == told | spinning | {
        "intra_op_num_threads": 2,
        "graph_optimization_level": "ORT_ENABLE_ALL",
    }
    assert arm_settings("openvino", threads=2)["INFERENCE_NUM_THREADS"] == 2
    assert "INFERENCE_PRECISION_HINT" not in arm_settings("openvino", threads=1)
    assert arm_settings("ort-cuda", threads=1)["provider.use_tf32"] == "1"
    assert arm_settings("torch", threads=1) == {}


def test_options_that_no_arm_takes(folder: Path) -> None:
    """What decides the threads or the device, and what no runtime reads, is refused before a process starts."""
    load_model(folder / "model.onnx")
    with pytest.raises(PlanError) as caught:
        arm_settings("ort-cpu", threads=1, options={"intra_op_num_threads": "2"})
    assert str(caught.value) == (
        "'intra_op_num_threads' is no option of an arm. Name the runtime and the threads instead."
    )
    with pytest.raises(PlanError) as caught:
        arm_settings("torch", threads=1, options={"a": "b"})
    assert (
        str(caught.value)
        == "Runtime 'torch' takes no options. Options are for openvino, ort-cpu, ort-cuda and ort-plugin."
    )


def test_a_setting_changes_what_runs(worker: TimingWorker, folder: Path) -> None:
    """The optimisation that is turned off is off: a pair of transposes stays in the graph."""
    load_model(folder / "model.onnx")
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Neg", ["y"], ["z"])]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "n"]) for name in ("x", "z")]
    graph = helper.make_graph(nodes, "identity", value[:1], value[1:])
    path = folder / "identity.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    counts = []
    for level in ("ORT_ENABLE_ALL", "ORT_DISABLE_ALL"):
        settings = arm_settings("ort-cpu", threads=1, options={"graph_optimization_level": level})
        worker.load(replace(job(folder), model=path, settings=settings))
        counts.append(worker_report(worker, load_model(path), "ort-cpu", threads=1).node_counts)
    assert counts == [{"Neg": 1}, {"Identity": 1, "Neg": 1}]


def test_bfloat16_passes_as_bits(worker: TimingWorker, folder: Path, tmp_path: Path) -> None:
    """bfloat16 goes in and comes out unchanged, which numpy alone could not carry."""
    value = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, ["n"]) for name in ("x", "z")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["z"])], "same", value[:1], value[1:])
    path = tmp_path / "same.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    arrays = {"x": np.array([1.5, -2.0, 3e38]).astype(ml_dtypes.bfloat16)}
    worker.load(replace(job(folder), model=path, inputs=write_arrays(tmp_path / "in", arrays)))
    worker.outputs(tmp_path / "out")
    found = read_arrays(tmp_path / "out")["z"]
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found, arrays["x"])


@pytest.mark.parametrize("dtype", ["float16", "float64", "int64", "bool", "bfloat16", "float8_e4m3fn"])
def test_arrays_come_back(dtype: str, tmp_path: Path) -> None:
    """Every type, scalars and empty arrays too; no type is needed to read the files that numpy has not."""
    arrays = {"a": np.array([[0.0, 1.0, 2.0]]).astype(dtype), "b/c": np.array(1.0).astype(dtype)}
    arrays["empty"] = np.zeros((0, 3)).astype(dtype)
    found = read_arrays(write_arrays(tmp_path / "arrays", arrays))
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    assert all(np.load(path, allow_pickle=False).dtype.isbuiltin == 1 for path in tmp_path.glob("arrays/*.npy"))


@pytest.mark.parametrize("runtime", ["ort-cpu", pytest.param("openvino", marks=pytest.mark.slow)])
def test_tensor_files_are_found_in_their_folder(folder: Path, tmp_path: Path, runtime: str) -> None:
    """A model whose numbers lie in files of another folder runs."""
    numbers = onnx.numpy_helper.from_array(np.full((24,), 2.0, np.float32), "w")
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [24, 24]) for name in ("x", "z")]
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["z"])], "mul", value[:1], value[1:], [numbers])
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(made, there / "model.onnx", save_as_external_data=True, location="data.bin", size_threshold=0)
    (there / "model.onnx").rename(here / "model.onnx")
    with TimingWorker(place_of(runtime), python=None, threads=1, patience_seconds=PATIENCE) as worker:
        worker.load(replace(job(folder, runtime), model=here / "model.onnx", folder=there))
        worker.outputs(tmp_path / "out")
    # OpenVINO computes in bfloat16 where the machine can.
    relative = 0.0 if runtime == "ort-cpu" else float(ml_dtypes.finfo(ml_dtypes.bfloat16).eps)
    expected = 2 * read_arrays(folder / "inputs")["x"].astype(np.float32)
    np.testing.assert_allclose(read_arrays(tmp_path / "out")["z"], expected, rtol=relative, atol=0.0)


def test_threads_are_pinned_before_anything_is_imported(worker: TimingWorker, folder: Path) -> None:
    """The variables stand in the process from its start, and no thread runs beside the one that calls."""
    worker.load(job(folder))
    process = psutil.Process(worker.worker.pid)
    told = process.environ()
    assert {told[name] for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")} == {"1"}
    assert process.num_threads() == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the libraries of a process")
def test_one_of_our_runtimes_is_imported_at_the_start() -> None:
    """Where it is told then, so that processes import side by side; one that cannot be found is told at load."""
    for runtime, is_there in (("", False), ("ort-cpu", True), ("no-such", False)):
        with TimingWorker("", python=None, threads=1, patience_seconds=PATIENCE, runtime=runtime) as worker:
            worker.wait_ready()
            mapped = Path(f"/proc/{worker.worker.pid}/maps").read_text()
        assert ("onnxruntime_pybind11_state" in mapped) == is_there, runtime


def test_idling_and_cpu_time(worker: TimingWorker, folder: Path) -> None:
    """A run is timed by itself; the CPU time of the process grows as it works."""
    worker.load(job(folder))
    before = worker.cpu_seconds
    assert 0 < worker.after_idle() < 0.2
    worker.visit(20)
    assert worker.cpu_seconds > before > 0


def test_a_length_that_the_graph_does_not_take(worker: TimingWorker, folder: Path) -> None:
    """It is not measured, and the arm is none the worse for it."""
    loaded = worker.load(replace(job(folder), new_length_inputs=folder / "unfit"))
    assert loaded.new_length_seconds == -1.0
    assert len(worker.visit(2).wall_ns) == 2


def test_unload_and_the_next(worker: TimingWorker, folder: Path) -> None:
    """The same process takes one arm after another."""
    pid = worker.worker.pid
    worker.load(job(folder))
    worker.unload()
    worker.load(job(folder))
    assert len(worker.visit(1).wall_ns) == 1
    assert worker.worker.pid == pid


def test_memory_of_a_process_that_is_used_again(worker: TimingWorker, folder: Path, tmp_path: Path) -> None:
    """What an earlier arm freed is given back, so that the next one's peak is its own: two results of 4 MiB."""
    inputs = write_arrays(tmp_path / "inputs", {"x": np.ones((1024, 1024), np.float32)})
    for _ in range(2):
        loaded = worker.load(replace(job(folder), inputs=inputs))
        if loaded.peak_bytes == -1:
            pytest.skip("this system does not let the peak begin anew")
        assert 2**22 < loaded.peak_bytes < 2**26
        assert 2**22 < loaded.loaded_bytes < 2**29


def test_nothing_loaded_is_no_fast_arm() -> None:
    """A visit to nothing is refused."""
    with TimingWorker(ORT, python=None, threads=1, patience_seconds=PATIENCE) as worker:
        with pytest.raises(WorkerFailedError) as caught:
            worker.visit(1)
        assert str(caught.value) == "ort-cpu has nothing loaded."
        assert worker.worker.pid == -1


def test_another_environment(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only numpy and the runtime are needed there; what is missing is not taken from us, whatever PYTHONPATH says."""
    ours = Path(np.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", str(ours))
    python = environment(tmp_path / "with", (*NUMPY, *ONNXRUNTIME))
    with TimingWorker(ORT, python=python, threads=1, patience_seconds=PATIENCE) as worker:
        worker.load(job(folder))
        worker.outputs(tmp_path / "out")
        assert worker_report(worker, load_model(folder / "model.onnx"), "ort-cpu", threads=1).node_counts == {
            "MatMul": 1,
            "Softmax": 1,
        }
        maps = Path(f"/proc/{worker.worker.pid}/environ").read_bytes()
    assert b"PYTHONPATH" not in maps
    assert set(read_arrays(tmp_path / "out")) == {"z"}
    for packages, missing in ((NUMPY, "onnxruntime"), ((), "numpy")):
        bare = environment(tmp_path / f"no {missing}", packages)
        with (
            TimingWorker(ORT, python=bare, threads=1, patience_seconds=PATIENCE) as worker,
            pytest.raises(WorkerFailedError) as caught,
        ):
            worker.wait_ready()
        assert str(caught.value) == (f"{bare} has no {missing}. Install what is missing there, or name another Python.")


def test_a_file_in_the_current_folder_is_not_the_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file named onnxruntime.py where the user stands is not imported."""
    (tmp_path / "onnxruntime.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    with TimingWorker(ORT, python=None, threads=1, patience_seconds=PATIENCE) as worker:
        worker.wait_ready()


_PARENT = """
import sys
from pathlib import Path
from sdpa_onnx.runtimes.arm_job import ArmJob
from sdpa_onnx.runtimes.timing_worker import TimingWorker
python, folder = map(Path, sys.argv[1:])
place = "engines.onnxruntime:OrtCpu"
worker = TimingWorker(place, python=python, threads=1, patience_seconds=60.0)
worker.load(ArmJob(runtime="ort-cpu", engine=place, model=folder / "model.onnx",
                   inputs=folder / "inputs", settings={"session.fault": "hang"}))
print(worker.worker.pid, flush=True)
worker.visit(1)
"""


def test_no_worker_outlives_a_killed_parent(folder: Path, faulty_python: Path) -> None:
    """A parent that is killed in the middle of a visit leaves no process behind, though the visit never ends."""
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, faulty_python, folder], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        orphan = psutil.Process(int(parent.stdout.readline()))
        assert orphan.is_running()
    finally:
        parent.kill()
        parent.communicate()
    deadline = time.monotonic() + 10.0
    while _lives(orphan) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _lives(orphan)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
