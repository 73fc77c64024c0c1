"""A weight of 6 GB beside a file, sparse on the disk, is never read as a whole."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

_BYTES = 6 * 10**9
# Python, onnx and onnxruntime need a quarter of it; the weight is twelve times as large.
_MOST_KIB = 500_000
# Each process of a command notes its own peak, again and again, since workers are killed at the end. ru_maxrss of a
# child is at least what its parent had when it started it.
_MEASURED = textwrap.dedent("""
    import os, threading, time
    def note():
        path = os.path.join(os.environ["PEAKS"], str(os.getpid()))
        while True:
            peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
            open(path + ".new", "w").write(peak)
            os.replace(path + ".new", path)
            time.sleep(0.02)
    threading.Thread(target=note, daemon=True).start()
""")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An attention, and a Gather from the weight."""
    columns = _BYTES // 4 // 1024
    weight = TensorProto(name="W", data_type=TensorProto.FLOAT, dims=[1024, columns])
    weight.data_location = TensorProto.EXTERNAL
    size = 4 * 1024 * columns
    for key, text in (("location", "w.bin"), ("offset", "0"), ("length", str(size))):
        weight.external_data.add(key=key, value=text)
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(size)
    graph = helper.make_graph(
        [
            helper.make_node("Attention", ["Q", "K", "V"], ["Y"], name="attn"),
            helper.make_node("Gather", ["W", "i"], ["Z"], axis=0),
        ],
        "g",
        [
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", 2, "s", 8]) for name in "QKV"),
            helper.make_tensor_value_info("i", TensorProto.INT64, [1]),
        ],
        [
            helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["b", 2, "s", 8]),
            helper.make_tensor_value_info("Z", TensorProto.FLOAT, [1, columns]),
        ],
        initializer=[weight],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    onnx.load(tmp_path / "m.onnx", load_external_data=False)
    return tmp_path / "m.onnx"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak memory is in /proc on Linux only")
@pytest.mark.parametrize("command", ["inspect", "verify", "inspect --no-run"])
def test_weight_is_never_read_whole(model: Path, command: str) -> None:
    """The peak of each process, as it reads it itself, and no count of nodes that nobody counted."""
    peaks = model.with_name("peaks")
    peaks.mkdir()
    (model.parent / "sitecustomize.py").write_text(_MEASURED, encoding="utf-8")
    paths = os.pathsep.join([str(model.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "sdpa_onnx", *command.split(), str(model)],
        env={**os.environ, "PYTHONPATH": paths, "PEAKS": str(peaks)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [int(file.read_text()) for file in peaks.iterdir() if not file.suffix]
    assert len(found) >= (1 if "--no-run" in command else 2)  # the command and its worker
    assert max(found) < _MOST_KIB
    assert "0 nodes" not in done.stdout
    if command == "inspect":
        assert "On ort-cpu: nodes not known, float32." in done.stdout
