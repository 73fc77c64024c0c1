"""Engines in Node: where the package is found, how the process ends, types, and times that are read there.

What concerns the process alone runs a package of our own in place of ONNX Runtime's, so that it needs Node only.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from sdpa_onnx.runtimes.base import Supported, Unsupported
from sdpa_onnx.runtimes.engine_runtime import EngineRuntime
from sdpa_onnx.runtimes.worker import memory
from sdpa_onnx.runtimes.worker.engines.javascript import FOLDER_VARIABLE, OrtNode, OrtWeb
from sdpa_onnx.runtimes.worker.loaded import Loaded
from sdpa_onnx.runtimes.worker.pipe import RefusalError
from sdpa_onnx.runtimes.worker.visit import Turns
from tests.runtimes.engines.jobs import RAGGED, ROOT, bits_of, drawn, job_of, opened, plain_model, result_of

_ENGINES = (OrtNode, OrtWeb)
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no program node")

# Doubles what it is given; the model says what else a run does.
_PACKAGE = """
class Tensor { constructor(type, data, dims) { Object.assign(this, { type, data, dims }); } }
exports.Tensor = Tensor;
let runs = 0;
exports.InferenceSession = { async create(path) {
  console.log('loading');
  const behaviour = require('fs').readFileSync(path, 'utf8');
  if (behaviour === 'fails') throw new Error('no such operator\\n    at place.js:7');
  return { inputNames: ['x'], async release() {}, async run({ x }) {
    runs += 1;
    console.log('running');
    if (behaviour === 'aborts') { console.error('FATAL ERROR: no memory\\n 1: 0xb8 frame\\n'); process.abort(); }
    if (behaviour === 'hangs') while (true);
    return { y: new Tensor(x.type, x.data.map((value) => 2 * value), x.dims),
      runs: new Tensor('int32', Int32Array.of(runs), []) };
  } };
} };
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder node_modules with packages of our own under the names of ONNX Runtime's."""
    for name in ("onnxruntime-node", "onnxruntime-web"):
        package = tmp_path / "node_modules" / name
        package.mkdir(parents=True)
        (package / "package.json").write_text('{"version": "9.8.7", "main": "index.js"}', encoding="utf-8")
        (package / "index.js").write_text(_PACKAGE, encoding="utf-8")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "node_modules"))
    return tmp_path


@pytest.fixture
def load(folder: Path) -> Iterator[Callable[..., Any]]:
    """Loads a model that is a behaviour."""
    found = []

    def _load(behaviour: str, purpose: str = "agreement") -> Any:
        (folder / "model").write_text(behaviour, encoding="utf-8")
        job: dict[str, Any] = {
            "model": str(folder / "model"),
            "folder": None,
            "threads": 1,
            "settings": {},
            "report": None,
        }
        found.append(OrtNode().open({**job, "purpose": purpose, "inputs": ["x"], "outputs": ["y", "runs"]}))
        return found[-1]

    yield _load
    for each in found:
        each.close()


def _available(engine: Any) -> Supported | Unsupported:
    return EngineRuntime(engine).available()


def _bits(*values: float) -> dict[str, tuple[NDArray[Any], int]]:
    return {"x": (np.array(values, np.float32), 1)}


@pytest.mark.parametrize("engine", _ENGINES)
def test_a_missing_package(engine: type[OrtNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason has the command that installs it."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert _available(engine()) == Unsupported(f"{engine.package} is missing: {engine.install}")


def test_a_missing_node(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package alone does not help."""
    monkeypatch.setenv("PATH", str(folder))
    reason = "there is no program node: install Node 20 or newer (nodejs.org)"
    assert _available(OrtNode()) == Unsupported(reason)
    with pytest.raises(RefusalError, match="there is no program node"):
        opened(OrtNode(), plain_model())


@needs_node
def test_the_package_is_found_above(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Node looks for it: in node_modules of the current folder and of those above it."""
    (folder / "deep" / "er").mkdir(parents=True)
    monkeypatch.delenv(FOLDER_VARIABLE)
    monkeypatch.chdir(folder / "deep" / "er")
    assert OrtNode().version() == "onnxruntime-node 9.8.7"
    assert _available(OrtNode()) == Supported()
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))  # the folder that has it does too
    assert OrtWeb().version() == "onnxruntime-web 9.8.7"


@pytest.mark.parametrize("engine", _ENGINES)
def test_bfloat16_is_refused_before_loading(engine: type[OrtNode]) -> None:
    """JavaScript has no such array."""
    node = {"domain": "", "op_type": "MatMul", "attributes": {}, "inputs": [True, True]}
    assert engine().refuses([{**node, "types": ["float32", None]}]) is None
    assert engine().refuses([{**node, "types": ["bfloat16", "bfloat16"]}]) == "takes no bfloat16"


@needs_node
def test_prints_stay_inside(load: Callable[..., Any], capfd: pytest.CaptureFixture[str]) -> None:
    """What the package prints is no reply, and reaches neither of our streams."""
    prepared = load("doubles").prepare(_bits(1, 2))
    prepared.first_run()
    assert prepared.outputs()["y"][0].tolist() == [2, 4]
    assert capfd.readouterr() == ("", "")


@needs_node
def test_an_error_is_its_first_line(load: Callable[..., Any]) -> None:
    """Places in a source are left out."""
    with pytest.raises(RuntimeError) as caught:
        load("fails")
    assert OrtNode().explain(str(caught.value)) == "no such operator"


@needs_node
def test_a_crash_has_its_reason(load: Callable[..., Any]) -> None:
    """The signal, and the line that gives the reason, not the frames after it; every request after it fails too."""
    prepared = load("aborts").prepare(_bits(1))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^Node ended with SIGABRT: FATAL ERROR: no memory$"):
            prepared.first_run()


@needs_node
def test_a_killed_process(load: Callable[..., Any]) -> None:
    """It is an error, and gives no earlier result."""
    loaded = load("doubles")
    prepared = loaded.prepare(_bits(1))
    call = prepared.first_run()
    os.kill(loaded.process, signal.SIGKILL)
    for each in (call, prepared.outputs):
        with pytest.raises(RuntimeError, match="Node ended with SIGKILL"):
            each()


@needs_node
def test_a_hang_is_ended_by_close(load: Callable[..., Any]) -> None:
    """The thread that waits gets an error."""
    loaded = load("hangs")
    prepared = loaded.prepare(_bits(1))
    errors: list[Exception] = []

    def run() -> None:
        try:
            prepared.first_run()
        except RuntimeError as error:
            errors.append(error)

    waiting = threading.Thread(target=run)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    loaded.close()
    waiting.join(60)
    assert len(errors) == 1
    assert not _is_alive(loaded.process)


@needs_node
@pytest.mark.parametrize("behaviour", ["doubles", "hangs"])
def test_no_node_outlives_its_parent(behaviour: str, folder: Path) -> None:
    """It ends when its parent is killed, also while a call runs."""
    (folder / "model").write_text(behaviour, encoding="utf-8")
    program = f"""
import numpy as np
from sdpa_onnx.runtimes.worker import memory
from sdpa_onnx.runtimes.worker.engines.javascript import OrtNode
job = {{"model": {str(folder / "model")!r}, "folder": None, "threads": 1, "settings": {{}}, "report": None}}
loaded = OrtNode().open({{**job, "purpose": "timing", "inputs": ["x"], "outputs": ["y", "runs"]}})
prepared = loaded.prepare({{"x": (np.ones(2, np.float32), 1)}})
print(loaded.process, flush=True)
prepared.first_run()
input()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert _is_alive(child)
        parent.kill()
    deadline = time.monotonic() + 60
    while _is_alive(child):
        assert time.monotonic() < deadline, "Node goes on"
        time.sleep(0.05)


def _is_alive(process: int) -> bool:
    """Whether it runs; one that ended and that nobody waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@needs_node
def test_a_visit_takes_turns_and_is_timed_in_node(load: Callable[..., Any]) -> None:
    """Each call is one run of the input whose turn it is, and no message."""
    loaded = load("doubles")
    prepared = [loaded.prepare(_bits(value)) for value in (1, 2, 3)]
    turns = Turns([each.first_run() for each in prepared])
    start = time.perf_counter_ns()
    counters, times = loaded.visit(turns, 5)
    passed = time.perf_counter_ns() - start
    assert set(counters) >= {"switches", "faults"}
    assert times["wall_ns"].dtype == times["cpu_ns"].dtype == np.int64
    assert times["wall_ns"].shape == times["cpu_ns"].shape == (5,)
    assert 0 < times["wall_ns"].min() <= times["wall_ns"].sum() < passed
    assert (times["cpu_ns"] >= 0).all()
    # Three first runs, then 1, 2, 3, 1, 2: what each input's last run counted.
    assert [int(each.outputs()["runs"][0]) for each in prepared] == [7, 8, 6]
    loaded.visit(turns, 1)
    assert [int(each.outputs()["runs"][0]) for each in prepared] == [7, 8, 9]


@needs_node
def test_a_process_serves_the_next_model(load: Callable[..., Any]) -> None:
    """Where nothing failed; a second model that is open has its own, and so has one with other threads."""
    first = load("doubles")
    prepared = first.prepare(_bits(1))
    prepared.first_run()
    beside = load("doubles")
    assert beside.process != first.process
    first.close()
    after = load("doubles")
    assert after.process == first.process
    with pytest.raises(RuntimeError):
        after._child.ask("outputs", number=1)  # of the model before
    after.close()
    assert not _is_alive(after.process)
    timed = load("doubles", purpose="timing")
    timed.close()  # memory that it freed would not be counted again
    assert not _is_alive(timed.process)


@needs_node
def test_an_interrupted_request_ends_node(load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reply would be taken for that of the next request."""
    loaded = load("doubles")
    prepared = loaded.prepare(_bits(1))
    call = prepared.first_run()

    def interrupted(size: int) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(loaded._child, "_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call()
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="Node was ended by close"):
        prepared.outputs()


@pytest.fixture(params=_ENGINES, ids=lambda engine: engine.name)
def engine(request: pytest.FixtureRequest) -> OrtNode:
    """One with ONNX Runtime's own package."""
    found: OrtNode = request.param()
    available = _available(found)
    if isinstance(available, Unsupported):
        pytest.skip(available.reason)
    return found


@pytest.mark.parametrize("shape", [(2, 3), (), (0, 2)], ids=str)
def test_every_type_comes_back(engine: OrtNode, shape: tuple[int, ...]) -> None:
    """Bit by bit, in the type and the shape that went in, in the order of the file."""
    words = "float32 float64 float16 bool uint8 int8 uint16 int16 uint32 int32 uint64 int64"
    rng = np.random.default_rng(0)
    arrays = {word: np.asarray(rng.integers(0, 100, shape)).astype(word) for word in words.split()}
    kinds = {word: helper.np_dtype_to_tensor_dtype(np.dtype(word)) for word in arrays}
    axes = [f"n{index}" for index in range(len(shape))]
    graph = helper.make_graph(
        [helper.make_node("Identity", [word], [f"{word}_out"]) for word in arrays],
        "types",
        [helper.make_tensor_value_info(word, kind, axes) for word, kind in kinds.items()],
        [helper.make_tensor_value_info(f"{word}_out", kind, axes) for word, kind in reversed(kinds.items())],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    loaded = opened(engine, proto)
    prepared = loaded.prepare(bits_of(arrays))
    prepared.first_run()
    found = prepared.outputs()
    loaded.close()
    assert list(found) == [f"{word}_out" for word in reversed(arrays)]
    for word, array in arrays.items():
        np.testing.assert_array_equal(found[f"{word}_out"][0], array, strict=True)
        assert found[f"{word}_out"][1] == kinds[word]


def test_the_optimised_graph_is_read(tmp_path: Path) -> None:
    """By onnxruntime-node, at loading or afterwards; the session that is open stays as it is."""
    if isinstance(available := _available(OrtNode()), Unsupported):
        pytest.skip(available.reason)
    for report, folder in ((str(tmp_path), "other"), (None, str(tmp_path))):
        loaded = opened(OrtNode(), plain_model(), report=report)
        first = result_of(loaded, drawn(RAGGED))
        path = loaded.ran(folder, with_graph=True)["optimised"]
        assert Path(path).parent == tmp_path
        assert "Transpose" not in {node.op_type for node in onnx.load(path).graph.node}  # fused into the product
        np.testing.assert_array_equal(result_of(loaded, drawn(RAGGED)), first)
        loaded.close()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux reports memory")
def test_memory_is_that_of_node(engine: OrtNode) -> None:
    """Not that of the process that speaks with it."""
    loaded = Loaded(engine, {**job_of(plain_model()), "settings": {}})
    assert loaded.process == loaded.opened.process != "self"
    before = memory.resident_bytes(loaded.process)
    assert memory.reset_peak(loaded.process)
    prepared = loaded.prepare(bits_of(drawn((1, 2000, 2000))))
    prepared.first_run()
    assert memory.peak_bytes(loaded.process) - before > 2 * 2000 * 2000 * 4  # the weights of two heads
    loaded.close()


def test_threads_are_read_back(engine: OrtNode) -> None:
    """They are counted where ONNX Runtime does not report them."""
    for threads in (1, 2):
        loaded = opened(engine, plain_model(), threads=threads)
        assert loaded.ran(".", with_graph=False)["threads"] == threads
        loaded.close()


def test_node_connects_to_nothing(engine: OrtNode) -> None:
    """It holds no socket but those that a process makes for its own threads."""
    loaded = opened(engine, plain_model())
    result_of(loaded, drawn(RAGGED))
    held = [str(each.readlink()) for each in Path(f"/proc/{loaded.process}/fd").iterdir()]
    tables = [Path(f"/proc/{loaded.process}/net/{name}").read_text(encoding="ascii") for name in ("tcp", "udp")]
    sockets = {name[len("socket:[") : -1] for name in held if name.startswith("socket:[")}
    loaded.close()
    assert not [line for table in tables for line in table.splitlines()[1:] if line.split()[9] in sockets]


def test_an_initializer_is_not_overridden_in_silence(engine: OrtNode) -> None:
    """JavaScript's sessions drop values for inputs that have a default."""
    proto = plain_model()
    factor = next(each for each in proto.graph.initializer if each.name == "factor")
    proto.graph.input.append(helper.make_tensor_value_info("factor", factor.data_type, list(factor.dims)))
    loaded = opened(engine, proto)
    arrays = drawn(RAGGED)
    result_of(loaded, arrays)
    with pytest.raises(RefusalError, match="takes no other value for 'factor'"):
        loaded.prepare(bits_of({**arrays, "factor": onnx.numpy_helper.to_array(factor) * 2}))
    loaded.close()


def test_the_pinned_versions_are_those_of_the_lock() -> None:
    """What the tests were run with."""
    folder = ROOT / "tests/runtimes/engines/node"
    wanted = json.loads((folder / "package.json").read_text(encoding="utf-8"))["dependencies"]
    locked = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert {name: locked[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    assert not [each for each in locked.values() if "resolved" in each]
