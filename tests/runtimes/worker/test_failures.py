"""Workers that fail: one sentence each, the process gone, the next one unharmed."""

import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from sdpa_onnx.runtimes import worker_process
from sdpa_onnx.runtimes.arm_job import ArmJob
from sdpa_onnx.runtimes.timing_worker import TimingWorker
from sdpa_onnx.runtimes.worker.engines.onnxruntime import session_options
from sdpa_onnx.runtimes.worker.orphan import OTHER_PARENT, die_with
from sdpa_onnx.runtimes.worker.pipe import RefusalError
from sdpa_onnx.runtimes.workers import WorkerFailedError
from tests.runtimes.worker.environments import NUMPY, OPENVINO, ORT, ORT_CUDA, environment


def start(python: Path | None, *, engine: str = ORT) -> TimingWorker:
    return TimingWorker(engine, python=python, threads=1, patience_seconds=60.0)


def job(folder: Path, **settings: str) -> ArmJob:
    return ArmJob(
        runtime="ort-cpu",
        engine=ORT,
        model=folder / "model.onnx",
        inputs=folder / "inputs",
        names={"inputs": ["x", "y"], "outputs": ["z"], "defaults": []},
        settings={f"session.{name}": value for name, value in settings.items()},
    )


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("segfault", "crashed: its process ended with SIGSEGV."),
        ("kill", "was killed (SIGKILL) from outside, perhaps for memory."),
        pytest.param("exit", "crashed: its process ended with exit code 3: has run out.", marks=pytest.mark.slow),
        ("abort", "ran out of memory: terminate called after throwing an instance of 'std::bad_alloc'."),
        ("memory", "ran out of memory: cannot allocate 8 GB."),
        pytest.param(
            "bad_alloc",
            "ran out of memory: [ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : std::bad_alloc.",
            marks=pytest.mark.slow,
        ),
        ("refuse", "failed at node 'scores': no kernel for node."),
    ],
)
def test_a_call_that_fails(fault: str, sentence: str, faulty_python: Path, folder: Path) -> None:
    """What happened is one sentence; the process is gone and every later question says so."""
    with start(faulty_python) as worker:
        worker.load(job(folder, fault=fault))
        process = psutil.Process(worker.worker.pid)
        with pytest.raises(WorkerFailedError) as caught:
            worker.visit(3)
        assert str(caught.value) == f"ort-cpu in {faulty_python} {sentence}"
        assert not process.is_running()
        with pytest.raises(WorkerFailedError) as caught:
            worker.visit(3)
        assert str(caught.value) == f"ort-cpu in {faulty_python} is not running: its process is gone."


def test_killed_between_two_questions(faulty_python: Path, folder: Path) -> None:
    """A process that is gone when it is asked is told like one that goes while it answers."""
    with start(faulty_python) as worker:
        worker.load(job(folder))
        assert worker.worker._process is not None
        worker.worker._process.process.kill()
        worker.worker._process.process.wait()
        with pytest.raises(WorkerFailedError) as caught:
            worker.visit(1)
    sentence = "was killed (SIGKILL) from outside, perhaps for memory."
    assert str(caught.value) == f"ort-cpu in {faulty_python} {sentence}"


def test_a_load_that_fails(faulty_python: Path, folder: Path) -> None:
    """What is refused at load is told as that."""
    with start(faulty_python) as worker, pytest.raises(WorkerFailedError) as caught:
        worker.load(job(folder, fault="refuse", when="load"))
    assert str(caught.value) == (
        f"ort-cpu in {faulty_python} cannot load the model at node 'scores': no kernel for node."
    )


def test_a_hang_ends_and_harms_no_other(faulty_python: Path, folder: Path) -> None:
    """After the patience the process is ended; a worker beside it goes on."""
    with start(faulty_python) as hangs, start(faulty_python) as works:
        works.load(job(folder))
        hangs.load(job(folder, fault="hang"))
        hangs.worker.patience_seconds = 0.2
        process = psutil.Process(hangs.worker.pid)
        with pytest.raises(WorkerFailedError) as caught:
            hangs.visit(1)
        assert str(caught.value) == f"ort-cpu in {faulty_python} gave no answer in 0.2 s."
        assert not process.is_running()
        assert len(works.visit(5).wall_ns) == 5


def test_printing_does_no_harm(faulty_python: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Lines from Python, from C and bare bytes on both outputs reach neither the pipe nor us."""
    with start(faulty_python) as worker:
        worker.load(job(folder, fault="print"))
        assert [len(worker.visit(4).wall_ns) for _ in range(3)] == [4, 4, 4]
    assert capfd.readouterr() == ("", "")


def test_a_flood_of_errors_is_not_kept(faulty_python: Path, folder: Path) -> None:
    """Two megabytes a call are dropped after every answer, and while one is waited for, so no disk is filled."""
    with start(faulty_python) as worker:
        worker.load(job(folder, fault="flood"))
        worker.visit(2)
        assert worker.worker._process is not None
        assert os.fstat(worker.worker._process.errors.fileno()).st_size <= 2**20


def test_killed_for_memory(faulty_python: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system's own count of such ends rose, that was it."""
    counts = iter([7, 8])
    monkeypatch.setattr(worker_process, "oom_kills", lambda: next(counts))
    with start(faulty_python) as worker:
        worker.load(job(folder, fault="kill"))
        with pytest.raises(WorkerFailedError) as caught:
            worker.visit(1)
    assert str(caught.value) == f"ort-cpu in {faulty_python} was killed by the system for memory (SIGKILL)."


def test_counts_of_memory_kills(tmp_path: Path) -> None:
    """The line of the kernel's files is read; a file that is not there counts nothing."""
    path = tmp_path / "memory.events"
    path.write_text("low 0\noom 5\noom_kill 3\noom_group_kill 9\n")
    assert worker_process._counter(path) == 3
    assert worker_process._counter(tmp_path / "none") == 0
    assert worker_process.oom_kills() >= 0


def test_another_provider_than_asked_for(faulty_python: Path, folder: Path) -> None:
    """A runtime that falls back to another provider is an error, not a fast arm."""
    asked = job(folder, fault="other provider")
    with start(faulty_python) as worker, pytest.raises(WorkerFailedError) as caught:
        worker.load(replace(asked, settings={**asked.settings, "provider": "DnnlExecutionProvider"}))
    assert str(caught.value) == (
        f"ort-cpu in {faulty_python} asked for DnnlExecutionProvider and got CPUExecutionProvider."
    )


@pytest.mark.parametrize(
    ("settings", "predicate"),
    [
        ({"threads": "2"}, "has no session setting 'threads'"),
        ({"enable_mem_pattern": "maybe"}, "does not take 'maybe' for the setting 'enable_mem_pattern'"),
        ({"execution_mode": "BOTH"}, "does not take 'BOTH' for the setting 'execution_mode'"),
        ({"intra_op_num_threads": "many"}, "does not take 'many' for the setting 'intra_op_num_threads'"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, str], predicate: str) -> None:
    """The name of the setting is told."""
    with pytest.raises(RefusalError) as caught:
        session_options(settings)
    assert str(caught.value) == predicate


def test_settings_that_are_taken() -> None:
    """Each kind of setting arrives."""
    options = session_options(
        {
            "provider": "CPUExecutionProvider",
            "provider.use_arena": "1",
            "intra_op_num_threads": 3,
            "enable_mem_pattern": "false",
            "graph_optimization_level": "ORT_ENABLE_BASIC",
            "session.intra_op.allow_spinning": "0",
        }
    )
    assert options.intra_op_num_threads == 3
    assert not options.enable_mem_pattern
    assert options.graph_optimization_level.name == "ORT_ENABLE_BASIC"
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_a_refused_setting_is_told(folder: Path) -> None:
    """The parent says who refused it."""
    with start(None) as worker, pytest.raises(WorkerFailedError) as caught:
        worker.load(replace(job(folder), settings={"threads": "2"}))
    assert str(caught.value) == "ort-cpu has no session setting 'threads'."


def test_a_refusal_of_the_real_runtime(folder: Path) -> None:
    """ONNX Runtime's own sentence, as our sessions word it."""
    with start(None) as worker, pytest.raises(WorkerFailedError) as caught:
        worker.load(replace(job(folder), inputs=folder / "unfit"))
    assert str(caught.value) == "ort-cpu failed: MatMul dimension mismatch."


def test_a_file_that_is_no_model(folder: Path, tmp_path: Path) -> None:
    """The reason is told without the path, which is a temporary one wherever models are timed."""
    (tmp_path / "none.onnx").write_bytes(b"no model")
    with start(None) as worker, pytest.raises(WorkerFailedError) as caught:
        worker.load(replace(job(folder), model=tmp_path / "none.onnx"))
    assert str(caught.value) == "ort-cpu cannot load the model: Protobuf parsing failed."


@pytest.mark.slow
def test_refusals_of_openvino(folder: Path, tmp_path: Path) -> None:
    """A file that is no model, and a property that is none."""
    (tmp_path / "none.onnx").write_bytes(b"no model")
    asked = replace(job(folder), runtime="openvino", engine=OPENVINO)
    with start(None, engine=OPENVINO) as worker, pytest.raises(WorkerFailedError) as caught:
        worker.load(replace(asked, model=tmp_path / "none.onnx"))
    sentence = "openvino cannot load the model: Unable to read the model. Please check that model format"
    assert str(caught.value).startswith(sentence)
    assert str(tmp_path) not in str(caught.value)
    with start(None, engine=OPENVINO) as worker, pytest.raises(WorkerFailedError) as caught:
        worker.load(replace(asked, settings={"NO_SUCH": "1"}))
    assert str(caught.value) == "openvino cannot load the model: NotFound: Unsupported property NO_SUCH by CPU plugin."


def test_no_gpu_is_told(folder: Path) -> None:
    """Without CUDA an arm on ort-cuda fails with its reason."""
    import onnxruntime as ort

    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("CUDA is here")
    settings = {"provider": "CUDAExecutionProvider", "device": "cuda"}
    asked = replace(job(folder), runtime="ort-cuda", engine=ORT_CUDA, settings=settings)
    with start(None, engine=ORT_CUDA) as worker, pytest.raises(WorkerFailedError) as caught:
        worker.load(asked)
    assert str(caught.value) == f"ort-cuda has no CUDAExecutionProvider in this onnxruntime ({ort.__version__})."


def _script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


_ANOTHER = "Name another Python, such as env/bin/python."


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f'exec {sys.executable} -c "import sys; sys.version_info = (3, 8, 1); exec(sys.argv[1])" "$2"',
         f"A worker needs Python 3.9 or newer, and P is 3.8. {_ANOTHER}"),
        ("exit 0", f"P did not start as a worker: its process ended with exit code 0. {_ANOTHER}"),
        ("echo nonsense.; echo no such option. >&2; exit 2",
         f"P did not start as a worker: its process ended with exit code 2: no such option. {_ANOTHER}"),
        ('echo "bad option: $2" >&2; exit 2',
         f"P did not start as a worker: its process ended with exit code 2. {_ANOTHER}"),
        ('echo "bad option: $2" | tr "\\n" " " >&2; exit 2',
         f"P did not start as a worker: its process ended with exit code 2. {_ANOTHER}"),
        (f'{sys.executable} "$@"',
         ("P is not the interpreter itself: it starts Python as one more process. "
          "Name the interpreter, or start it with exec.")),
    ],
    ids=["old", "silent", "speaks", "quotes us", "quotes us in a line", "wraps"],
)  # fmt: skip
def test_an_interpreter_that_is_none(text: str, sentence: str, tmp_path: Path) -> None:
    """An old Python, one in a script, and programs that are no Python, are told from one that only lacks a package."""
    python = _script(tmp_path / "python", f"{text}\nexit $?")
    with start(python) as worker, pytest.raises(WorkerFailedError) as caught:
        worker.wait_ready()
    assert str(caught.value).replace(str(python), "P") == sentence


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    """Neither a missing file nor a folder starts anything."""
    for path, reason in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Permission denied")):
        with pytest.raises(WorkerFailedError) as caught:
            start(path)
        assert str(caught.value) == (
            f"{path} cannot be started: {reason}. Give the path of a Python interpreter, such as env/bin/python."
        )


@pytest.mark.parametrize(
    ("package", "raised", "told"),
    [
        ("onnxruntime", "ImportError('libstdc++.so.6: cannot open.\\nTry again.')",
         "ImportError: libstdc++.so.6: cannot open"),
        ("onnxruntime", "RuntimeError('built for\\nanother CPU')", "RuntimeError: built for"),
        ("numpy", "ImportError('\\n\\nIMPORTANT: read\\nthis.')", "ImportError: IMPORTANT: read"),
        ("numpy", "OSError()", "OSError"),
    ],
)  # fmt: skip
def test_a_broken_package(package: str, raised: str, told: str, tmp_path: Path) -> None:
    """A package that is there and cannot be imported is not told as missing; the first line of the error says why."""
    python = environment(tmp_path / "env", NUMPY if package != "numpy" else ())
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / f"{package}.py").write_text(f"raise {raised}\n")
    with start(python) as worker, pytest.raises(WorkerFailedError) as caught:
        worker.wait_ready()
    assert str(caught.value) == (
        f"{python} cannot import what it needs: {told}. Install what is missing there, or name another Python."
    )


def test_openvino_is_imported_without_telemetry(tmp_path: Path) -> None:
    """The package that would send is never run, though it is there."""
    python = environment(tmp_path / "env", NUMPY)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    sent = tmp_path / "sent"
    (site / "openvino_telemetry.py").write_text(f"open({str(sent)!r}, 'w').close()\n")
    tries = "try:\n    import openvino_telemetry\nexcept ImportError:\n    __version__ = '1-2'\n"
    (site / "openvino.py").write_text(tries)
    with start(python, engine=OPENVINO) as worker:
        worker.wait_ready()
        assert worker.version == "openvino 1"
    assert not sent.exists()


def test_our_runtimes_are_not_in_another_environment(faulty_python: Path) -> None:
    """Only runtimes with an engine, which needs nothing of ours, can be named with a Python."""
    with pytest.raises(WorkerFailedError) as caught:
        start(faulty_python, engine="")
    assert str(caught.value) == (
        f"{faulty_python} cannot be used: this runtime runs in our environment only. "
        "Give the Python for an arm on another runtime, such as ort-cpu or openvino."
    )


def test_a_process_whose_parent_is_gone_ends(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The parent may end between the start of a worker and its request to end with it."""
    ended: list[int] = []
    monkeypatch.setattr("sdpa_onnx.runtimes.worker.orphan.ctypes.CDLL", lambda *_, **__: _NoSystem())
    monkeypatch.setattr("sdpa_onnx.runtimes.worker.orphan.os._exit", ended.append)
    die_with(os.getppid())
    assert (ended, capfd.readouterr().err) == ([], "")
    die_with(os.getppid() + 1)
    assert (ended, capfd.readouterr().err) == ([1], f"{OTHER_PARENT}\n")


class _NoSystem:
    def prctl(self, *_: int) -> int:
        return 0
