"""Messages between a worker and its parent, and the services that no arm is timed by."""

from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from threading import Thread

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper

from sdpa_onnx.errors import RuntimeNotFoundError, SessionError
from sdpa_onnx.graph.model import OnnxModel, load_model
from sdpa_onnx.runtimes.base import LoadOptions, get_runtime
from sdpa_onnx.runtimes.worker.main import serve
from sdpa_onnx.runtimes.worker.pipe import RefusalError, receive, send
from sdpa_onnx.runtimes.worker.sessions import SessionService, open_service
from sdpa_onnx.runtimes.worker_process import WorkerService
from sdpa_onnx.runtimes.workers import FailureKind, Worker, WorkerFailure, WorkerNotStartedError
from sdpa_onnx.workflows.isolate.isolated_runtime import guarded_runtime

_DTYPES = ["float16", "float64", "int64", "bool", "bfloat16", "float8_e4m3fn", "int4", ">f4", "complex64", "<U3"]


@pytest.mark.parametrize("dtype", _DTYPES)
def test_arrays_pass(dtype: str) -> None:
    """Every type, layout and size, in memory that the receiver may write to."""
    whole = np.array([[0, 1, 2], [1, 0, 1]]).astype(dtype)
    arrays = {"whole": whole, "turned": whole.T, "part": whole[:, ::2], "one": whole[0, 1:2].reshape(())}
    arrays["none"] = whole[:0]
    found = _passed(arrays)
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)
        assert found[name].flags.writeable


def test_texts_pass() -> None:
    """As ONNX's strings are in numpy."""
    arrays = {"two": np.array([["a", "é"]], dtype=object), "one": np.array("b", dtype=object)}
    found = _passed(arrays)
    assert {name: (array.dtype, array.tolist()) for name, array in found.items()} == {
        name: (array.dtype, array.tolist()) for name, array in arrays.items()
    }


def test_large_array_passes() -> None:
    """More than a pipe holds at once."""
    array = np.arange(2**20, dtype=np.int64)
    np.testing.assert_array_equal(_passed({"a": array})["a"], array)


def test_numbers_of_numpy_in_a_header() -> None:
    """A plug-in may count with them."""
    ours, theirs = Pipe()
    send(theirs, {"nodes": {"MatMul": np.int64(3)}})
    assert receive(ours) == ({"nodes": {"MatMul": 3}}, {})


def _passed(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    ours, theirs = Pipe()
    sender = Thread(target=send, args=(theirs, {"a": 1}, arrays))
    sender.start()
    header, found = receive(ours)
    sender.join()
    assert header == {"a": 1}
    return found


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One that runs sessions on ONNX Runtime."""
    with Worker(WorkerService.SESSIONS, "ort-cpu", who="ort-cpu", patience_seconds=60.0) as worker:
        yield worker


@pytest.fixture(scope="module")
def bfloat16_model() -> OnnxModel:
    """One node that changes nothing."""
    value = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, ["n"]) for name in ("x", "z")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["z"])], "same", value[:1], value[1:])
    return load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))


def test_session_in_a_worker_is_that_of_the_runtime(bfloat16_model: OnnxModel) -> None:
    """The same outputs, bfloat16 too, and the same report of what ran."""
    import ml_dtypes

    feeds = {"x": np.array([1.5, -2.0, 3e38]).astype(ml_dtypes.bfloat16)}
    with get_runtime("ort-cpu").load(bfloat16_model, LoadOptions()) as session:
        expected, report = session.run(feeds), session.ran()
    with guarded_runtime("ort-cpu") as runtime, runtime.load(bfloat16_model, LoadOptions()) as session:
        actual = session.run(feeds)
        assert session.ran() == report
    assert actual["z"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(actual["z"], expected["z"])


def test_failures_leave_the_worker_as_it_is(worker: Worker) -> None:
    """A request that it does not know, a session that is none and an invalid model are values; it still answers."""
    fields = {"folder": None, "options": {"threads": 1, "purpose": "agreement", "optimise": True}}
    pid = worker.pid
    unknown = worker.ask("dance")
    assert isinstance(unknown, WorkerFailure)
    assert (unknown.kind, unknown.raised) == (FailureKind.RAISED, "AttributeError")
    none = worker.ask("ran", {"session": 7})
    assert none == WorkerFailure(kind=FailureKind.REFUSED, text="has no such session", raised="RefusalError")
    empty = onnx.ModelProto(ir_version=8, opset_import=[helper.make_opsetid("", 18)]).SerializeToString()
    invalid = worker.ask("load", fields, {"model": np.frombuffer(empty, np.uint8)})
    assert isinstance(invalid, WorkerFailure)
    assert (invalid.kind, invalid.text[-1:]) == (FailureKind.REPORTED, ".")
    assert isinstance(worker.ask("close", {"session": 0}), WorkerFailure)
    assert worker.pid == pid


def test_worker_has_only_what_it_needs(worker: Worker) -> None:
    """A session on ONNX Runtime loads no torch."""
    worker.wait_ready()
    assert "libtorch" not in Path(f"/proc/{worker.pid}/maps").read_text()


def test_unknown_runtime_is_no_crash() -> None:
    """The sentence is ours, and the process is gone."""
    with Worker(WorkerService.SESSIONS, "ort-cpx", who="ort-cpx", patience_seconds=60.0) as worker:
        with pytest.raises(WorkerNotStartedError) as caught:
            worker.wait_ready()
        assert worker.pid == -1
    with pytest.raises(RuntimeNotFoundError) as known:
        get_runtime("ort-cpx")
    assert str(caught.value) == str(known.value)


class _Raising:
    """A runtime whose package raises what is no error of ours."""

    name = "raising"

    def load(self, *_: object) -> None:
        raise MemoryError("no 8 GB")


def test_exception_of_a_runtime_is_no_refusal(bfloat16_model: OnnxModel) -> None:
    """It is reported as what it is."""
    ours, theirs = Pipe()
    serving = Thread(target=serve, args=(_Loud(SessionService(_Raising())), theirs))  # type: ignore[arg-type]
    serving.start()
    assert receive(ours)[0] == {"ready": True, "version": ""}
    message = np.frombuffer(bfloat16_model.linked().message, np.uint8)
    options = {"threads": 1, "purpose": "agreement", "optimise": True}
    send(ours, {"do": "load", "folder": None, "options": options}, {"model": message})
    header, _ = receive(ours)
    ours.close()
    serving.join()
    failed = WorkerFailure(kind=FailureKind(header["failed"]), text=header["text"], raised=header["type"])
    assert failed.crash == "ran out of memory: no 8 GB"
    assert (header["cause"], header["stage"]) == ("", "run")


class _Loud:
    """A service in this process, whose prints must not be dropped."""

    keeps_prints = True

    def __init__(self, service: SessionService) -> None:
        self.version, self.stage, self.do_load = service.version, service.stage, service.do_load


def test_stopped_worker_is_gone() -> None:
    """Also one that is still importing."""
    worker = Worker(WorkerService.SESSIONS, "ort-cpu", who="ort-cpu", patience_seconds=60.0)
    process = psutil.Process(worker.pid)
    worker.stop()
    assert not process.is_running()
    with pytest.raises(SessionError) as caught:
        worker.ask("ran", {"session": 0})
    assert str(caught.value) == "ort-cpu is not running: its process is gone."


def test_sessions_are_numbered_and_freed(bfloat16_model: OnnxModel) -> None:
    """Each load has its own number, also after an earlier one was closed."""
    service = open_service("ort-cpu")
    message = np.frombuffer(bfloat16_model.linked().message, np.uint8)
    options = {"threads": 1, "purpose": "agreement", "optimise": True}
    first, second = (
        service.do_load(folder=None, options=options, arrays={"model": message})[0]["session"] for _ in range(2)
    )
    service.do_close(session=first)
    third = service.do_load(folder=None, options=options, arrays={"model": message})[0]["session"]
    assert len({first, second, third}) == 3
    assert service.do_ran(session=second)[0]["report"]["providers"] == {"CPUExecutionProvider": 1}
    with pytest.raises(RefusalError):
        service.do_ran(session=first)
