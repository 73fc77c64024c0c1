"""`export` and `verify` survive the crash of a runtime, and `export` uses the requested element type."""

import json
from importlib.metadata import version
from pathlib import Path

import onnx
import pytest

from sdpa_onnx.runtimes.worker_process import WorkerProcess, WorkerService, start_worker
from tests.cli.invoke import Shell

_HAS_THE_FAULT = pytest.mark.skipif(version("onnxruntime") != "1.32.0", reason="the fault of onnxruntime 1.32.0")
_HALF = """
import torch

class Half(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, query, key, value):
        return self.attention(query, key, value, need_weights=False)[0]

sample_inputs = (torch.zeros(2, 5, 32),) * 3
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "bare.onnx"),
        ("verify", "bare.onnx"),
        ("verify", "fixed.onnx"),
        ("convert", "bare.onnx", "-o", "x.onnx", "--form", "blocked"),
        ("export", "sdpa", "-o", "x.onnx", "--q-num-heads", "2", "--head-dim", "8"),
    ],
    ids=["inspect", "verify", "verify-fixed", "convert", "export"],
)
def test_runtime_in_one_child_process(shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    """Every model is loaded in the same child process; this process cannot load one."""
    monkeypatch.setattr("onnxruntime.InferenceSession", None)  # of this process; a child imports its own
    started: list[str] = []

    def start(service: WorkerService, name: str, *, python: Path | None, threads: int | None) -> WorkerProcess:
        started.append(name)
        return start_worker(service, name, python=python, threads=threads)

    monkeypatch.setattr("sdpa_onnx.runtimes.workers.start_worker", start)
    ended = shell(*words, "--json")
    assert (ended.code, started) == (1 if "fixed.onnx" in words else 0, ["ort-cpu"]), ended.stderr


@_HAS_THE_FAULT
@pytest.mark.slow
def test_crash_of_a_real_runtime_is_reported(shell: Shell) -> None:
    """onnxruntime 1.32.0 crashes while it loads this module in float16 at opset 18: a message, no file, exit code 1."""
    Path("half.py").write_text(_HALF)
    ended = shell("export", "half.py:Half", "-o", "half.onnx", "--opset", "18", "--dtype", "float16")
    assert ended.code == 1
    assert "ort-cpu crashed: its process ended with SIGSEGV." in " ".join(ended.stdout.split())
    assert ended.stdout.startswith("half.onnx was not written. ")
    assert ended.stderr == ""
    assert not Path("half.onnx").exists()


@pytest.mark.slow
def test_class_is_exported_in_the_requested_type(shell: Shell) -> None:
    """--dtype converts a class and its floating-point sample inputs; without it they stay unchanged."""
    for options, element in ((["--dtype", "float16"], "FLOAT16"), ([], "FLOAT")):
        ended = shell("export", "mods.py:Right", "-o", "right.onnx", *options, "--json")
        assert ended.code == 0, ended.stderr
        graph = onnx.load("right.onnx").graph
        values = [*graph.input, *graph.output]
        assert {onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type) for value in values} == {element}
        assert {record["outcome"] for record in json.loads(ended.stdout)} == {"ok"}
